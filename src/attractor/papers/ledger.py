"""The ledger lists every claim with its verdict, which is computed from the stored runs each time.

Where runs of several scales exist, the largest scale decides, since it is nearest to the papers' claims. A scale with
some of the runs that a claim needs, too few for an interval or without those of the control, gives way to a smaller
one. The verdicts of the other scales are shown beside it.

Only the dates of rules are stored: `rules.json` beside the records holds a hash of every rule, with the time
at which that hash was first seen (the day alone, for the oldest). A rule is younger than runs that began before, and
the ledger marks it: such a rule could have been written to fit them.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from attractor.claims.verdicts import ClaimVerdict
from attractor.errors import InputError, LeftOutWarning
from attractor.papers import CLAIMS
from attractor.papers.claim import Claim
from attractor.runs.study_record import STUDY_FILE, StudyRecord
from attractor.seals import read_sealed

SCALES = ("paper", "bench", "desk", "laptop", "smoke")  # the largest first
RECORDS = "study-*.json"
RULES = "rules.json"


@dataclass(frozen=True)
class Entry:
    claim: Claim
    verdict: ClaimVerdict
    others: tuple[ClaimVerdict, ...] = ()  # of other scales, the larger first
    rule_since: str = ""  # the time at which the rule, as it stands, was written down
    rule_is_younger: bool = False  # than the runs that it judges


RuleDates = Mapping[str, Mapping[str, str]]  # by claim: {"rule": hash, "since": time}


def ledger(
    records: Sequence[StudyRecord], claims: Sequence[Claim] = CLAIMS, rule_dates: RuleDates | None = None
) -> tuple[Entry, ...]:
    """Judge every claim by the records of the studies that name it.

    Of two records at one scale the one with more runs counts, whatever their order.
    """
    ordered = sorted(records, key=lambda record: (record.finished, json.dumps(record.to_dict(), sort_keys=True)))
    return tuple(_dated(_entry(claim, ordered), ordered, rule_dates or {}) for claim in claims)


def _dated(entry: Entry, records: Sequence[StudyRecord], rule_dates: RuleDates) -> Entry:
    """Return the entry with the age of its rule. A record without a time is older than every rule."""
    rule, stored = entry.claim.rule, rule_dates.get(entry.claim.id, {})
    if rule is None:
        return entry
    since = stored["since"] if stored.get("rule") == rule.fingerprint else ""  # a rule not yet written down is younger
    judged = _by_scale(entry.claim, records).get(entry.verdict.scale)
    began = "" if judged is None else (judged.environments.get("time") or [""])[0]
    younger = entry.verdict.status != "not run" and (not since or began < since)
    return replace(entry, rule_since=since, rule_is_younger=younger)


def _names(record: StudyRecord, claim: Claim) -> bool:
    """Return whether a record judges a claim. A claim may have moved to another study since the record was stored."""
    return claim.id in record.design.claims and record.design.name == claim.study


def read_rule_dates(results: Path) -> RuleDates:
    path = results / RULES
    if not path.exists():
        return {}
    try:
        dates = read_sealed(path) or {}
        return {claim: {"rule": str(stored["rule"]), "since": str(stored["since"])} for claim, stored in dates.items()}
    except (InputError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"'{path}' must hold the hash and the time of every rule, and is damaged; restore it"
        ) from error


def renewed_rule_dates(known: RuleDates, now: str, claims: Sequence[Claim] = CLAIMS) -> dict[str, dict[str, str]]:
    """Return the dates of all rules: an unchanged rule keeps its date, and every other rule gets `now`."""
    hashes = {claim.id: claim.rule.fingerprint for claim in claims if claim.rule is not None}
    return {
        claim: dict(known[claim]) if known.get(claim, {}).get("rule") == rule else {"rule": rule, "since": now}
        for claim, rule in hashes.items()
    }


def _entry(claim: Claim, records: Sequence[StudyRecord]) -> Entry:
    if claim.rule is None:
        return Entry(claim, ClaimVerdict("not run", "no study of ours asks this yet"))
    by_scale = _by_scale(claim, records)
    verdicts = [claim.rule.judge(by_scale[scale]) for scale in SCALES if scale in by_scale]
    judged = [verdict for verdict in verdicts if verdict.status != "not run"]
    judged.sort(key=lambda verdict: verdict.partial)  # among those alike the order stays
    if judged:
        return Entry(claim, judged[0], tuple(judged[1:]))
    study = f"studies/{claim.study}.py has no stored runs" if claim.study else "no study of ours asks this yet"
    return Entry(claim, verdicts[0] if verdicts else ClaimVerdict("not run", study))


def _by_scale(claim: Claim, records: Sequence[StudyRecord]) -> dict[str, StudyRecord]:
    """Return the record that judges a claim at each scale: the last of those in order, which has the most runs."""
    return {record.design.scale: record for record in records if _names(record, claim)}


def find_records(results: Path, root: Path | None = None) -> list[StudyRecord]:
    """Return the records stored in `results`, and those of the studies that were run in the folder `root`."""
    records = [read_record(path) for path in sorted(results.glob(RECORDS))]
    if root is not None:
        if not root.is_dir():
            raise InputError(f"root must be a folder of studies, and '{root}' is none; give that of 'study run'")
        records += filter(None, map(_readable, sorted(root.glob(f"*/{STUDY_FILE}"))))
    return records


def _readable(path: Path) -> StudyRecord | None:
    """Return the record of a study that was run here. A damaged study is named and left out, and hides no other."""
    try:
        return StudyRecord.read(path.parent)
    except InputError as error:
        warnings.warn(f"left out a damaged study: {error}", LeftOutWarning, stacklevel=3)
        return None


def read_record(path: Path) -> StudyRecord:
    """Read a record that `attractor report --store` wrote."""
    try:
        return StudyRecord.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except InputError as error:
        raise InputError(f"'{path}': {error}") from error
    except OSError as error:
        raise InputError(f"'{path}' must hold a study's record: {error.strerror}; check the path") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"'{path}' must hold a study's record, and is damaged; store it anew") from error
