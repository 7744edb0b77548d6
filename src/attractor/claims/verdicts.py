"""A verdict says what stored runs show of a claim, by a rule that was written before the runs.

A rule splits a claim into parts. Every part has a status, and the claim is their conjunction:

    fails      if any part fails
    holds      if all parts hold
    partly     if all others are near a cut of ours
    not run    if no part has runs
    unclear    otherwise, with what would decide it                                                         (1)

Runs of the scale "smoke" decide nothing: they only show that the code works.
"""

import hashlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from attractor.claims.comparisons import SENSITIVITY_UNKNOWN
from attractor.claims.further_seeds import with_seeds
from attractor.runs.study_record import StudyRecord
from attractor.verdict.family import MOST
from attractor.verdict.intervals import Interval

REVISION = 3  # raise this number when code changes a verdict without changing a rule's fields

P_VALUE = "p"  # the kind of weakness of a statement that a test shows
Status = Literal["holds", "fails", "partly", "unclear", "not run"]


@dataclass(frozen=True)
class Statement:
    """One statement of a claim. A statement with status None is shown beside the verdict and decides nothing."""

    statement: str
    status: Status | None
    reason: str = ""
    ours: str = ""
    interval: Interval | None = None
    unit: str = ""
    n: int = 0
    # How close a statement that holds is to not holding: the kind of measure, and a number that grows as it comes
    # closer. Only numbers of one kind can be compared.
    weakness: tuple[str, float] | None = None
    to_show: int | None = None  # pairs that would show the effect in question with a power of 80%
    to_exclude: int | None = None  # pairs that would show, if there is no effect, that it lies within the margin
    remark: str = ""  # a note beside the status, such as "better than published"
    quantity: str = ""  # what was compared, where the statement does not say it
    apart: str = ""  # the pairs of two devices, which decide nothing


@dataclass(frozen=True)
class ClaimVerdict:
    status: Status
    reason: str
    ours: str = ""
    interval: Interval | None = None
    unit: str = ""
    seeds: int = 0
    size: tuple[int, int] | None = None  # parameters of the smallest and the largest baseline
    scale: str = ""
    corpus: str = ""
    remark: str = ""  # a note beside the status
    brief: str = ""  # the reason in one phrase, for a table
    partial: bool = False  # whether it is unclear for want of a second seed, of a row, or of the control

    @property
    def bounds(self) -> str:
        return "" if self.interval is None else bounds(self.interval)


class Rule(ABC):
    """The test of a claim. A rule is plain data, so that it can be shown beside the verdict."""

    @property
    @abstractmethod
    def words(self) -> str: ...

    @abstractmethod
    def parts(self, record: StudyRecord) -> list[Statement]: ...

    @property
    def n_comparisons(self) -> int:
        """The comparisons over which Holm's correction runs."""
        return 0

    def corrected(self, n_tests: int) -> "Rule":
        """Return the rule as a part of a claim that has so many comparisons."""
        return self

    @property
    def fingerprint(self) -> str:
        """A hash of the rule's fields and of REVISION."""
        fields = re.sub(r"\d+\.\d+(e-?\d+)?", lambda number: f"{float(number[0]):.9g}", repr(self))
        return hashlib.sha256(f"{REVISION} {fields}".encode()).hexdigest()[:12]

    def judge(self, record: StudyRecord) -> ClaimVerdict:
        parts = self.parts(record)
        deciding = [part for part in parts if part.status is not None]
        status = conjunction(part.status for part in deciding)
        part = _telling(status, deciding)
        further = _command(deciding, record) if status == "unclear" else ""
        asides = (*_asides(parts), _unknown_processors(record) if self.n_comparisons else "")
        reason = "; ".join(filter(None, (_reason(status, part, deciding), further, *asides)))
        brief = f"{_stated(replace(part, apart=''))}: {re.split('[;:] ', part.reason)[0]}"
        if record.design.scale == "smoke" and status != "not run":
            status, reason = (
                "unclear",
                "smoke scale: these runs only show that the code works; a larger scale would decide",
            )
            brief = "runs of the scale smoke decide nothing"
        figures = (part.ours, part.interval, part.unit, part.n) if status != "not run" else ("", None, "", 0)
        remarks = [part.remark for part in deciding] if status == "holds" else []
        remark = next(filter(None, remarks), "") + (" in part" if any(remarks) and not all(remarks) else "")
        n_judged = sum(other.status != "not run" for other in deciding)
        if 0 < n_judged < len(deciding):
            remark = f"{n_judged} of {len(deciding)} parts"
        no_interval = part.interval is None or part.interval.low is None
        few_runs = no_interval and (part.n == 1 or any(other.status == "not run" for other in deciding))
        partial = status == "unclear" and (few_runs or part.reason.startswith(SENSITIVITY_UNKNOWN))
        about = _size(record), record.design.scale, corpus_of(record)
        return ClaimVerdict(status, reason, *figures, *about, remark, brief, partial)


