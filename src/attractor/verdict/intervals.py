"""Compute means over seeds with t intervals. Where the data allow no interval, there is none.

An estimate m of n values with standard error e has, at confidence L and with d degrees of freedom,

    m ± t_d((1 + L) / 2) e                                                                                  (1)

as its interval. For a mean, e = s / √n and d = n - 1.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from attractor.errors import InputError, require

ROUNDING = 1e-12  # share of the largest value, below which values differ by rounding alone: 0.51 - 0.5 and 0.57 - 0.56
Values = Sequence[float] | Mapping[int, float]
"""Plain numbers, or numbers by seed."""


@dataclass(frozen=True)
class Summary:
    """The content of "mean ± std over n seeds". `standard_deviation` (n - 1) is None for a single value."""

    mean: float
    standard_deviation: float | None
    n: int


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval; `low` and `high` are None when there was only one value."""

    mean: float
    low: float | None
    high: float | None
    n: int
    level: float

    @property
    def excludes_zero(self) -> bool:
        """Whether zero lies outside the interval. False where there is no interval or a value is NaN."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    @property
    def half_width(self) -> float | None:
        return None if self.low is None or self.high is None else (self.high - self.low) / 2

    @property
    def decimals(self) -> int:
        """The decimals that show two digits of the half width, or of the mean where there is no interval."""
        return decimals(self.half_width or abs(self.mean))


@dataclass(frozen=True)
class Estimate:
    """An estimate that follows Student's distribution around the truth. A single value has no standard error."""

    value: float
    standard_error: float | None
    degrees_of_freedom: float | None
    n: int
    chance_of_signs: float = 0.0  # that values without any spread all lie on one side of the truth by chance

    def interval(self, level: float) -> Interval:
        require_confidence(level, below_one=False)
        if self.standard_error is None or self.degrees_of_freedom is None:
            return Interval(self.value, None, None, self.n, level)
        if not math.isfinite(self.value + self.standard_error):
            return Interval(self.value, math.nan, math.nan, self.n, level)
        from scipy.special import stdtrit  # the t quantile; scipy.stats would take a second to import

        half_width = float(stdtrit(self.degrees_of_freedom, (1 + level) / 2) * self.standard_error)  # (1)
        return Interval(self.value, self.value - half_width, self.value + half_width, self.n, level)

    def statistic(self, truth: float = 0.0) -> float | None:
        """Return t, the number of standard errors by which the value exceeds `truth`; None where t is undefined."""
        if self.standard_error is None or not math.isfinite(self.value + self.standard_error):
            return None
        distance = self.value - truth
        if self.standard_error == 0:
            return math.copysign(math.inf, distance) if distance else None
        return distance / self.standard_error

    def chance_above(self, statistic: float) -> float:
        """Return P(T >= statistic), given that the truth is the value that the statistic was computed for.

        Values without any spread, which counts of few boards can have, tell no more than their signs. Differences that
        are all zero are those of equal runs, and tell all.
        """
        if statistic == math.inf:
            return self.chance_of_signs if self.value else 0.0
        from scipy.special import stdtr

        return float(stdtr(self.degrees_of_freedom, -statistic))

    def p(self) -> float | None:
        """Return the two-sided p value of "the truth is zero"; None where the test is undefined."""
        statistic = self.statistic()
        return None if statistic is None else min(1.0, 2 * self.chance_above(abs(statistic)))

    def p_within(self, margin: float, only_above: bool = False) -> float | None:
        """Return the p value of "the truth lies outside ± margin", or of "it lies above margin"; small ones refute."""
        below, above = self.statistic(margin), self.statistic(-margin)
        if below is None or (above is None and not only_above):
            return None
        chance = self.chance_above(-below)
        return chance if only_above or above is None else max(self.chance_above(above), chance)

    def p_beyond(self, margin: float) -> float | None:
        """Return the two-sided p value of "the truth lies within ± margin"."""
        above, below = self.statistic(margin), self.statistic(-margin)
        chances = [] if above is None else [self.chance_above(above)]
        chances += [] if below is None else [self.chance_above(-below)]
        return min(1.0, 2 * min(chances)) if chances else None


