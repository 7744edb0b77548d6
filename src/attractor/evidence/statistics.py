"""Means over seeds, with t intervals. Where the data allow no interval, none is invented."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attractor.errors import InputError


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
        """False also where there is no interval, or where a value was not a number: nothing has been shown then."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    @property
    def half_width(self) -> float | None:
        return None if self.low is None or self.high is None else (self.high - self.low) / 2


def mean_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """The mean with Student's t interval: mean ± t(n - 1) s / √n. Equal values give an interval of width zero."""
    if not len(values):
        raise InputError("a mean needs at least one value, and there is none; give at least one finished run")
    n = len(values)
    finite = bool(np.isfinite(values).all())
    mean = float(np.mean(values)) if finite else math.nan
    if n == 1:
        return Interval(mean, None, None, n, level)
    if not finite:
        return Interval(mean, math.nan, math.nan, n, level)
    from scipy.special import stdtrit  # the t quantile; scipy.stats would take a second to import

    half_width = float(stdtrit(n - 1, (1 + level) / 2) * np.std(values, ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half_width, mean + half_width, n, level)


def paired_difference(of: Mapping[int, float], against: Mapping[int, float], level: float = 0.95) -> Interval:
    """`of - against` over the seeds that both have.

    Two runs of one seed see the same data in the same order, so most of the noise between seeds cancels.
    """
    seeds = sorted(of.keys() & against.keys())
    if not seeds:
        raise InputError(f"a paired difference needs common seeds: {sorted(of)} and {sorted(against)} share none")
    return mean_interval([of[seed] - against[seed] for seed in seeds], level)


def smallest_detectable(differences: Sequence[float], level: float = 0.95) -> float | None:
    """The smallest mean difference that this many values with this spread would have shown; None for a single value.

    It is the half width of the interval: a measured mean beyond it excludes zero, one within it does not. It speaks of
    the measured mean; a true difference of just this size would be found about every second time.
    """
    return mean_interval(differences, level).half_width
