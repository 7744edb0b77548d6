"""The tests of spread agree with scipy's and do not depend on location or unit; their intervals cover the truth."""

import math

import numpy as np
import pytest
from scipy import stats

from attractor.verdict.intervals import Summary, summary
from attractor.verdict.spread import brown_forsythe, spread_ratio


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("n", "m"), [(3, 3), (10, 4), (5, 20)])
def test_both_tests_agree_with_scipy(seed, n, m):
    """Criterion: Brown and Forsythe's test is scipy's test of Levene about the median."""
    rng = np.random.default_rng(seed)
    of, against = rng.normal(0, 2, n), rng.normal(0, 1, m)
    found = spread_ratio(of, against)
    distribution = stats.f(n - 1, m - 1)
    assert found.ratio == pytest.approx(of.std(ddof=1) / against.std(ddof=1))
    assert found.statistic == pytest.approx(found.ratio**2)
    assert found.p == pytest.approx(2 * min(distribution.cdf(found.statistic), distribution.sf(found.statistic)))
    low, high = found.statistic / distribution.ppf([0.975, 0.025])
    assert (found.interval.low, found.interval.high) == pytest.approx((math.sqrt(low), math.sqrt(high)))
    assert (found.p < 0.05) == (not found.interval.low <= 1 <= found.interval.high)
    assert found == spread_ratio(summary(of), summary(against))
    robust, expected = brown_forsythe(of, against), stats.levene(of, against, center="median")
    assert (robust.statistic, robust.p) == pytest.approx((expected.statistic, expected.pvalue))
    assert robust.degrees_of_freedom == (1, n + m - 2)


def test_exactly_the_ratios_outside_the_undetectable_range_are_shown():
    low, high = spread_ratio(Summary(0, 1, 10), Summary(0, 1, 6)).not_shown
    for ratio, shown in ((1.01 * high, True), (0.99 * high, False), (1.01 * low, False), (0.99 * low, True)):
        found = spread_ratio(Summary(0, ratio, 10), Summary(0, 1, 6))
        assert (found.p < 0.05) == shown


@pytest.mark.parametrize(("n", "factor"), [(3, 6.2), (10, 2.0)])
def test_the_documented_factors_of_spread_are_the_smallest_detectable(n, factor):
    found = spread_ratio(Summary(0, 1, n), Summary(0, 1, n))
    assert found.not_shown == pytest.approx((1 / factor, factor), rel=0.01)
    assert found.p == pytest.approx(1)


def test_long_tails_mislead_the_f_test_and_not_brown_forsythe():
    """Criterion: for equal spreads of 30 values each from a t distribution with 3 degrees of freedom, the F test errs
    in over 15% of samples, and Brown and Forsythe's in under 8%. The level is 5%."""
    draws = np.random.default_rng(0).standard_t(3, (500, 2, 30))
    by_f = np.mean([spread_ratio(of, against).p < 0.05 for of, against in draws])
    by_median = np.mean([brown_forsythe(of, against).p < 0.05 for of, against in draws])
    assert by_f > 0.15
    assert by_median < 0.08


@pytest.mark.parametrize(
    "groups", [([1.0], [1.0, 2.0, 3.0]), ([1.0, math.nan, 2.0], [1.0, 2.0, 3.0]), ([1.0] * 3, [2.0] * 3)], ids=str
)
def test_values_that_determine_no_test_have_no_p_value(groups):
    assert spread_ratio(*groups).p is None
    assert spread_ratio(*groups).interval is None
    assert brown_forsythe(*groups).p is None


def test_rounding_is_no_spread_and_two_values_are_equally_far_from_their_median():
    assert brown_forsythe([0.1, 0.1, 0.3, 0.3], [0.2, 0.2, 0.7, 0.7]).p is None
    assert brown_forsythe([0.3] * 5 + [0.1 + 0.2] * 5, [0.5] * 10).p is None
    assert brown_forsythe([0.0, 1.0], [0.0, 5.0, 9.0]).p is None
    assert spread_ratio([0.0, 1.0], [0.0, 5.0, 9.0]).p is not None
