"""The rules that judge claims. The ledger marks the rules that were written after the runs that they judge.

All differences are paired by seed, and a pair of two devices decides nothing. The margin m is the smallest effect that
would matter, named beforehand. Holm's correction covers all comparisons of a claim, those without runs included. Where
a claim was judged before at fewer pairs, every p value counts those looks (`verdict/sequential.py`).

    Differs      holds where the difference is shown in the claimed direction (p < 0.05); fails where the opposite is
                 shown, or where the 95% interval lies within ± m: so small a lead is not the claimed one
    Equivalent   holds where the difference is shown to lie within ± m (two one-sided tests at 0.025) and the premises
                 hold, without which "no difference" says nothing; fails where a difference beyond ± m is shown
    Costs        holds where the 95% interval of the cost lies at or below the published cost plus m; fails where it
                 lies above
    Reaches      holds where every seed reaches the level, fails where the 95% interval of the mean lies below
    Stays        holds where every seed stays at or below the level; is partly so where the level is a cut of ours and
                 every seed stays near it; else fails
    InRegime     judges by another rule where a quantity of some rows (tokens, steps, logits, boards solved) shows that
                 runs reach the regime in which the paper sees its effect; elsewhere the verdict is unclear
    Reported     is a difference that stands beside a verdict and has no influence on it

A paper's own rules lie beside its claims, as in papers/coupled_qk/rules.py.
"""

import itertools
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from attractor.claims.comparisons import (
    Compared,
    Control,
    Obstacle,
    Pair,
    by_round,
    compare,
    values,
    without_a_number,
)
from attractor.claims.verdicts import P_VALUE, Rule, Statement, bounds, figure
from attractor.runs.quantity import LOSS, Quantity
from attractor.runs.study_record import StudyRecord
from attractor.verdict.family import Comparison, judge_family, pairs_to_exclude, pairs_to_show
from attractor.verdict.intervals import mean_interval
from attractor.verdict.outcome import Verdict
from attractor.verdict.words import p_in_words

LEVEL = 0.05
SHARE = 1 / 4  # the margin as a share of the published effect


class OfPairs(Rule):
    """A rule over pairs of rows. Where its claim has further comparisons, `n_tests` counts them all."""

    pairs: tuple[Pair, ...]
    n_tests: int

    @property
    def n_comparisons(self) -> int:
        return max(self.n_tests, len(self.pairs))

    def corrected(self, n_tests: int) -> Self:
        return replace(self, n_tests=n_tests)  # type: ignore[type-var]


@dataclass(frozen=True)
class Differs(OfPairs):
    pairs: tuple[Pair, ...]
    quantity: Quantity = LOSS
    control: Control | None = None  # replaces the study's control
    n_tests: int = field(default=0, repr=False)  # comparisons of the whole claim, where it has others than these

    @property
    def words(self) -> str:
        comparisons = [f"{direction(pair)} (margin {in_unit(pair.margin, self.quantity)})" for pair in self.pairs]
        return f"{self.quantity.name}: {', '.join(comparisons)}"

    def parts(self, record: StudyRecord) -> list[Statement]:
        compared = {pair: compare(record, self.quantity, pair, self.control) for pair in self.pairs}
        tests = self.n_comparisons
        verdicts = judge_family(_asked(compared), n_tests=tests, level=1 - LEVEL, level_within=1 - LEVEL / 2)
        return [self._part(pair, comparison, verdicts.get(pair)) for pair, comparison in compared.items()]

    def _part(self, pair: Pair, comparison: Compared, verdict: Verdict | None) -> Statement:
        part = measured(direction(pair), comparison, self.quantity)
        if comparison.obstacle is not None or verdict is None:
            return part
        part, p, pairs = as_judged(part, verdict, self.quantity), verdict.adjusted_p, pairs_in_words(comparison)
        if verdict.outcome == "no difference":
            return replace(part, status="fails", reason=f"shown to lie within {in_unit(pair.margin, self.quantity)}")
        if verdict.outcome == "worse":
            return replace(part, status="fails", reason=f"the opposite is shown with {pairs}, {p_in_words(p)}")
        if verdict.outcome == "better" and p is not None:
            return replace(part, status="holds", reason=f"shown with {pairs}, {p_in_words(p)}", weakness=(P_VALUE, p))
        tests = self.n_comparisons
        assert verdict.low is not None
        assert verdict.high is not None
        excluded = verdict.low > pair.effect if pair.effect < 0 else verdict.high < pair.effect  # as too large
        return replace(
            part,
            reason=f"not shown with {pairs}"
            + (", whose 95% interval excludes the effect in question" if excluded else ""),
            to_show=None if excluded else pairs_to_show(verdict.spread, pair.effect, LEVEL / tests),
            to_exclude=pairs_to_exclude(verdict.spread, pair.margin, LEVEL / 2 / tests),
        )


