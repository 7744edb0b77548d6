"""Test a difference in spread, for claims such as "this mechanism varies less from seed to seed".

The ratio of two standard deviations s (n values) and r (m values), and F = s²/r², are judged by

    F ~ F(n - 1, m - 1) σ²/ρ²,   so   √(F / f(1 - α/2)) <= σ/ρ <= √(F / f(α/2))                              (1)

if the values are normal; F is not robust against long tails, whatever n. Brown and Forsythe's test is robust: it is the
ordinary test of means, done on |x - median| (2). Both tests need far more seeds than a difference of means. So every
ratio comes with the range of ratios that would not be shown: a factor of 2 with 10 seeds against 10, of 6 with 3
against 3.
"""

import math
from dataclasses import dataclass

import numpy as np

from attractor.verdict.intervals import ROUNDING, Interval, Summary, Values, as_array, require_confidence, summary


@dataclass(frozen=True)
class SpreadRatio:
    """The ratio of standard deviations, `of` over `against`, its interval, and the F test of "they are equal".

    `not_shown` has the two ends between which no ratio would have been shown with these counts.
    """

    ratio: float | None
    interval: Interval | None
    statistic: float | None
    degrees_of_freedom: tuple[int, int]
    p: float | None
    not_shown: tuple[float, float] | None


@dataclass(frozen=True)
class SpreadTest:
    """Brown and Forsythe's test of "equal spread", which needs no normal distribution."""

    statistic: float | None
    degrees_of_freedom: tuple[int, int]
    p: float | None


def spread_ratio(of: Values | Summary, against: Values | Summary, level: float = 0.95) -> SpreadRatio:
    """Compare two spreads, of values or as published. No test exists for one value, no spread, or a NaN."""
    require_confidence(level)
    of, against = summary(of), summary(against)
    freedom = (of.n - 1, against.n - 1)
    if min(freedom) == 0 or of.standard_deviation is None or against.standard_deviation is None:
        return SpreadRatio(None, None, None, freedom, None, None)
    from scipy.special import fdtr, fdtrc, fdtri

    lower, upper = (float(fdtri(*freedom, share)) for share in ((1 - level) / 2, (1 + level) / 2))
    not_shown = (math.sqrt(lower), math.sqrt(upper))
    spreads = (of.standard_deviation, against.standard_deviation)
    if not all(0 < spread < math.inf for spread in spreads):
        return SpreadRatio(None, None, None, freedom, None, not_shown)
    ratio = spreads[0] / spreads[1]
    statistic = ratio**2
    p = 2 * min(float(fdtr(*freedom, statistic)), float(fdtrc(*freedom, statistic)))
    interval = Interval(ratio, ratio / math.sqrt(upper), ratio / math.sqrt(lower), of.n + against.n, level)  # (1)
    return SpreadRatio(ratio, interval, statistic, freedom, min(p, 1.0), not_shown)


def brown_forsythe(of: Values, against: Values) -> SpreadTest:
    """Test for equal spread. Two values always lie equally far from their median, so each group needs three values."""
    groups = [as_array(of), as_array(against)]
    freedom = (1, sum(map(len, groups)) - 2)
    if min(map(len, groups)) < 3 or not all(np.isfinite(group).all() for group in groups):
        return SpreadTest(None, freedom, None)
    from scipy.special import fdtrc

    distances = [np.abs(group - np.median(group)) for group in groups]  # (2)
    middle = np.concatenate(distances).mean()
    between = sum(len(group) * (group.mean() - middle) ** 2 for group in distances)
    within = sum(((group - group.mean()) ** 2).sum() for group in distances)
    if within <= (ROUNDING * max(np.abs(group).max() for group in groups)) ** 2:
        return SpreadTest(None, freedom, None)
    statistic = float(between * freedom[1] / within)
    return SpreadTest(statistic, freedom, float(fdtrc(*freedom, statistic)))