@dataclass(frozen=True)
class AllOf(Rule):
    rules: tuple[Rule, ...]

    @property
    def words(self) -> str:
        return ". And: ".join(rule.words for rule in self.rules)

    @property
    def n_comparisons(self) -> int:
        return sum(rule.n_comparisons for rule in self.rules)

    def corrected(self, n_tests: int) -> Rule:
        return AllOf(tuple(rule.corrected(n_tests) for rule in self.rules))

    def parts(self, record: StudyRecord) -> list[Statement]:
        """Return the parts of all rules, of which each counts the comparisons of all. Equal statements about different
        quantities get the quantities' names."""
        parts = [part for rule in self.rules for part in rule.corrected(self.n_comparisons).parts(record)]
        quantities: dict[str, set[str]] = {}
        for part in parts:
            quantities.setdefault(part.statement, set()).add(part.quantity)
        return [
            replace(part, statement=f"{part.quantity} of {part.statement}")
            if len(quantities[part.statement]) > 1
            else part
            for part in parts
        ]


def all_of(*rules: Rule) -> AllOf:
    return AllOf(rules)


def conjunction(statuses: Iterable[Status | None]) -> Status:
    """Return the status of a claim from those of its parts, by (1)."""
    distinct = set(statuses)
    if "fails" in distinct:
        return "fails"
    if distinct == {"holds"}:
        return "holds"
    if distinct <= {"holds", "partly"}:
        return "partly"
    return "not run" if distinct == {"not run"} else "unclear"


def _telling(status: Status, parts: Sequence[Statement]) -> Statement:
    """Return the part whose figure represents the claim: the weakest if all hold, else the first with the status."""
    if status == "holds":
        return _weakest(parts)[1]
    fitting = [part for part in parts if part.status in (status, "partly")] or parts
    return next((part for part in fitting if part.ours), fitting[0])


def _weakest(parts: Sequence[Statement]) -> tuple[str, Statement]:
    """Return the part that comes closest to not holding, and what to call it.

    A p value, a share of a bound and a count cannot be compared. So where parts differ in this, the weakest is looked
    for among those with a p value, and without any the first part stands for all.
    """
    measures = {None if part.weakness is None else part.weakness[0] for part in parts}
    if len(measures) == 1:
        name, comparable = "the weakest", parts
    else:
        name, comparable = "the weakest test", [part for part in parts if part.weakness and part.weakness[0] == P_VALUE]
    weighed = [(part.weakness[1], part) for part in comparable if part.weakness is not None]
    return (name, max(weighed, key=lambda pair: pair[0])[1]) if weighed else ("the first", parts[0])


def _reason(status: Status, telling: Statement, parts: Sequence[Statement]) -> str:
    if status == "holds":
        which = f"all {len(parts)} parts hold, {_weakest(parts)[0]} is " if len(parts) > 1 else ""
        return f"{which}{_stated(telling)}: {telling.reason}"
    cited = [part for part in parts if part.status != "holds" and (status == "unclear" or part.status == status)]
    by_reason: dict[str, list[str]] = {}
    for part in cited:
        by_reason.setdefault(part.reason, []).append(_stated(part))
    texts = [f"{', '.join(statements)}: {reason}" for reason, statements in by_reason.items()]
    if would_decide := [f"{n} pairs would {goal}" for goal, n in _pairs_by_goal(cited).items()]:
        texts.append(f"{' and '.join(would_decide)} (power 80%, at the spread observed)")
    return "; ".join(texts)


