"""The ledger lists every claim with its verdict, which is computed from the stored runs each time.

Where runs of several scales exist, the largest scale decides, since it is nearest to the papers' claims. A scale with
some of the runs that a claim needs, too few for an interval or without those of the control, gives way to a smaller
one. The verdicts of the other scales are shown beside it.

Only dates are stored: `rules.json` beside a paper's records holds a hash of every rule, with the time at which that
hash was first seen (the day alone, for the oldest), and the looks at every claim: dates, and the number of pairs by
then. A rule is younger than runs that began before, and the ledger marks it: it could have been written to fit them.
"""

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attractor.claims.claim import Claim, Paper
from attractor.claims.verdicts import ClaimVerdict, Rule, Statement
from attractor.errors import InputError, LeftOutWarning
from attractor.files.code import CLAIMS_FILE, executed, in_words
from attractor.files.seals import read_sealed
from attractor.runs.study_record import STUDY_FILE, StudyRecord, read_record

SCALES = ("paper", "bench", "desk", "laptop", "smoke")  # the largest first
RECORDS = "results/study-*.json"  # in the folder of a paper
RULES = "results/rules.json"


@dataclass(frozen=True)
class Entry:
    claim: Claim
    verdict: ClaimVerdict
    others: tuple[ClaimVerdict, ...] = ()  # of other scales, the larger first
    rule_since: str = ""  # the time at which the rule, as it stands, was written down
    rule_is_younger: bool = False  # than the runs that it judges


# By claim: {"rule": hash, "since": time, "looks": {scale: {number of pairs: date}}}; looks may be absent.
RuleDates = Mapping[str, Mapping[str, Any]]


def read_papers(folder: Path) -> dict[Path, Paper]:
    """Return the papers of a folder by their own folders; `folder` may also be that of one paper.

    The files of claims are Python, and are executed. A damaged one is named and left out, and hides no other."""
    if not folder.is_dir():
        raise InputError(
            f"folder must be one of papers, each with {CLAIMS_FILE}, and '{folder}' is none; check the path"
        )
    places = [folder / CLAIMS_FILE] if (folder / CLAIMS_FILE).is_file() else sorted(folder.glob(f"*/{CLAIMS_FILE}"))
    papers: dict[Path, Paper] = {}
    for place in places:
        try:
            paper = getattr(executed(place, "file of claims"), "PAPER", None)
            if not isinstance(paper, Paper):
                raise InputError(f"'{place}' must define PAPER, a Paper, and has {type(paper).__name__}")
            papers[place.parent] = paper
        except InputError as error:
            warnings.warn(f"left out a paper: {error}", LeftOutWarning, stacklevel=2)
    if not papers:
        raise InputError(f"folder must hold papers, as '{folder}/PAPER/{CLAIMS_FILE}', and holds none; see papers/")
    return dict(sorted(papers.items(), key=lambda item: item[1].key))


def ledger(
    records: Sequence[StudyRecord], claims: Sequence[Claim], rule_dates: RuleDates | None = None
) -> tuple[Entry, ...]:
    """Judge every claim by the records of the studies that name it.

    Of two records at one scale the one with more runs counts, whatever their order.
    """
    ordered = sorted(records, key=lambda record: (record.finished, json.dumps(record.to_dict(), sort_keys=True)))
    dates = rule_dates or {}
    return tuple(_dated(_entry(claim, ordered, dates), ordered, dates) for claim in claims)


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


def read_rule_dates(paper: Path) -> RuleDates:
    path = paper / RULES
    if not path.exists():
        return {}
    try:
        dates = read_sealed(path) or {}
        return {
            claim: {"rule": str(stored["rule"]), "since": str(stored["since"])}
            | ({"looks": _checked(stored["looks"])} if "looks" in stored else {})
            for claim, stored in dates.items()
        }
    except (InputError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"'{path}' must hold the hash and the time of every rule, and is damaged; restore it"
        ) from error


def _checked(looks: Any) -> dict[str, dict[str, str]]:
    return {scale: {str(int(n)): str(date) for n, date in of_scale.items()} for scale, of_scale in looks.items()}


