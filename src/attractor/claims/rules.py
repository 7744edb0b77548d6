"""The rules that judge claims. The ledger marks the rules that were written after the runs that they judge.

All differences are paired by seed. The margin m is the smallest effect that would matter, named beforehand. Where any
single comparison would decide a rule, Holm's correction covers all comparisons of the rule.

    Differs      holds where the difference is shown in the claimed direction (p < 0.05); fails where the opposite is
                 shown, or where the 95% interval lies within ± m: so small a lead is not the claimed one
    Equivalent   holds where the difference is shown to lie within ± m (two one-sided tests at 0.05) and the premises
                 hold, without which "no difference" says nothing; fails where the 95% interval lies outside ± m
    Contrast     compares the difference of two rows between columns: an interaction. It holds where the weighted sum of
                 the columns' differences is shown in the claimed direction, and fails where it is shown to reach less
                 than the margin in that direction. Looks are planned, and their levels are those of the sequential test
    Steadier     holds where the 95% interval of a ratio of standard deviations lies below 1 and the test of Brown and
                 Forsythe, which needs no normal distribution, agrees; fails where the interval lies above 1, or
                 where it excludes even a quarter of the published reduction (on the logarithmic scale)
    Costs        holds where the 95% interval of the cost lies at or below the published cost plus m; fails where it
                 lies above
    Reaches      holds where every seed reaches the level, fails where the 95% interval of the mean lies below
    Stays        holds where every seed stays at or below the level, else fails
    OfTheBest    is Stays for the row that is best by another quantity, and holds only where good rows are shown to
                 lie lower than bad ones (Welch's test over rows); says nothing where no row is good, or none is bad
    Sensitive    judges by another rule where a second quantity shows that the setting can tell rows apart; elsewhere
                 the verdict is unclear ("cannot tell")
    AtOneRate    judges by another rule where its rows were trained at one learning rate, since the rate alone changes
                 how a model attends; elsewhere "cannot tell". Losses are compared at the best rate of each row instead
    InRegime     judges by another rule where runs have as many tokens for each parameter as the paper's runs have when
                 their effect begins; below, the verdict is unclear ("regime not reached")
    WhereActing  judges by another rule at one of several weights of a penalty: of those at which the penalty could
                 have acted, the one that is best by another quantity; "cannot tell" where it could act at none
    AtDip        is Differs for the entropy of the layer in which the baseline's entropy dips
    Shown, Reported    are a quantity and a difference that stand beside a verdict and have no influence on it
    StableAtMore holds where a row trains stably at more learning rates of a sweep, fails as Differs does
    Counts       holds where every count is exact, else fails
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from attractor.claims.comparisons import (
    Compared,
    Control,
    Obstacle,
    Pair,
    by_round,
    cell_of,
    compare,
    instrument,
    learning_rate,
    values,
    without_a_number,
)
from attractor.claims.verdicts import P_VALUE, Rule, Statement, Status, figure
from attractor.runs.quantity import INSTABILITIES, LOSS, Quantity, entropy
from attractor.runs.study_record import Cell, Outcome, StudyRecord
from attractor.verdict.equivalence import paired_equivalence, welch_equivalence
from attractor.verdict.intervals import mean_estimate, mean_interval, summary
from attractor.verdict.multiplicity import holm
from attractor.verdict.power import POWER, pairs_needed
from attractor.verdict.sequential import Sequential
from attractor.verdict.spread import brown_forsythe, spread_ratio
from attractor.verdict.t_tests import paired_t_test, welch

LEVEL = 0.05
SHARE = 1 / 4  # the margin as a share of the published effect
PUBLISHED_DIP = 2  # the layer at which the paper has the dip, counted from 0
FEWEST_LAYERS = PUBLISHED_DIP + 2  # so that this layer has neighbours on both sides
TOLERANCE = 0.1  # the share by which a stable run's loss may exceed the row's best loss over all rates


@dataclass(frozen=True)
class Differs(Rule):
    pairs: tuple[Pair, ...]
    quantity: Quantity = LOSS
    control: Control | None = None  # replaces the study's control

    @property
    def words(self) -> str:
        comparisons = [f"{_direction(pair)} (margin {_margin(pair.margin, self.quantity)})" for pair in self.pairs]
        return f"{self.quantity.name}: {', '.join(comparisons)}"

    def parts(self, record: StudyRecord) -> list[Statement]:
        compared = {pair: compare(record, self.quantity, pair, self.control) for pair in self.pairs}
        testable = {pair: comparison.differences for pair, comparison in compared.items() if comparison.testable}
        shown = holm({pair: paired_t_test(differences).p for pair, differences in testable.items()})
        within = holm({pair: paired_equivalence(d, pair.margin, LEVEL / 2).p for pair, d in testable.items()})
        return [
            self._part(pair, comparison, shown.get(pair), within.get(pair)) for pair, comparison in compared.items()
        ]

    def _part(self, pair: Pair, comparison: Compared, p: float | None, p_within: float | None) -> Statement:
        part = _measured(_direction(pair), comparison, self.quantity)
        if comparison.obstacle is not None:
            return part
        n = len(comparison.differences)
        if p_within is not None and p_within < LEVEL / 2:
            return replace(part, status="fails", reason=f"shown to lie within {_margin(pair.margin, self.quantity)}")
        if p is not None and p < LEVEL:
            if (fmean(comparison.differences.values()) < 0) == (pair.effect < 0):
                return replace(part, status="holds", reason=f"shown with {n} pairs, {_p(p)}", weakness=(P_VALUE, p))
            return replace(part, status="fails", reason=f"the opposite is shown with {n} pairs, {_p(p)}")
        tests = len(self.pairs)
        excluded = _excludes(comparison.differences, pair.effect)
        return replace(
            part,
            reason=f"not shown with {n} pairs"
            + (", whose 95% interval excludes the effect in question" if excluded else ""),
            to_show=None if excluded else _pairs_to_show(comparison.differences, pair.effect, LEVEL / tests),
            to_exclude=_pairs_to_exclude(comparison.differences, pair.margin, LEVEL / 2 / tests),
        )


@dataclass(frozen=True)
class Equivalent(Rule):
    """`premises` must hold for "no difference" to say anything; for instance, the parts that are alike must have an
    effect at all. With `only_above` the claim denies an advantage only, so a difference below -m does not refute it."""

    pairs: tuple[Pair, ...]
    quantity: Quantity = LOSS
    premises: tuple[Rule, ...] = ()
    only_above: bool = False
    control: Control | None = None

    @property
    def words(self) -> str:
        by = "by more than" if self.only_above else "within"
        comparisons = [f"{self._statement(pair)} {by} {_margin(pair.margin, self.quantity)}" for pair in self.pairs]
        premises = "".join(f". Premise: {premise.words}" for premise in self.premises)
        return f"{self.quantity.name}: {', '.join(comparisons)}{premises}"

    def parts(self, record: StudyRecord) -> list[Statement]:
        compared = {pair: compare(record, self.quantity, pair, self.control) for pair in self.pairs}
        testable = {pair: comparison.differences for pair, comparison in compared.items() if comparison.testable}
        beyond = holm({pair: self._p_beyond(differences, pair.margin) for pair, differences in testable.items()})
        missing = self._missing_premise(record)
        return [self._part(pair, comparison, beyond.get(pair), missing) for pair, comparison in compared.items()]

    def _statement(self, pair: Pair) -> str:
        return f"{pair.of} {'no higher than' if self.only_above else 'equal to'} {pair.against}{pair.place}"

    def _p_within(self, differences: Mapping[int, float], margin: float) -> float | None:
        if not self.only_above:
            return paired_equivalence(differences, margin, LEVEL).p
        estimate = mean_estimate(differences)
        statistic = estimate.statistic(margin)
        return None if statistic is None else estimate.chance_above(-statistic)

    def _p_beyond(self, differences: Mapping[int, float], margin: float) -> float | None:
        """Return a p value that is below 0.05 exactly where the 95% interval lies outside the margin."""
        estimate = mean_estimate(differences)
        above, below = estimate.statistic(margin), estimate.statistic(-margin)
        chances = [] if above is None else [estimate.chance_above(above)]
        chances += [] if below is None else [estimate.chance_above(-below)]
        return min(1.0, 2 * min(chances)) if chances else None

    def _part(self, pair: Pair, comparison: Compared, p_beyond: float | None, missing: str) -> Statement:
        part = _measured(self._statement(pair), comparison, self.quantity)
        if comparison.obstacle is not None:
            return part
        n = len(comparison.differences)
        p = self._p_within(comparison.differences, pair.margin)
        margin = _margin(pair.margin, self.quantity)
        bound = f"at most {margin} higher" if self.only_above else f"within {margin}"
        if p is not None and p < LEVEL:
            within = f"{bound} with {n} pairs, {_p(p)}"
            if missing:
                return replace(part, reason=f"{within}, but the premise is not shown: {missing}")
            return replace(part, status="holds", reason=within, weakness=(P_VALUE, p))
        if p_beyond is not None and p_beyond < LEVEL:
            return replace(part, status="fails", reason=f"a difference beyond {margin} is shown with {n} pairs")
        needed = _pairs_to_exclude(comparison.differences, pair.margin, LEVEL, n_tests=1 if self.only_above else 2)
        shown = f"not shown to {'be' if self.only_above else 'lie'} {bound} with {n} pairs"
        return replace(part, reason=shown, to_exclude=needed)

    def _missing_premise(self, record: StudyRecord) -> str:
        """Name the premises that are not shown: without any effect of coupling, equal step counts say nothing."""
        missing = [part for premise in self.premises for part in premise.parts(record) if part.status != "holds"]
        return "; ".join(f"{part.statement} ({part.reason})" for part in missing)


@dataclass(frozen=True)
class Contrast(Rule):
    """A difference of two rows that depends on the column, by a sum over columns c, seed by seed:

    d_s = sum over c of weight_c (x_sc(of) - x_sc(against))                                                  (1)

    `pair` has the claimed sum as its effect, and the margin.
    """

    pair: Pair
    weights: tuple[tuple[str, float], ...]  # by column
    looks: tuple[int, ...]  # numbers of pairs at which the sum is judged; the last ends the study
    quantity: Quantity = LOSS

    @property
    def words(self) -> str:
        less = f"fails where less than {_margin(self.pair.margin, self.quantity)} is shown"
        return f"{self.quantity.name}: {self._statement}; {less}; looks at {', '.join(map(str, self.looks))} pairs"

    @property
    def _statement(self) -> str:
        columns = " ".join(f"{weight:+g} ({column})" for column, weight in self.weights)
        return (
            f"{self.pair.of} - {self.pair.against} summed as {columns} {'below' if self.pair.effect < 0 else 'above'} 0"
        )

    def parts(self, record: StudyRecord) -> list[Statement]:
        compared = [compare(record, self.quantity, replace(self.pair, column=column)) for column, _ in self.weights]
        seeds = sorted(set.intersection(*(set(of_column.differences) for of_column in compared)))
        sums = {  # (1)
            seed: sum(w * c.differences[seed] for (_, w), c in zip(self.weights, compared, strict=True))
            for seed in seeds
        }
        obstacles = [of_column.obstacle for of_column in compared if of_column.obstacle is not None]
        part = _measured(self._statement, Compared(sums, obstacles[0] if obstacles else None), self.quantity)
        if obstacles:
            return [part]
        if len(seeds) < self.looks[0]:
            return [replace(part, reason=f"{len(seeds)} pairs, but the first look is planned at {self.looks[0]} pairs")]
        return [self._judged(part, list(sums.values())[: self.looks[-1]])]

    def _judged(self, part: Statement, sums: Sequence[float]) -> Statement:
        plan = Sequential(LEVEL, 0.0, self.looks[-1], looks=self.looks)
        interval = self.quantity.shown(plan.look(sums).interval)
        assert interval.low is not None
        assert interval.high is not None
        part = replace(part, interval=interval, ours=figure(interval, self.quantity.unit), n=interval.n)
        sign = 1 if self.pair.effect > 0 else -1
        least, most = sorted((sign * interval.low, sign * interval.high))
        seen = f"with {interval.n} pairs, at a level corrected for {len(self.looks)} planned looks"
        if most < self.pair.margin:
            return replace(part, status="fails", reason=f"shown to be less than the margin {seen}")
        if least > 0:
            return replace(part, status="holds", reason=f"shown {seen}")
        left = "the next look may" if interval.n < self.looks[-1] else "a further study would have to"
        return replace(part, reason=f"not shown {seen}; {left} decide")


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
        return [replace(_measured(statements[p], compared[p], self.quantity), status=None) for p in self.pairs]


@dataclass(frozen=True)
class Steadier(Rule):
    """The standard deviation of losses over seeds. As losses are logarithms, it does not depend on their level."""

    of: tuple[str, ...]
    against: str
    published: float  # the ratio of standard deviations, `of` over `against`
    quantity: Quantity = LOSS

    @property
    def least(self) -> float:
        """The ratio at a quarter of the published reduction, on the logarithmic scale."""
        return float(self.published**SHARE)

    @property
    def words(self) -> str:
        return (
            f"standard deviation of {self.quantity.name} over seeds: {' and '.join(self.of)} below {self.against} "
            f"(published ratio {self.published:.2f}; fails where a ratio below {self.least:.2f} is excluded)"
        )

    def parts(self, record: StudyRecord) -> list[Statement]:
        return [self._part(record, row) for row in self.of]

    def _part(self, record: StudyRecord, row: str) -> Statement:
        statement = f"spread of {row} below that of {self.against}"
        obstacle = compare(record, self.quantity, Pair(row, self.against, -1.0, 0.0)).obstacle
        of, against = (values(record, self.quantity, name, "") for name in (row, self.against))
        if isinstance(of, Obstacle) or isinstance(against, Obstacle):
            assert obstacle is not None
            return Statement(statement, obstacle.status, obstacle.reason)
        ratio, agreeing = spread_ratio(of, against), brown_forsythe(of, against).p
        counts = (len(of), len(against))
        seeds = f"{counts[0]} seeds each" if len(set(counts)) == 1 else f"{counts[0]} and {counts[1]} seeds"
        part = Statement(statement, "unclear", interval=ratio.interval, unit="x", n=min(counts))
        if ratio.interval is not None:
            part = replace(part, ours=figure(ratio.interval, "x"))
        if obstacle is not None:
            return replace(part, status=obstacle.status, reason=obstacle.reason)
        for name, of_row in ((row, of), (self.against, against)):
            if diverged := [seed for seed, value in of_row.items() if not math.isfinite(value)]:
                return replace(part, reason=f"diverged: {name} ({_seeds(diverged)}); such a row has no spread")
        if ratio.interval is None or ratio.interval.low is None or ratio.interval.high is None or ratio.p is None:
            return replace(part, reason="no spread to compare")
        if ratio.interval.low > 1:
            return replace(part, status="fails", reason=f"the opposite is shown with {seeds}, {_p(ratio.p)}")
        if ratio.interval.low > self.least:
            excluded = f"shown with {seeds} to be above {self.least:.2f}x: a reduction that small is not the claimed"
            return replace(part, status="fails", reason=excluded)
        if ratio.interval.high < 1 and agreeing is not None and agreeing < LEVEL:
            p = max(ratio.p, agreeing)
            return replace(
                part, status="holds", reason=f"shown with {seeds}, {_p(p)} by both tests", weakness=(P_VALUE, p)
            )
        return replace(part, reason=f"not shown with {seeds}; {self._seeds_needed()}")

    def _seeds_needed(self) -> str:
        """Say how many seeds show the published ratio: the power of the F test depends only on the number of seeds."""
        from scipy.special import fdtr, fdtri

        n = next(
            n
            for n in range(2, 10_000)
            if fdtr(n - 1, n - 1, fdtri(n - 1, n - 1, LEVEL / 2) / self.published**2) >= POWER
        )
        return (
            f"{n} seeds each would show the published ratio with a power of 80%; a ratio nearer to 1 needs more seeds"
        )


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
        part = _measured(
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

    @property
    def words(self) -> str:
        return f"{self.quantity.name} of {', '.join(self.rows)} at most {self.level:g}{_among(self.columns)}"

    def parts(self, record: StudyRecord) -> list[Statement]:
        return [self._part(record, row, column) for row in self.rows for column in self.columns]

    def _part(self, record: StudyRecord, row: str, column: str) -> Statement:
        statement = replace(self, rows=(row,), columns=(column,)).words
        numbers = values(record, self.quantity, row, column)
        if isinstance(numbers, Obstacle):
            return Statement(statement, numbers.status, numbers.reason)
        diverged = [seed for seed, value in numbers.items() if not math.isfinite(value)]
        if diverged:
            return Statement(statement, "fails", f"diverged: {_seeds(diverged)}", n=len(numbers))
        largest, n = max(numbers.values()), len(numbers)
        reason = f"the largest of {n} seeds is {largest:.3g}" if n > 1 else f"the only seed has {largest:.3g}"
        part = Statement(statement, "fails", reason, f"{largest:.3g}", n=n)
        if largest > self.level:
            return part
        if lost := without_a_number(record, self.quantity, row, column):
            return replace(part, status="unclear", reason=_lost(lost))
        return replace(part, status="holds", weakness=(f"{self.quantity.name} at most {self.level:g}", largest))


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
            f"{_margin(self.margin, self.quantity)}), among those that the scale has of {', '.join(self.rows)}"
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
        test = welch([*good.values()], [*bad.values()])
        part = replace(part, ours=figure(test.interval, self.quantity.unit), interval=test.interval)
        within = welch_equivalence([*good.values()], [*bad.values()], self.margin, LEVEL / 2).p
        if within is not None and within < LEVEL / 2:
            return replace(part, status="fails", reason=f"shown to lie within {_margin(self.margin, self.quantity)}")
        if test.p is None or test.p >= LEVEL:
            return replace(part, reason=f"not shown with {rows}: more rows would decide")
        if test.estimate < 0:
            return replace(part, status="holds", reason=f"shown with {rows}, {_p(test.p)}", weakness=(P_VALUE, test.p))
        return replace(part, status="fails", reason=f"the opposite is shown with {rows}, {_p(test.p)}")


@dataclass(frozen=True)
class Sensitive(Rule):
    """Judge by `rule` where the mean of `quantity` of each row lies within limits; the verdict elsewhere is unclear."""

    rule: Rule
    rows: tuple[str, ...]
    quantity: Quantity
    why: str  # the reason why nothing can be told outside the limits
    least: float = -math.inf
    most: float = math.inf

    @property
    def words(self) -> str:
        limits = (("at least", self.least), ("at most", self.most))
        limit = " and ".join(f"{name} {value:g}" for name, value in limits if math.isfinite(value))
        return f"{self.rule.words}; cannot tell unless {self.quantity.name} of {', '.join(self.rows)} is {limit}"

    def parts(self, record: StudyRecord) -> list[Statement]:
        parts = self.rule.parts(record)
        obstacle = self._obstacle(record)
        return parts if obstacle is None else [_cannot_tell(part, obstacle) for part in parts]

    def _obstacle(self, record: StudyRecord) -> str | None:
        for row in self.rows:
            numbers = values(record, self.quantity, row, "")
            if isinstance(numbers, Obstacle):
                return f"these runs did not record {self.quantity.name} of {row}; new runs do"
            mean = fmean(numbers.values())
            if not self.least <= mean <= self.most:
                return f"{self.quantity.name} of {row} is {mean:.3g}, and {self.why}"
        return None


@dataclass(frozen=True)
class AtOneRate(Rule):
    """Judge by `rule` where all rows were trained at one learning rate; the verdict elsewhere is unclear."""

    rule: Rule
    rows: tuple[str, ...]

    @property
    def words(self) -> str:
        return f"{self.rule.words}; cannot tell unless {' and '.join(self.rows)} were trained at one learning rate"

    def parts(self, record: StudyRecord) -> list[Statement]:
        by_column = (
            {rate for row in self.rows if (rate := learning_rate(record, row, column)) is not None}
            for column in record.design.columns
        )
        rates = next((known for known in by_column if len(known) > 1), None)
        if rates is None:
            return self.rule.parts(record)
        why = (
            f"the learning rates are {' and '.join(f'{rate:g}' for rate in sorted(rates))}, and the rate alone changes "
            "how a model attends; runs at one rate would decide"
        )
        # What is unclear for another reason keeps it, but more seeds at two rates would not help.
        return [
            _cannot_tell(part, why)
            if part.status in ("holds", "fails")
            else replace(part, to_show=None, to_exclude=None)
            for part in self.rule.parts(record)
        ]


@dataclass(frozen=True)
class InRegime(Rule):
    """Judge by `rule` where the runs reach the regime in which the paper sees its effect; elsewhere it is unclear."""

    rule: Rule
    tokens_per_parameter: float

    @property
    def words(self) -> str:
        return f"{self.rule.words}; regime not reached below {self.tokens_per_parameter:.2g} tokens a parameter"

    def parts(self, record: StudyRecord) -> list[Statement]:
        ratios = [
            int(cell.config["n_steps"]) * int(cell.config["batch_size"]) * int(cell.config["seq_len"])
            * int(cell.config.get("accumulation", 1)) / outcome.summary["n_parameters"]
            for cell in record.cells
            if cell.row == record.design.baseline and {"n_steps", "batch_size", "seq_len"} <= cell.config.keys()
            for outcome in cell.outcomes
            if outcome.summary.get("n_parameters")
        ]  # fmt: skip
        if not ratios or min(ratios) >= self.tokens_per_parameter:
            return self.rule.parts(record)
        why = (
            f"regime not reached: these runs have {min(ratios):.2g} tokens a parameter, and the paper's effect begins "
            f"at {self.tokens_per_parameter:.2g}; longer runs would decide"
        )
        return [_cannot_tell(part, why) for part in self.rule.parts(record)]


@dataclass(frozen=True)
class WhereActing(Rule):
    """Judge by `rule` at one weight of a penalty. `rows` have it at several weights; `rule` names the first of them.

    The penalty could have acted at a weight where the mean of `effort` is at least `least`. Of these weights the one
    with the largest mean of `best_by` is judged, which must be another quantity than those that the rule judges.
    """

    rows: tuple[str, ...]
    effort: Quantity
    least: float
    best_by: Quantity
    rule: Rule

    @property
    def words(self) -> str:
        return (
            f"{self.rule.words}; at the weight with the best {self.best_by.name} of those with {self.effort.name} at "
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
        obstacle = f"these runs did not record {self.effort.name} of {self.rows[0]}; new runs do"
        if efforts:
            largest = max(efforts, key=lambda row: efforts[row])
            obstacle = (
                f"{self.effort.name} of {largest} is {efforts[largest]:.2g}, below {self.least:g}, so the penalty "
                "could not have acted; a larger weight would decide"
            )
        return [_cannot_tell(part, obstacle) for part in self.rule.parts(record)]


def _cannot_tell(part: Statement, why: str) -> Statement:
    """Return the part as unclear, unless it has no runs or decides nothing."""
    if part.status in (None, "not run"):
        return part
    return replace(part, status="unclear", reason=f"cannot tell: {why}", to_show=None, to_exclude=None)


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


@dataclass(frozen=True)
class Counts(Rule):
    expected: tuple[tuple[str, str, int], ...]  # row, column, parameters

    @property
    def words(self) -> str:
        return "exactly " + ", ".join(f"{row} ({column}) {count:,}" for row, column, count in self.expected)

    def parts(self, record: StudyRecord) -> list[Statement]:
        return [self._part(record, *count) for count in self.expected]

    def _part(self, record: StudyRecord, row: str, column: str, expected: int) -> Statement:
        counting = Quantity("number of parameters", "n_parameters")
        counted = values(record, counting, row, column)
        statement = f"{row}, {column}"
        if isinstance(counted, Obstacle):
            return Statement(statement, counted.status, counted.reason)
        counts = sorted({round(count) for count in counted.values()})
        ours = " and ".join(f"{count:,}" for count in counts)
        status: Status = "holds" if counts == [expected] else "fails"
        reason = "exact" if status == "holds" else f"{expected:,} was expected"
        return Statement(statement, status, reason, ours, n=len(counted))


@dataclass(frozen=True)
class AtDip(Rule):
    """Entropy at the baseline's dip, which is the inner layer that lies furthest below both its neighbours."""

    pair: Pair
    reported: tuple[Pair, ...] = ()

    @property
    def words(self) -> str:
        where = f"where {self.pair.against} dips below both neighbouring layers"
        return f"entropy of the layer {where}: {_direction(self.pair)} (margin {_margin(self.pair.margin, entropy(0))})"

    def parts(self, record: StudyRecord) -> list[Statement]:
        statement = f"entropy at the dip: {_direction(self.pair)}"
        profile: list[float] = []
        while not isinstance(
            entropies := values(record, entropy(len(profile)), self.pair.against, self.pair.column), Obstacle
        ):
            profile.append(fmean(entropies.values()))
        if not profile:
            return [Statement(statement, entropies.status, entropies.reason)]
        blind, _ = instrument(record, entropy(0), self.pair.column)
        if len(profile) < FEWEST_LAYERS:
            reason = (
                f"{len(profile)} layers have no inner layer {PUBLISHED_DIP}; "
                f"models of {FEWEST_LAYERS} layers or more would decide"
            )
            return [Statement(statement, "unclear", reason)]
        layer = deepest_dip(profile)
        if blind is not None and layer is None:
            return [Statement(statement, blind.status, blind.reason)]
        if layer is None:
            shape = ", ".join(f"{x:.2f}" for x in profile)
            reason = f"{self.pair.against} has no dip here (entropies by layer: {shape})"
            beside = Reported((self.pair, *self.reported), entropy(PUBLISHED_DIP)).parts(record)
            return [Statement(statement, "unclear", reason), *beside]
        quantity = entropy(layer)
        (part,) = Differs((self.pair,), quantity).parts(record)
        return [
            replace(part, statement=f"{statement}, layer {layer}"),
            *Reported(self.reported, quantity).parts(record),
        ]