@dataclass(frozen=True)
class Equivalent(OfPairs):
    """`premises` must hold for "no difference" to say anything; for instance, the parts that are alike must have an
    effect at all. With `only_above` the claim denies an advantage only, so a difference below -m does not refute it."""

    pairs: tuple[Pair, ...]
    quantity: Quantity = LOSS
    premises: tuple[Rule, ...] = ()
    only_above: bool = False
    control: Control | None = None
    n_tests: int = field(default=0, repr=False)

    @property
    def words(self) -> str:
        by = "by more than" if self.only_above else "within"
        comparisons = [f"{self._statement(pair)} {by} {in_unit(pair.margin, self.quantity)}" for pair in self.pairs]
        premises = "".join(f". Premise: {premise.words}" for premise in self.premises)
        return f"{self.quantity.name}: {', '.join(comparisons)}{premises}"

    def parts(self, record: StudyRecord) -> list[Statement]:
        compared = {pair: compare(record, self.quantity, pair, self.control) for pair in self.pairs}
        verdicts = judge_family(_asked(compared, self.only_above), n_tests=self.n_comparisons, level=1 - LEVEL)
        missing = self._missing_premise(record)
        return [self._part(pair, comparison, verdicts.get(pair), missing) for pair, comparison in compared.items()]

    def _statement(self, pair: Pair) -> str:
        return f"{pair.of} {'no higher than' if self.only_above else 'equal to'} {pair.against}{pair.place}"

    def _part(self, pair: Pair, comparison: Compared, verdict: Verdict | None, missing: str) -> Statement:
        part = measured(self._statement(pair), comparison, self.quantity)
        if comparison.obstacle is not None or verdict is None:
            return part
        part, pairs = as_judged(part, verdict, self.quantity), pairs_in_words(comparison)
        p = verdict.p_within  # all parts must hold, so none needs a correction
        margin = in_unit(pair.margin, self.quantity)
        bound = f"at most {margin} higher" if self.only_above else f"within {margin}"
        if p is not None and p < LEVEL / 2:
            within = f"{bound} with {pairs}, {p_in_words(p)}"
            if missing:
                return replace(part, reason=f"{within}, but the premise is not shown: {missing}")
            return replace(part, status="holds", reason=within, weakness=(P_VALUE, p))
        if verdict.adjusted_beyond is not None and verdict.adjusted_beyond < LEVEL:
            return replace(part, status="fails", reason=f"a difference beyond {margin} is shown with {pairs}")
        needed = pairs_to_exclude(verdict.spread, pair.margin, LEVEL / 2, n_sides=1 if self.only_above else 2)
        shown = f"not shown to {'be' if self.only_above else 'lie'} {bound} with {pairs}"
        return replace(part, reason=shown, to_exclude=needed)

    def _missing_premise(self, record: StudyRecord) -> str:
        """Name the premises that are not shown: without any effect of coupling, equal step counts say nothing."""
        missing = [part for premise in self.premises for part in premise.parts(record) if part.status != "holds"]
        return "; ".join(f"{part.statement} ({part.reason})" for part in missing)


