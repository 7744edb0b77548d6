"""Rules that only claims of CoupledQK need.

Steadier     holds where the 95% interval of a ratio of standard deviations lies below 1 and the test of Brown and
             Forsythe, which needs no normal distribution, agrees; fails where the interval lies above 1, or
             where it excludes even a quarter of the published reduction (on the logarithmic scale)
AtOneRate    judges by another rule where its rows were trained at one learning rate, since the rate alone changes
             how a model attends; elsewhere "cannot tell". Losses are compared at the best rate of each row instead
Counts       holds where every count is exact, else fails
Contrast     compares the difference of two rows between columns: an interaction. It holds where the weighted sum of
             the columns' differences is shown in the claimed direction, and fails where it is shown to reach less
             than the margin in that direction. Looks are planned, and their levels are those of the sequential test
AtDip        is Differs for the entropy of the layer in which the baseline's entropy dips
"""

import math
from dataclasses import dataclass, replace
from statistics import fmean

from attractor.claims.comparisons import (
    SENSITIVITY_UNKNOWN,
    Compared,
    Obstacle,
    Pair,
    compare,
    instrument,
    learning_rate,
    looks_so_far,
    values,
)
from attractor.claims.rules import (
    LEVEL,
    SHARE,
    Conditional,
    Differs,
    Reported,
    as_judged,
    direction,
    in_unit,
    measured,
    seeds_in_words,
)
from attractor.claims.verdicts import P_VALUE, Rule, Statement, Status, figure
from attractor.runs.quantity import LOSS, Quantity, entropy
from attractor.runs.study_record import StudyRecord
from attractor.verdict.family import Comparison, judge_family
from attractor.verdict.outcome import Verdict
from attractor.verdict.power import POWER
from attractor.verdict.spread import brown_forsythe, spread_ratio
from attractor.verdict.words import p_in_words