@dataclass(frozen=True)
class StableAtMore(Rule):
    """The number of learning rates in a sweep over columns at which a row trains stably. A stable run has a finite
    loss, no spikes and no skipped steps, and ends not far above the row's best loss over all rates."""

    pair: Pair
    columns: tuple[str, ...]

    @property
    def words(self) -> str:
        return f"learning rates with stable training, of {', '.join(self.columns)}: {_direction(self.pair)}"

    def parts(self, record: StudyRecord) -> list[Statement]:
        statement = f"learning rates with stable training: {_direction(self.pair)}"
        counts = [self._counts(record, row) for row in (self.pair.of, self.pair.against)]
        for count in counts:
            if isinstance(count, Obstacle):
                return [Statement(statement, count.status, count.reason)]
        of, against = (count for count in counts if not isinstance(count, Obstacle))
        ends = {n for count in (of, against) for n in count.values()}
        if ends <= {0} or ends <= {len(self.columns)}:
            which = "no rate" if ends <= {0} else "every rate"
            return [Statement(statement, "unclear", f"both rows are stable at {which}: a wider sweep would decide")]
        quantity = Quantity("stable learning rates", "stable")
        summaries = {self.pair.of: of, self.pair.against: against}
        cells = tuple(
            Cell(row, "", {}, tuple(Outcome(seed, "", {"stable": n}, {}, ()) for seed, n in by_seed.items()), ())
            for row, by_seed in summaries.items()
        )
        (part,) = Differs((replace(self.pair, column=""),), quantity).parts(replace(record, cells=cells))
        return [replace(part, statement=statement)]

    def _counts(self, record: StudyRecord, row: str) -> dict[int, float] | Obstacle:
        outcomes = {}
        for column in self.columns:
            cell = cell_of(record, row, column)
            if cell is None or not cell.outcomes:
                return Obstacle("not run", f"no finished run of {row} ({column})")
            outcomes[column] = {outcome.seed: outcome for outcome in cell.outcomes}
        seeds = sorted(set.intersection(*(set(by_seed) for by_seed in outcomes.values())))
        if not seeds:
            return Obstacle("unclear", f"no seed of {row} ran at all rates: runs of equal seeds would decide it")
        runs = {seed: [by_seed[seed] for by_seed in outcomes.values()] for seed in seeds}
        for of_seed in runs.values():
            if any(INSTABILITIES.number(run) is None or LOSS.compared(run) is None for run in of_seed):
                return Obstacle("unclear", f"runs of {row} did not record losses or instabilities; new runs do")
        return {seed: float(_n_stable(of_seed)) for seed, of_seed in runs.items()}