@dataclass(frozen=True)
class Reported(Rule):
    """A difference that is shown beside a verdict and has no influence on it."""

    pairs: tuple[Pair, ...]
    quantity: Quantity = LOSS

    @property
    def words(self) -> str:
        return f"beside it, {self.quantity.name} of " + ", ".join(f"{p.of} - {p.against}{p.place}" for p in self.pairs)

    def parts(self, record: StudyRecord) -> list[Statement]:
        statements = {pair: f"{self.quantity.name} of {pair.of} - {pair.against}{pair.place}" for pair in self.pairs}
        compared = {pair: compare(record, self.quantity, pair) for pair in self.pairs}
        return [replace(measured(statements[p], compared[p], self.quantity), status=None) for p in self.pairs]


@dataclass(frozen=True)
class Costs(Rule):
    """The cost of each row as a ratio to another row. A row that is cheaper than published holds. The rounds of one
    timing serve as pairs. Without rounds the ratio itself decides, and the reason says that it has no interval."""

    quantity: Quantity
    against: str
    published: tuple[tuple[str, float], ...]  # rows and their ratios
    margin: float
    more_is_better: bool

    @property
    def words(self) -> str:
        ratios = [f"{row} {ratio:.2f}x" for row, ratio in self.published]
        bound = "at least" if self.more_is_better else "at most"
        return (
            f"{self.quantity.name} against {self.against}: {bound} {', '.join(ratios)}, with {self.margin:g} to spare"
        )

    def parts(self, record: StudyRecord) -> list[Statement]:
        return [self._part(record, row, ratio) for row, ratio in self.published]

    def _part(self, record: StudyRecord, row: str, published: float) -> Statement:
        comparison = compare(record, self.quantity, Pair(row, self.against, 0.0, self.margin))
        part = measured(
            f"{self.quantity.name} of {row} {published:.2f}x that of {self.against}", comparison, self.quantity
        )
        if part.interval is None or not math.isfinite(part.interval.mean):
            return part
        how = f"{part.n} pairs" if part.n > 1 else "one timing, which has no interval"
        seeds = tuple(comparison.differences)
        if len(seeds) == 1 and (rounds := by_round(record, self.quantity, row, self.against, seeds[0])):
            how = f"{len(rounds)} rounds of one timing"
            of_rounds = self.quantity.shown(mean_interval(rounds))
            part = replace(part, interval=of_rounds, ours=figure(of_rounds, self.quantity.unit))
        assert part.interval is not None
        mean = part.interval.mean
        low, high = (mean if end is None else end for end in (part.interval.low, part.interval.high))
        if not self.more_is_better:  # a lower cost is better: reverse the sign
            low, high, mean, published = -high, -low, -mean, -published
        if low >= published - self.margin:
            remark = "better than published" if low > published + self.margin else ""
            weakness = ("cost", published - mean)
            return replace(part, status="holds", reason=remark or how, weakness=weakness, remark=remark)
        if high < published - self.margin:
            return replace(part, status="fails", reason=f"worse than published ({how})")
        return replace(
            part, status="unclear", reason=f"the interval reaches over the margin ({how}): more rounds would decide"
        )


@dataclass(frozen=True)
class Reaches(Rule):
    row: str
    columns: tuple[str, ...]
    level: float
    quantity: Quantity

    @property
    def words(self) -> str:
        return f"{self.quantity.name} of {self.row} at least {self.level:g}{_among(self.columns)}"

    def parts(self, record: StudyRecord) -> list[Statement]:
        return [self._part(record, column) for column in self.columns]

    def _part(self, record: StudyRecord, column: str) -> Statement:
        statement = replace(self, columns=(column,)).words
        numbers = values(record, self.quantity, self.row, column)
        if isinstance(numbers, Obstacle):
            return Statement(statement, numbers.status, numbers.reason)
        interval = mean_interval(numbers)
        ours = f"{interval.mean:.3f}"
        part = Statement(statement, "unclear", "", ours, interval, self.quantity.unit, len(numbers))
        if not math.isfinite(interval.mean):
            return replace(part, reason="diverged", ours="", interval=None)
        if len(numbers) == 1:
            return replace(part, reason="one seed has no interval: a second would give one")
        smallest = min(numbers.values())
        if smallest >= self.level and (lost := without_a_number(record, self.quantity, self.row, column)):
            return replace(part, reason=_lost(lost))
        if smallest >= self.level:
            weakness = (f"{self.quantity.name} at least {self.level:g}", -smallest)
            return replace(part, status="holds", reason=f"reached by all {len(numbers)} seeds", weakness=weakness)
        if interval.high is not None and interval.high < self.level:
            return replace(part, status="fails", reason=f"not reached with {len(numbers)} seeds")
        n_there = sum(value >= self.level for value in numbers.values())
        return replace(part, reason=f"reached by {n_there} of {len(numbers)} seeds: more would decide")


