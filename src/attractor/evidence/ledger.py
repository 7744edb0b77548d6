"""The ledger: every claim with the verdict that stored runs give it. Verdicts are computed, and never stored.

Where runs of several scales exist, the largest decides, since it is nearest to what the papers claim; the verdicts of
the others stand beside it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attractor.errors import InputError
from attractor.evidence.claims import CLAIMS, Claim
from attractor.evidence.study import STUDY_FILE, StudyRecord
from attractor.evidence.verdicts import Verdict

SCALES = ("paper", "bench", "laptop", "smoke")  # the largest first
RECORDS = "study-*.json"


@dataclass(frozen=True)
class Entry:
    claim: Claim
    verdict: Verdict
    others: tuple[Verdict, ...] = ()  # of smaller scales, the larger first


def ledger(records: Sequence[StudyRecord], claims: Sequence[Claim] = CLAIMS) -> tuple[Entry, ...]:
    """Each claim judged by every record of a study that names it among its claims.

    Of two records of one scale the fuller one counts, whatever the order in which they were found.
    """
    ordered = sorted(records, key=lambda record: (record.finished, json.dumps(record.to_dict(), sort_keys=True)))
    return tuple(_entry(claim, ordered) for claim in claims)


def _entry(claim: Claim, records: Sequence[StudyRecord]) -> Entry:
    if claim.rule is None:
        return Entry(claim, Verdict("not run", "no study of ours asks this yet"))
    by_scale: dict[str, StudyRecord] = {}
    for record in records:
        if claim.id in record.design.claims:
            by_scale[record.design.scale] = record
    found = [claim.rule.judge(by_scale[scale]) for scale in SCALES if scale in by_scale]
    judged = [verdict for verdict in found if verdict.status != "not run"]
    if judged:
        return Entry(claim, judged[0], tuple(judged[1:]))
    study = f"studies/{claim.study}.py has no stored runs" if claim.study else "no study of ours asks this yet"
    return Entry(claim, found[0] if found else Verdict("not run", study))


def find_records(results: Path, root: Path | None = None) -> list[StudyRecord]:
    """The records stored in the folder `results`, and the studies in the folder `root`, where they were run."""
    found = [read_record(path) for path in sorted(results.glob(RECORDS))]
    if root is not None:
        if not root.is_dir():
            raise InputError(f"root must be a folder of studies, and '{root}' is none; give that of 'study run'")
        found += [StudyRecord.read(path.parent) for path in sorted(root.glob(f"*/{STUDY_FILE}"))]
    return found


def read_record(path: Path) -> StudyRecord:
    try:
        return StudyRecord.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except InputError as error:
        raise InputError(f"'{path}': {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"'{path}' must hold a study's record, and is damaged; store it anew") from error
