"""Test a difference of means: Student's test for pairs of seeds, and Welch's test for unpaired groups.

Of two groups with standard deviations s, n and r, m values, and shares a = (s²/n) / e², b = 1 - a:

    e² = s²/n + r²/m                                                                                        (1)
    d = 1 / (a² / (n - 1) + b² / (m - 1))                                                                   (2)

are the squared standard error and the degrees of freedom of the difference of their means (Welch 1947, Satterthwaite).
Pairs remove the noise that two runs of one seed share, so the paired test is preferred. Published figures, mean ± std
over n seeds, have no pairs.

A test that shows nothing does not show "no difference". For that, a margin that was named before the runs is tested
from both sides (Schuirmann 1987): `p_within` is the larger p value of "truth <= -margin" and "truth >= margin". It is
below 0.05 exactly where the interval of confidence 90% lies within the margin.
"""

import math
from dataclasses import dataclass

from attractor.errors import require
from attractor.verdict.intervals import Estimate, Interval, Summary, Values, mean_estimate, summary


@dataclass(frozen=True)
class Difference:
    """A difference, its interval, and the two-sided p value of "no difference"; p is None where the test is undefined.

    `p_within` is that of "a difference of the margin or more". `n` counts the pairs, or the values of both groups.
    """

    interval: Interval
    statistic: float | None
    degrees_of_freedom: float | None
    p: float | None
    p_within: float | None = None

    @property
    def estimate(self) -> float:
        return self.interval.mean

    @property
    def n(self) -> int:
        return self.interval.n


def paired_t_test(differences: Values, level: float = 0.95, margin: float | None = None) -> Difference:
    """Test whether the mean of `seed_differences` is zero, by Student's test, and whether it lies within ± margin."""
    return _tested(mean_estimate(differences), level, margin)


def welch(
    of: Values | Summary, against: Values | Summary, level: float = 0.95, margin: float | None = None
) -> Difference:
    """Test whether two groups, which may differ in size and in spread, have one mean, by Welch's test.

    A group may be a published figure: `Summary(22.55, 0.04, 10)` is 22.55 ± 0.04 over 10 seeds.
    """
    return _tested(welch_estimate(summary(of), summary(against)), level, margin)


def welch_estimate(of: Summary, against: Summary, freedom: float | None = None) -> Estimate:
    """Return the difference by (1) and (2). `freedom` is that of the first deviation where it is not n - 1."""
    value, n = of.mean - against.mean, of.n + against.n
    if of.standard_deviation is None or against.standard_deviation is None or min(of.n, against.n) == 1:
        return Estimate(value, None, None, n)
    first, second = of.standard_deviation**2 / of.n, against.standard_deviation**2 / against.n
    share = first / (first + second) if first + second else 0.5  # no spread at all: any share gives the same interval
    both = 1 / (share**2 / (freedom or of.n - 1) + (1 - share) ** 2 / (against.n - 1))  # (2)
    smaller = min(of.n, against.n, 64)  # beyond 64 the chance is below 1e-37, and its digits would take seconds
    chance = 1 / math.comb(n, smaller)  # that all values of one group lie above all values of the other
    return Estimate(value, math.sqrt(first + second), both, n, chance)  # (1)


def _tested(estimate: Estimate, level: float, margin: float | None) -> Difference:
    rule, advice = "a number above zero", "name the smallest difference that matters"
    require(margin is None or 0 < margin < math.inf, "margin", rule, margin, advice)
    within = None if margin is None else estimate.p_within(margin)
    return Difference(estimate.interval(level), estimate.statistic(), estimate.degrees_of_freedom, estimate.p(), within)