def _n_stable(runs: Sequence[Outcome]) -> int:
    losses = [LOSS.compared(run) for run in runs]
    finite = [loss for loss in losses if loss is not None and math.isfinite(loss)]
    worst = (1 + TOLERANCE) * min(finite, default=math.inf)
    calm = (INSTABILITIES.number(run) == 0 for run in runs)
    return sum(quiet and loss is not None and loss <= worst for quiet, loss in zip(calm, losses, strict=True))


def deepest_dip(profile: list[float]) -> int | None:
    depths = {
        layer: min(profile[layer - 1], profile[layer + 1]) - profile[layer] for layer in range(1, len(profile) - 1)
    }
    deepest = max(depths, key=lambda layer: depths[layer], default=None)
    return deepest if deepest is not None and depths[deepest] > 0 else None


def _measured(statement: str, comparison: Compared, quantity: Quantity) -> Statement:
    """Return the measured difference as a statement that is still unclear, or that has the obstacle's status."""
    if len(comparison.rates) == 2:  # the rows differ in the rate that a pilot chose for them
        statement += f" (learning rates {comparison.rates[0]:g} and {comparison.rates[1]:g})"
    statement += "".join(f" (runs of {row} equal those of {other})" for row, other in comparison.doubles)
    n = len(comparison.differences)
    if comparison.n_apart:
        statement += f" ({comparison.n_apart} of {n} pairs are of a CPU and a GPU)"
    part = Statement(statement, "unclear", unit=quantity.unit, n=n, quantity=quantity.name)
    if comparison.differences and all(map(math.isfinite, comparison.differences.values())):
        interval = quantity.shown(mean_interval(comparison.differences))
        part = replace(part, ours=figure(interval, quantity.unit), interval=interval)
    if comparison.obstacle is None:
        return part
    return replace(part, status=comparison.obstacle.status, reason=comparison.obstacle.reason)


