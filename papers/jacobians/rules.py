"""Rules that only claims of Jacobians need.

OfTheBest    is Stays for the row that is best by another quantity, and holds only where good rows are shown to
             lie lower than bad ones (Welch's test over rows); says nothing where no row is good, or none is bad
WhereActing  judges by another rule at one of several weights of a penalty: of those at which the penalty could
             have acted, the one that is best by another quantity; "cannot tell" where it could act at none
Shown        is a quantity of a row that stands beside a verdict and has no influence on it
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean

from attractor.claims.comparisons import Obstacle, values
from attractor.claims.rules import LEVEL, Conditional, Stays, in_unit
from attractor.claims.verdicts import P_VALUE, Rule, Statement, figure
from attractor.runs.quantity import Quantity
from attractor.runs.study_record import StudyRecord
from attractor.verdict.family import Comparison, judge_family
from attractor.verdict.intervals import mean_interval
from attractor.verdict.words import p_in_words


@dataclass(frozen=True)
class OfTheBest(Rule):
    """The best row, by the mean of `best_by`, stays at or below `level`, and good rows lie lower than bad ones.

    A row is good where it has at least half of the best row's `best_by`, and bad otherwise. Where bad rows
    stay below the level as good ones do, the level of the best row alone would not tell what makes it best. Rows that
    the study does not have at its scale are left out; a row that it has and that was not run decides nothing yet.
    """

    rows: tuple[str, ...]
    best_by: Quantity
    least: float  # of `best_by`; where the best row has less, no row is good
    level: float
    margin: float  # the smallest difference between good and bad rows that would matter
    quantity: Quantity

    @property
    def words(self) -> str:
        return (
            f"{self.quantity.name} at most {self.level:g} of the row with the best {self.best_by.name}, which is at "
            f"least {self.least:g}, and lower in rows with at least half of that than in the others (margin "
            f"{in_unit(self.margin, self.quantity)}), among those that the scale has of {', '.join(self.rows)}"
        )

    def parts(self, record: StudyRecord) -> list[Statement]:
        by_row: dict[Quantity, dict[str, float]] = {self.best_by: {}, self.quantity: {}}
        rows = [row for row in self.rows if row in record.design.rows] or self.rows
        for quantity, means in by_row.items():
            for row in rows:
                numbers = values(record, quantity, row, "")
                if isinstance(numbers, Obstacle):
                    return [Statement(self.words, numbers.status, numbers.reason)]
                means[row] = fmean(numbers.values())
        success = by_row[self.best_by]
        best = max(success, key=lambda row: success[row])
        if success[best] < self.least:
            reason = (
                f"cannot tell: {best} is best, with {success[best]:.3f}, below {self.least:g}, so no row is good; a "
                "setting in which one is would decide"
            )
            return [Statement(self.words, "unclear", reason)]
        (part,) = Stays((best,), ("",), self.level, self.quantity).parts(record)
        best_part = replace(part, reason=f"{part.reason}; {best} is best, with {success[best]:.3f}")
        good, bad = (
            {row: x for row, x in by_row[self.quantity].items() if (success[row] >= success[best] / 2) is is_good}
            for is_good in (True, False)
        )
        return [best_part, replace(self._contrast(good, bad), n=part.n)]

    def _contrast(self, good: Mapping[str, float], bad: Mapping[str, float]) -> Statement:
        rows = f"{len(good)} good and {len(bad)} bad rows"
        part = Statement(f"{self.quantity.name} lower in good rows than in bad ones", "unclear")
        if min(len(good), len(bad)) < 2:
            return replace(part, reason=f"cannot tell: {rows} are too few to compare; rows of both kinds would decide")
        if not all(map(math.isfinite, (*good.values(), *bad.values()))):
            return replace(part, reason="diverged: a mean over such runs is no number")
        asked = Comparison("good", [*good.values()], [*bad.values()], "unpaired", margin=self.margin)
        verdict = judge_family({"good": asked}, level=1 - LEVEL, level_within=1 - LEVEL / 2)["good"]
        assert verdict.measured is not None
        part = replace(part, ours=figure(verdict.measured, self.quantity.unit), interval=verdict.measured)
        if verdict.outcome == "no difference":
            return replace(part, status="fails", reason=f"shown to lie within {in_unit(self.margin, self.quantity)}")
        if verdict.outcome == "undecided" or verdict.p is None:
            return replace(part, reason=f"not shown with {rows}: more rows would decide")
        p = verdict.p
        if verdict.outcome == "better":
            return replace(part, status="holds", reason=f"shown with {rows}, {p_in_words(p)}", weakness=(P_VALUE, p))
        return replace(part, status="fails", reason=f"the opposite is shown with {rows}, {p_in_words(p)}")


@dataclass(frozen=True)
class WhereActing(Conditional):
    """Judge by `rule` at one weight of a penalty. `rows` have it at several weights; `rule` names the first of them.

    The penalty could have acted at a weight where the mean of `effort` is at least `least`. Of these weights the one
    with the largest mean of `best_by` is judged, which must be another quantity than those that the rule judges.
    """

    rows: tuple[str, ...]
    effort: Quantity
    least: float
    best_by: Quantity

    @property
    def condition(self) -> str:
        return (
            f"at the weight with the best {self.best_by.name} of those with {self.effort.name} at "
            f"least {self.least:g}, among {', '.join(self.rows)}; cannot tell where there is none"
        )

    def parts(self, record: StudyRecord) -> list[Statement]:
        numbers = {row: values(record, self.effort, row, "") for row in self.rows}
        efforts = {row: fmean(x.values()) for row, x in numbers.items() if not isinstance(x, Obstacle)}
        acting = [row for row, effort in efforts.items() if effort >= self.least]
        success = {row: values(record, self.best_by, row, "") for row in acting}
        means = {row: fmean(x.values()) for row, x in success.items() if not isinstance(x, Obstacle)}
        if means:
            chosen = max(means, key=lambda row: means[row])
            names = {row: row for row in record.design.rows if row not in self.rows} | {chosen: self.rows[0]}
            cells = tuple(replace(cell, row=names[cell.row]) for cell in record.cells if cell.row in names)
            rows = tuple(names[row] for row in record.design.rows if row in names)
            parts = self.rule.parts(replace(record, design=replace(record.design, rows=rows), cells=cells))
            which = "" if chosen == self.rows[0] else f" (as {chosen})"
            return [replace(part, statement=part.statement + which) for part in parts]
        return super().parts(record)

    def obstacle(self, record: StudyRecord) -> str:
        numbers = {row: values(record, self.effort, row, "") for row in self.rows}
        efforts = {row: fmean(x.values()) for row, x in numbers.items() if not isinstance(x, Obstacle)}
        if not efforts:
            return f"cannot tell: these runs did not record {self.effort.name} of {self.rows[0]}; new runs do"
        largest = max(efforts, key=lambda row: efforts[row])
        return (
            f"cannot tell: {self.effort.name} of {largest} is {efforts[largest]:.2g}, below {self.least:g}, so the "
            "penalty could not have acted; a larger weight would decide"
        )


@dataclass(frozen=True)
class Shown(Rule):
    """A quantity of a row that is shown beside a verdict and has no influence on it."""

    row: str
    quantity: Quantity

    @property
    def words(self) -> str:
        return f"beside it, {self.quantity.name} of {self.row}"

    def parts(self, record: StudyRecord) -> list[Statement]:
        part = Statement(f"{self.quantity.name} of {self.row}", None)
        numbers = values(record, self.quantity, self.row, "")
        if isinstance(numbers, Obstacle):
            return [part]
        interval = mean_interval(numbers)
        return [replace(part, ours=f"{interval.mean:.3g}", interval=interval, n=len(numbers))]