def renewed_rule_dates(
    known: RuleDates, now: str, claims: Sequence[Claim], records: Sequence[StudyRecord] = ()
) -> dict[str, dict[str, Any]]:
    """Return the dates of all rules and looks: an unchanged rule keeps its date, and every other rule gets `now`.

    A look is new where more pairs are judged than at the last one."""
    renewed: dict[str, dict[str, Any]] = {}
    for claim in (claim for claim in claims if claim.rule is not None):
        assert claim.rule is not None
        before, rule = known.get(claim.id, {}), claim.rule.fingerprint
        since = before["since"] if before.get("rule") == rule else now
        looks = {scale: dict(of_scale) for scale, of_scale in before.get("looks", {}).items()}
        for scale, record in _by_scale(claim, records).items() if claim.rule.n_comparisons else ():
            n = max((part.n for part in _parts(claim.rule, record) if part.status is not None), default=0)
            if n > max(map(int, looks.get(scale, ())), default=1):
                looks.setdefault(scale, {})[str(n)] = now[:10]
        renewed[claim.id] = {"rule": rule, "since": since} | ({"looks": looks} if looks else {})
    return renewed


def _parts(rule: Rule, record: StudyRecord) -> Sequence[Statement]:
    try:
        return rule.parts(record)
    except Exception:  # a rule that cannot be applied is named by its verdict
        return ()


def _entry(claim: Claim, records: Sequence[StudyRecord], rule_dates: RuleDates) -> Entry:
    if claim.rule is None:
        return Entry(claim, ClaimVerdict("not run", "no study of ours asks this yet"))
    looks = rule_dates.get(claim.id, {}).get("looks", {})
    by_scale = {
        scale: replace(record, looks=tuple(map(int, looks.get(scale, ()))))
        for scale, record in _by_scale(claim, records).items()
    }
    verdicts = [_judged(claim.rule, by_scale[scale]) for scale in SCALES if scale in by_scale]
    judged = [verdict for verdict in verdicts if verdict.status != "not run"]
    judged.sort(key=lambda verdict: verdict.partial)  # among those alike the order stays
    if judged:
        return Entry(claim, judged[0], tuple(judged[1:]))
    study = f"studies/{claim.study}.py has no stored runs" if claim.study else "no study of ours asks this yet"
    return Entry(claim, verdicts[0] if verdicts else ClaimVerdict("not run", study))


def _judged(rule: Rule, record: StudyRecord) -> ClaimVerdict:
    """Return the rule's verdict. A rule of anybody's paper may fail, which is said and hides no other claim."""
    try:
        return rule.judge(record)
    except Exception as error:
        why = f"the rule cannot be applied: {in_words(error)}; mend the rule"
        return ClaimVerdict("unclear", why, scale=record.design.scale, brief=why)


def _by_scale(claim: Claim, records: Sequence[StudyRecord]) -> dict[str, StudyRecord]:
    """Return the record of the claim's study at each scale: the last of those in order, which has the most runs."""
    return {record.design.scale: record for record in records if record.design.name == claim.study}


def find_records(papers: Iterable[Path], root: Path | None = None) -> list[StudyRecord]:
    """Return the records stored with papers, and those of the studies that were run in the folder `root`.

    A damaged one is named and left out, and hides no other."""
    records = [_readable(path) for paper in papers for path in sorted(paper.glob(RECORDS))]
    if root is not None:
        if not root.is_dir():
            raise InputError(f"root must be a folder of studies, and '{root}' is none; give that of 'study run'")
        records += map(_readable, sorted(root.glob(f"*/{STUDY_FILE}")))
    return [record for record in records if record is not None]


def _readable(path: Path) -> StudyRecord | None:
    try:
        return StudyRecord.read(path.parent) if path.name == STUDY_FILE else read_record(path)
    except InputError as error:
        warnings.warn(f"left out a damaged study: {error}", LeftOutWarning, stacklevel=3)
        return None