PUBLISHED_DIP = 2  # the layer at which the paper has the dip, counted from 0
FEWEST_LAYERS = PUBLISHED_DIP + 2  # so that this layer has neighbours on both sides


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
                return replace(part, reason=f"diverged: {name} ({seeds_in_words(diverged)}); such a row has no spread")
        if ratio.interval is None or ratio.interval.low is None or ratio.interval.high is None or ratio.p is None:
            return replace(part, reason="no spread to compare")
        if ratio.interval.low > 1:
            return replace(part, status="fails", reason=f"the opposite is shown with {seeds}, {p_in_words(ratio.p)}")
        if ratio.interval.low > self.least:
            excluded = f"shown with {seeds} to be above {self.least:.2f}x: a reduction that small is not the claimed"
            return replace(part, status="fails", reason=excluded)
        if ratio.interval.high < 1 and agreeing is not None and agreeing < LEVEL:
            p = max(ratio.p, agreeing)
            return replace(
                part, status="holds", reason=f"shown with {seeds}, {p_in_words(p)} by both tests", weakness=(P_VALUE, p)
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
class Contrast(Rule):
    """A difference of two rows that depends on the column, by a sum over columns c, seed by seed:

    d_s = sum over c of weight_c (x_sc(of) - x_sc(against))                                                  (1)

    `pair` has the claimed sum as its effect, and the margin.
    """

    pair: Pair
    weights: tuple[tuple[str, float], ...]  # by column
    looks: tuple[int, ...] = ()  # planned numbers of pairs at which the sum is judged; the last ends the study
    quantity: Quantity = LOSS

    @property
    def words(self) -> str:
        less = f"fails where less than {in_unit(self.pair.margin, self.quantity)} is shown"
        looks = f"; looks at {', '.join(map(str, self.looks))} pairs" if self.looks else ""
        return f"{self.quantity.name}: {self._statement}; {less}{looks}"

    @property
    def n_comparisons(self) -> int:
        return 1

    @property
    def _statement(self) -> str:
        columns = " ".join(f"{weight:+g} ({column})" for column, weight in self.weights)
        return (
            f"{self.pair.of} - {self.pair.against} summed as {columns} {'below' if self.pair.effect < 0 else 'above'} 0"
        )

    def parts(self, record: StudyRecord) -> list[Statement]:
        compared = self._compared(record)
        seeds = sorted(set.intersection(*(set(of_column.differences) for of_column in compared)))
        sums = {  # (1)
            seed: sum(w * c.differences[seed] for (_, w), c in zip(self.weights, compared, strict=True))
            for seed in seeds
        }
        obstacles = [of_column.obstacle for of_column in compared if of_column.obstacle is not None]
        part = measured(self._statement, Compared(sums, obstacles[0] if obstacles else None), self.quantity)
        if obstacles:
            return [part]
        first = self.looks[0] if self.looks else 2
        if len(seeds) < first:
            return [replace(part, reason=f"{len(seeds)} pairs, but the first look is planned at {first} pairs")]
        looks = self.looks or looks_so_far(record, len(seeds))
        asked = Comparison(self.pair.of, tuple(sums.values())[: max((*self.looks, 0)) or None], looks=looks)
        return [self._judged(part, judge_family({"sum": asked}, level=1 - LEVEL)["sum"], looks)]

    def _compared(self, record: StudyRecord) -> list[Compared]:
        """Return the differences in the order of the weights."""
        return [compare(record, self.quantity, replace(self.pair, column=column)) for column, _ in self.weights]

    def _judged(self, part: Statement, verdict: Verdict, looks: tuple[int, ...]) -> Statement:
        part, sign = as_judged(part, verdict, self.quantity), 1 if self.pair.effect > 0 else -1
        assert verdict.low is not None
        assert verdict.high is not None
        least, most = sorted((sign * verdict.low, sign * verdict.high))
        kind = "planned looks" if self.looks else "looks"
        seen = f"with {verdict.n} pairs" + (f", at a level corrected for {len(looks)} {kind}" if looks else "")
        if most < self.pair.margin:
            return replace(part, status="fails", reason=f"shown to be less than the margin {seen}")
        if least > 0:
            return replace(part, status="holds", reason=f"shown {seen}", weakness=(P_VALUE, verdict.p or 0.0))
        left = "the next look may" if verdict.n < max((*self.looks, 0)) else "a further study would have to"
        return replace(part, reason=f"not shown {seen}; {left} decide")


@dataclass(frozen=True)
class AtOneRate(Conditional):
    """Judge by `rule` where all rows were trained at one learning rate; the verdict elsewhere is unclear."""

    rows: tuple[str, ...]

    @property
    def condition(self) -> str:
        return f"cannot tell unless {' and '.join(self.rows)} were trained at one learning rate"

    def obstacle(self, record: StudyRecord) -> str | None:
        by_column = (
            {rate for row in self.rows if (rate := learning_rate(record, row, column)) is not None}
            for column in record.design.columns
        )
        rates = next((known for known in by_column if len(known) > 1), None)
        if rates is None:
            return None
        return (
            f"cannot tell: the learning rates are {' and '.join(f'{rate:g}' for rate in sorted(rates))}, and the rate "
            "alone changes how a model attends; runs at one rate would decide"
        )


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
        return f"entropy of the layer {where}: {direction(self.pair)} (margin {in_unit(self.pair.margin, entropy(0))})"

    def parts(self, record: StudyRecord) -> list[Statement]:
        statement = f"entropy at the dip: {direction(self.pair)}"
        profile: list[float] = []
        while not isinstance(
            entropies := values(record, entropy(len(profile)), self.pair.against, self.pair.column), Obstacle
        ):
            profile.append(fmean(entropies.values()))
        if not profile:
            return [Statement(statement, entropies.status, entropies.reason)]
        blind = instrument(record, entropy(0), self.pair.column)
        if len(profile) < FEWEST_LAYERS:
            reason = (
                f"{len(profile)} layers have no inner layer {PUBLISHED_DIP}; "
                f"models of {FEWEST_LAYERS} layers or more would decide"
            )
            return [Statement(statement, "unclear", reason)]
        layer = deepest_dip(profile)
        if layer is None and blind is not None and not blind.reason.startswith(SENSITIVITY_UNKNOWN):
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


def deepest_dip(profile: list[float]) -> int | None:
    depths = {
        layer: min(profile[layer - 1], profile[layer + 1]) - profile[layer] for layer in range(1, len(profile) - 1)
    }
    deepest = max(depths, key=lambda layer: depths[layer], default=None)
    return deepest if deepest is not None and depths[deepest] > 0 else None