def require_confidence(level: float, below_one: bool = True) -> None:
    """Refuse what is no confidence. One minus a tiny error rate rounds to 1, and only a t interval may have that."""
    if not 0 < level <= 1 or (below_one and level == 1):
        raise InputError(f"level must lie between 0 and 1: {level}; it is a confidence here: 0.95, not 95")


def decimals(size: float) -> int:
    """Return how many decimals show two digits of a number of that size: none from ten up, six at most."""
    if not math.isfinite(size) or size <= 0:
        return 3
    return min(6, max(0, 1 - math.floor(math.log10(size))))


def as_array(values: Values) -> np.ndarray:
    array = np.asarray(list(values.values()) if isinstance(values, Mapping) else values, dtype=float)
    require(array.ndim == 1, "values", "one for each run, in one dimension", array.shape)
    return array


def summary(values: Values | Summary) -> Summary:
    """Return mean, standard deviation and count. A single NaN makes the mean and the deviation NaN."""
    if isinstance(values, Summary):
        return values
    array = as_array(values)
    n = len(array)
    if not n:
        raise InputError("a mean needs at least one value, and there is none; give at least one finished run")
    finite = bool(np.isfinite(array).all())
    mean = float(array.mean()) if finite else math.nan
    if n == 1:
        return Summary(mean, None, n)
    if not finite:
        return Summary(mean, math.nan, n)
    deviation = float(array.std(ddof=1))
    return Summary(mean, deviation if deviation > ROUNDING * np.abs(array).max() else 0.0, n)


def mean_estimate(values: Values) -> Estimate:
    """Return the mean of the values with its standard error."""
    moments = summary(values)
    if moments.standard_deviation is None:
        return Estimate(moments.mean, None, None, moments.n)
    error = moments.standard_deviation / math.sqrt(moments.n)
    return Estimate(moments.mean, error, moments.n - 1, moments.n, 0.5**moments.n)


def mean_interval(values: Values, level: float = 0.95) -> Interval:
    """Return the mean with Student's t interval, mean ± t(n - 1) s / √n. Equal values give a width of zero."""
    return mean_estimate(values).interval(level)


def seed_differences(of: Mapping[int, float], against: Mapping[int, float]) -> dict[int, float]:
    """Return `of - against` for every common seed, which the paired and sequential tests take.

    Two runs of one seed see the same data in the same order, so most of the noise between seeds cancels.
    """
    for name, numbers in (("of", of), ("against", against)):
        rule = "numbers by seed, {seed: number}"
        require(isinstance(numbers, Mapping), name, rule, type(numbers).__name__, "a pandas Series has to_dict()")
    seeds = sorted(of.keys() & against.keys())
    if not seeds:
        raise InputError(f"a paired difference needs common seeds: {sorted(of)} and {sorted(against)} share none")
    pairs = ([values[seed] for seed in seeds] for values in (of, against))
    return dict(zip(seeds, differences_as_written(*pairs), strict=True))


def differences_as_written(of: Sequence[float], against: Sequence[float]) -> list[float]:
    """Subtract decimal numbers: 2.0501 - 2.0500 is 0.0001, as 2.0500 - 2.0499 is, without rounding the operands."""
    if len(of) > 100:  # of numbers with few decimals, whole numbers of millionths are exact, and faster
        numbers = np.array([of, against])
        millionths = np.round(numbers * 1e6)
        if (np.abs(millionths) < 1e15).all() and (millionths / 1e6 == numbers).all():
            return ((millionths[0] - millionths[1]) / 1e6).tolist()
    return [
        float(Decimal(repr(a)) - Decimal(repr(b))) if math.isfinite(a) and math.isfinite(b) else a - b
        for a, b in zip(map(float, of), map(float, against), strict=True)
    ]


def correlation(of: Sequence[float], against: Sequence[float]) -> float | None:
    """Return the correlation of pairs; None for fewer than three, or where one side has no spread."""
    if len(of) < 3 or any(min(values) == max(values) for values in (of, against)):
        return None
    pairs = np.array([of, against])
    a, b = pairs - pairs.mean(1, keepdims=True)
    size = math.sqrt(a @ a) * math.sqrt(b @ b)
    return float(a @ b) / size if 0 < size < math.inf else None


def paired_difference(of: Mapping[int, float], against: Mapping[int, float], level: float = 0.95) -> Interval:
    """Return the mean of `of - against` over the common seeds, with its interval."""
    return mean_interval(seed_differences(of, against), level)