def _excludes(differences: Mapping[int, float], effect: float) -> bool:
    """Return whether the claimed effect lies outside the 95% interval of the mean difference."""
    interval = mean_interval(differences)
    return interval.low is not None and interval.high is not None and not interval.low <= effect <= interval.high


def _direction(pair: Pair) -> str:
    return f"{pair.of} {'below' if pair.effect < 0 else 'above'} {pair.against}{pair.place}"


def _among(columns: tuple[str, ...]) -> str:
    return f" ({', '.join(columns)})" if any(columns) else ""


def _margin(margin: float, quantity: Quantity) -> str:
    if quantity.as_ratio:
        return f"{100 * math.expm1(margin):.2g}%"
    return f"{margin:.2g}{' ' if quantity.unit else ''}{quantity.unit}"


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _lost(seeds: Sequence[int]) -> str:
    return f"{_seeds(seeds)} finished without this number, which may not have been finite: new runs would decide"


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def _pairs_to_show(differences: Mapping[int, float], effect: float, level: float) -> int | None:
    spread = summary(differences).standard_deviation
    return pairs_needed(spread, effect, level=level) if spread else None


def _pairs_to_exclude(differences: Mapping[int, float], margin: float, level: float, n_tests: int = 2) -> int | None:
    """Count the pairs that give all one-sided tests at `level` together a power of at least 80%: two have 90% each."""
    spread = summary(differences).standard_deviation
    return pairs_needed(spread, margin, 1 - (1 - POWER) / n_tests, 2 * level) if spread else None