def _stated(part: Statement) -> str:
    figures = "; beside it ".join(filter(None, (part.ours, part.apart)))
    return f"{part.statement} ({figures})" if figures else part.statement


def _pairs_by_goal(parts: Sequence[Statement]) -> dict[str, int]:
    """Return the largest numbers of pairs that any part needs, which suffice for all parts.

    A number that the runs already have says nothing: the difference is near the margin.
    """
    wanted = {
        "show the effect in question": [(part.to_show, part.n) for part in parts],
        "show that there is none, within the margin": [(part.to_exclude, part.n) for part in parts],
    }
    known = {goal: [n for n, present in counts if n is not None and n > present] for goal, counts in wanted.items()}
    return {goal: max(counts) for goal, counts in known.items() if counts}


def _command(parts: Sequence[Statement], record: StudyRecord) -> str:
    """Return the command that runs the seeds that the reason names, where they are few enough to be worth running."""
    wanted = _pairs_by_goal([part for part in parts if part.status != "holds"]).values()
    seeds = record.design.seeds
    enough = [n for n in wanted if len(seeds) < n <= MOST]
    if not wanted or not record.design.command:
        return ""
    if not enough:
        return (
            f"more than {MOST} seeds are not worth running: a setting with less noise is" if min(wanted) > MOST else ""
        )
    return f"run: {with_seeds(record.design.command, seeds, max(enough))}"


def _asides(parts: Sequence[Statement]) -> list[str]:
    asides = [part for part in parts if part.status is None and part.ours]
    spans = ["" if part.interval is None else bounds(part.interval) for part in asides]
    texts = [" ".join(filter(None, (p.statement, p.ours, span))) for p, span in zip(asides, spans, strict=True)]
    return [f"beside it: {', '.join(texts)}"] if texts else []


def _unknown_processors(record: StudyRecord) -> str:
    """Say that pairs may be of two processors, where the runs had several and do not say which."""
    n_processors = len(record.environments.get("processor", []))
    known = all("processor" in outcome.summary for outcome in record.outcomes)
    return "" if known or n_processors < 2 else f"runs do not say which of {n_processors} processors they had"


def _size(record: StudyRecord) -> tuple[int, int] | None:
    cells = (cell for cell in record.cells if cell.row == record.design.baseline)
    counts = [outcome.summary.get("n_parameters") for cell in cells for outcome in cell.outcomes]
    known = [count for count in counts if count]
    return (min(known), max(known)) if known else None


def corpus_of(record: StudyRecord) -> str:
    """Return the names of the runs' training data. A corpus given as a path shows its last part only, for privacy."""
    names = {_data(cell.config.get("task")) for cell in record.cells if cell.config}
    return ", ".join(sorted(name.rpartition("/")[2] for name in names))


def _data(task: Any) -> str:
    if not isinstance(task, dict):
        return str(task or "")
    return str(task.get("corpus") or " ".join(str(task[key]) for key in ("kind", "level", "task") if task.get(key)))


def figure(interval: Interval, unit: str) -> str:
    """Format a mean to two digits of its half width: `-0.085 nats`, `+2.2%`, `0.82x`. A factor has no sign."""
    digits = interval.decimals
    if unit == "x":
        return f"{interval.mean:.{max(digits, 2)}f}x"
    return f"{interval.mean:+.{digits}f}{'' if unit in ('', '%') else ' '}{unit}"


def bounds(interval: Interval) -> str:
    if interval.low is None or interval.high is None or not math.isfinite(interval.low + interval.high):
        return ""
    return f"[{interval.low:.{interval.decimals}f}, {interval.high:.{interval.decimals}f}]"