@dataclass(frozen=True)
class Stays(Rule):
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    level: float
    quantity: Quantity
    near: float | None = None  # the level is a cut of ours, and up to here the claim is partly so

    @property
    def words(self) -> str:
        cut = "" if self.near is None else f" (a cut of ours; partly up to {self.near:g})"
        return f"{self.quantity.name} of {', '.join(self.rows)} at most {self.level:g}{cut}{_among(self.columns)}"

    def parts(self, record: StudyRecord) -> list[Statement]:
        return [self._part(record, row, column) for row in self.rows for column in self.columns]

    def _part(self, record: StudyRecord, row: str, column: str) -> Statement:
        statement = replace(self, rows=(row,), columns=(column,), near=None).words
        numbers = values(record, self.quantity, row, column)
        if isinstance(numbers, Obstacle):
            return Statement(statement, numbers.status, numbers.reason)
        diverged = [seed for seed, value in numbers.items() if not math.isfinite(value)]
        if diverged:
            return Statement(statement, "fails", f"diverged: {seeds_in_words(diverged)}", n=len(numbers))
        largest, n = max(numbers.values()), len(numbers)
        reason = f"the largest of {n} seeds is {largest:.3g}" if n > 1 else f"the only seed has {largest:.3g}"
        part = Statement(statement, "fails", reason, f"{largest:.3g}", n=n)
        if largest > (self.level if self.near is None else self.near):
            return part
        if lost := without_a_number(record, self.quantity, row, column):
            return replace(part, status="unclear", reason=_lost(lost))
        if largest > self.level:
            return replace(part, status="partly", reason=f"{reason}: near the cut of {self.level:g}, which is ours")
        return replace(part, status="holds", weakness=(f"{self.quantity.name} at most {self.level:g}", largest))


@dataclass(frozen=True)
class Conditional(Rule):
    """Judge by `rule` where the record has no obstacle to it; elsewhere the parts that have runs are unclear."""

    rule: Rule

    @property
    @abstractmethod
    def condition(self) -> str: ...

    @abstractmethod
    def obstacle(self, record: StudyRecord) -> str | None:
        """Return why the record cannot tell; None where it can."""

    @property
    def words(self) -> str:
        return f"{self.rule.words}; {self.condition}"

    def parts(self, record: StudyRecord) -> list[Statement]:
        parts, why = self.rule.parts(record), self.obstacle(record)
        return parts if why is None else [cannot_tell(part, why) for part in parts]

    @property
    def n_comparisons(self) -> int:
        return self.rule.n_comparisons

    def corrected(self, n_tests: int) -> Rule:
        return replace(self, rule=self.rule.corrected(n_tests))


@dataclass(frozen=True)
class InRegime(Conditional):
    """Judge by `rule` where the mean of a quantity lies within limits, of each of these rows in each of the columns."""

    rows: tuple[str, ...]
    quantity: Quantity
    why: str  # the reason why nothing can be told outside the limits
    least: float = -math.inf
    most: float = math.inf
    columns: tuple[str, ...] = ("",)

    @property
    def condition(self) -> str:
        limits = (("at least", self.least), ("at most", self.most))
        limit = " and ".join(f"{name} {value:g}" for name, value in limits if math.isfinite(value))
        rows = f"{', '.join(self.rows)}{_among(self.columns)}"
        return f"regime not reached unless {self.quantity.name} of {rows} is {limit}"

    def obstacle(self, record: StudyRecord) -> str | None:
        for row, column in itertools.product(self.rows, self.columns):
            numbers, where = values(record, self.quantity, row, column), f"{row}{_among((column,))}"
            if isinstance(numbers, Obstacle):
                return f"cannot tell: these runs did not record {self.quantity.name} of {where}; new runs do"
            mean = math.fsum(numbers.values()) / len(numbers)
            if not self.least <= mean <= self.most:
                return f"regime not reached: {self.quantity.name} of {where} is {mean:.3g}, and {self.why}"
        return None


