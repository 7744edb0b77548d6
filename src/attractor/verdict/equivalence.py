"""Test equivalence by two one-sided tests (TOST), which can show "no difference"; a t test that shows nothing cannot.

For a margin m > 0 that was named before the runs, both of

    truth <= -m   and   truth >= m                                                                          (1)

are tested, each at the error rate; the p value is the larger of the two. It lies below the rate exactly where the
interval of confidence 1 - 2 rate (90% for a rate of 0.05) lies within the margin (Schuirmann 1987).
"""

import math
from dataclasses import dataclass

from attractor.errors import InputError
from attractor.verdict.intervals import Estimate, Interval, Summary, Values, mean_estimate, summary
from attractor.verdict.power import require_error_rate
from attractor.verdict.t_tests import welch_estimate


@dataclass(frozen=True)
class Equivalence:
    """Whether a difference is shown to be smaller than the margin; `equivalent` and `p` are None for lack of data.

    `level` is the error rate; `interval` has confidence 1 - 2 level.
    """

    interval: Interval
    margin: float
    degrees_of_freedom: float | None
    p: float | None
    level: float

    @property
    def equivalent(self) -> bool | None:
        return None if self.p is None else self.p < self.level

    @property
    def estimate(self) -> float:
        return self.interval.mean

    @property
    def n(self) -> int:
        return self.interval.n


def paired_equivalence(differences: Values, margin: float, level: float = 0.05) -> Equivalence:
    """Test whether the mean of `seed_differences` lies within ± margin."""
    return _tested(mean_estimate(differences), margin, level)


def welch_equivalence(
    of: Values | Summary, against: Values | Summary, margin: float, level: float = 0.05
) -> Equivalence:
    """Test whether the means of two unpaired groups, or of two published figures, differ by less than the margin."""
    return _tested(welch_estimate(summary(of), summary(against)), margin, level)


def _tested(estimate: Estimate, margin: float, level: float) -> Equivalence:
    if not 0 < margin < math.inf:
        raise InputError(f"margin must be a number above zero: {margin}; name the smallest difference that matters")
    require_error_rate(level)
    p = estimate.p_within(margin)  # (1)
    return Equivalence(estimate.interval(1 - 2 * level), margin, estimate.degrees_of_freedom, p, level)
