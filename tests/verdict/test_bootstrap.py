"""The bootstrap interval agrees with scipy's BCa, is reproducible, and gives a reason where there is no interval."""

import math

import numpy as np
import pytest
from scipy import stats

from attractor.verdict.bootstrap import FEWEST, bootstrap_interval


@pytest.mark.parametrize("level", [0.8, 0.95])
@pytest.mark.parametrize("draw", ["standard_normal", "standard_exponential"])
def test_the_interval_is_that_of_scipy(draw, level):
    """Criterion: the ends agree to 3% of the width. Both intervals are Monte Carlo estimates from 50,000 samples each,
    whose ends differ by about 1%."""
    values = getattr(np.random.default_rng(0), draw)(12)
    found = bootstrap_interval(values, level, n_samples=50_000).interval
    settings = {"confidence_level": level, "n_resamples": 50_000, "method": "BCa", "vectorized": True}
    expected = stats.bootstrap((values,), np.mean, rng=np.random.default_rng(1), **settings).confidence_interval
    tolerance = 0.03 * (expected.high - expected.low)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=tolerance)
    assert found.mean == pytest.approx(values.mean())


def test_the_interval_does_not_depend_on_the_order_of_the_values():
    values = np.random.default_rng(0).normal(size=8)
    found = bootstrap_interval(values)
    assert bootstrap_interval(values[::-1]) == bootstrap_interval(dict(enumerate(values))) == found
    assert bootstrap_interval(values, seed=1) != found


def test_the_interval_shifts_and_scales_with_the_values():
    values = np.random.default_rng(0).normal(size=8)
    base, moved = bootstrap_interval(values).interval, bootstrap_interval(10 + 2 * values).interval
    assert (moved.low, moved.high) == pytest.approx((10 + 2 * base.low, 10 + 2 * base.high))
    ties = np.array([7.0, 8.0, 9.0, 7.0, 8.0, 8.0])
    whole, tenth = (bootstrap_interval(x).interval for x in (ties, ties / 10))
    assert (tenth.low, tenth.high) == pytest.approx((whole.low / 10, whole.high / 10))


@pytest.mark.parametrize(
    ("values", "reason"), [*((range(n), f"{n} value") for n in range(1, FEWEST)), ([1, 2, 3, math.nan, 4], "finite")]
)
def test_values_that_allow_no_interval_give_a_reason_instead(values, reason):
    found = bootstrap_interval(values)
    assert found.interval is None
    assert reason in found.reason


def test_equal_values_have_an_interval_of_width_zero():
    interval = bootstrap_interval([0.5] * 6).interval
    assert (interval.low, interval.high) == (0.5, 0.5)


def test_the_coverage_is_the_documented_one():
    """Criterion: a nominal 95% interval covers the mean in about 84% of samples of five normal values, and in about 93%
    of samples of twenty."""
    covered = {}
    for n in (5, 20):
        draws = np.random.default_rng(n).normal(size=(400, n))
        found = [bootstrap_interval(values, n_samples=1000).interval for values in draws]
        covered[n] = np.mean([interval.low <= 0 <= interval.high for interval in found])
    assert 0.78 < covered[5] < 0.90
    assert 0.89 < covered[20] < 0.97