@dataclass(frozen=True)
class WhereShown(Conditional):
    """Judge by `rule` where the premise is shown by the same record."""

    premise: Rule
    why: str

    @property
    def condition(self) -> str:
        return f"regime not reached unless {self.premise.words}"

    def obstacle(self, record: StudyRecord) -> str | None:
        missing = [part for part in self.premise.parts(record) if part.status != "holds"]
        return f"regime not reached: {missing[0].statement} is not shown, and {self.why}" if missing else None


def cannot_tell(part: Statement, why: str) -> Statement:
    """Return the part as unclear, unless it has no runs or decides nothing."""
    if part.status in (None, "not run"):
        return part
    return replace(part, status="unclear", reason=why, to_show=None, to_exclude=None)


def measured(statement: str, comparison: Compared, quantity: Quantity) -> Statement:
    """Return the measured difference as a statement that is still unclear, or that has the obstacle's status."""
    if len(comparison.rates) == 2:  # the rows differ in the rate that a pilot chose for them
        statement += f" (learning rates {comparison.rates[0]:g} and {comparison.rates[1]:g})"
    n, apart = len(comparison.differences), ""
    if comparison.apart:
        beside = quantity.shown(mean_interval(comparison.apart))
        what = f"{figure(beside, quantity.unit)} {bounds(beside)}".strip()
        pairs = "a pair" if len(comparison.apart) == 1 else f"{len(comparison.apart)} pairs"
        apart = f"{pairs} of two devices: {what}"
    part = Statement(statement, "unclear", unit=quantity.unit, n=n, quantity=quantity.name, apart=apart)
    if comparison.differences and all(map(math.isfinite, comparison.differences.values())):
        interval = quantity.shown(mean_interval(comparison.differences))
        part = replace(part, ours=figure(interval, quantity.unit), interval=interval)
    if comparison.obstacle is None:
        return part
    return replace(part, status=comparison.obstacle.status, reason=comparison.obstacle.reason)


def as_judged(part: Statement, verdict: Verdict, quantity: Quantity) -> Statement:
    """Return the part with the judge's interval, which counts the looks."""
    assert verdict.measured is not None
    interval = quantity.shown(verdict.measured)
    return replace(part, interval=interval, ours=figure(interval, quantity.unit), n=verdict.n)


def pairs_in_words(comparison: Compared) -> str:
    n, looks = len(comparison.differences), comparison.looks
    return f"{n} pairs" + (f" at the last of looks at {', '.join(map(str, looks))}" if looks else "")


def _asked(compared: Mapping[Pair, Compared], only_above: bool = False) -> dict[Pair, Comparison]:
    """Return what the judge compares. The claimed direction is the better one."""
    return {
        pair: Comparison(
            pair.of,
            tuple(comparison.differences.values()),
            margin=pair.margin,
            only_above=only_above,
            lower_is_better=pair.effect < 0,
            looks=comparison.looks,
        )
        for pair, comparison in compared.items()
        if comparison.testable
    }


def direction(pair: Pair) -> str:
    return f"{pair.of} {'below' if pair.effect < 0 else 'above'} {pair.against}{pair.place}"


def _among(columns: tuple[str, ...]) -> str:
    return f" ({', '.join(columns)})" if any(columns) else ""


def in_unit(margin: float, quantity: Quantity) -> str:
    if quantity.as_ratio:
        return f"{100 * math.expm1(margin):.2g}%"
    return f"{margin:.2g}{' ' if quantity.unit else ''}{quantity.unit}"


def seeds_in_words(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _lost(seeds: Sequence[int]) -> str:
    return (
        f"{seeds_in_words(seeds)} finished without this number, which may not have been finite: new runs would decide"
    )
