"""The intervals agree with scipy's, and are absent where the values determine none."""

import math

import numpy as np
import pytest

from attractor.verdict.intervals import (
    Estimate,
    decimals,
    mean_interval,
    paired_difference,
    seed_differences,
    summary,
)


def test_only_common_seeds_are_paired():
    interval = paired_difference({0: 1.0, 1: 2.0, 7: 100.0}, {1: 1.0, 0: 0.5, 9: -100.0})
    assert interval.n == 2
    assert interval.mean == 0.75
    assert seed_differences({3: 1.0, 1: 2.0, 8: 5.0}, {1: 0.5, 3: 3.0}) == {1: 1.5, 3: -2.0}


def test_one_value_has_no_interval():
    interval = mean_interval([2.0])
    assert (interval.mean, interval.low, interval.high, interval.half_width) == (2.0, None, None, None)
    assert not interval.excludes_zero
    assert summary([3.0]).standard_deviation is None


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_is_not_finite_shows_no_difference(bad):
    interval = mean_interval([1.0, bad, 1.0])
    assert math.isnan(interval.mean)
    assert not interval.excludes_zero
    assert math.isnan(mean_interval([bad]).mean)
    lost = summary({0: 1.0, 1: bad})
    assert math.isnan(lost.mean)
    assert math.isnan(lost.standard_deviation)


def test_equal_values_have_an_interval_of_width_zero():
    assert mean_interval([0.5, 0.5]).excludes_zero
    assert not mean_interval([0.0, 0.0]).excludes_zero
    assert mean_interval([0.5, 0.5]).half_width == 0
    assert math.isinf(mean_interval([1.0, 2.0], level=1.0).high)


@pytest.mark.parametrize("n", [2, 7])
def test_a_summary_is_that_of_numpy_with_or_without_seeds(n):
    values = np.random.default_rng(n).normal(size=n)
    found = summary(values)
    assert (found.mean, found.standard_deviation) == pytest.approx((values.mean(), values.std(ddof=1)))
    assert found.n == n
    assert summary(list(values)) == summary(dict(enumerate(values))) == found


@pytest.mark.parametrize(
    "estimate", [Estimate(1.0, None, None, 1), Estimate(math.nan, 1.0, 3, 4), Estimate(1.0, math.nan, 3, 4)]
)
def test_an_estimate_without_noise_or_number_has_no_statistic(estimate):
    assert estimate.statistic() is None
    assert not estimate.interval(0.95).excludes_zero


def test_without_spread_a_difference_is_certain_and_no_difference_has_no_statistic():
    estimate = Estimate(1.0, 0.0, 3, 4)
    assert estimate.statistic(0.5) == math.inf
    assert estimate.statistic(1.5) == -math.inf
    assert estimate.statistic(1.0) is None
    assert estimate.chance_above(math.inf) == 0


def test_differences_are_those_of_the_numbers_as_written() -> None:
    """Criterion: 2.0500 - 2.0499 and 2.0501 - 2.0500 are equal, as their decimals are."""
    differences = seed_differences({0: 2.0500, 1: 2.0501}, {0: 2.0499, 1: 2.0500})
    assert differences == {0: 0.0001, 1: 0.0001}
    assert math.isnan(seed_differences({0: math.nan}, {0: 1.0})[0])


def test_two_digits_of_a_size_are_shown() -> None:
    assert [decimals(size) for size in (120.0, 5.0, 0.034, 1e-9)] == [0, 1, 3, 6]
    assert [decimals(size) for size in (0.0, math.nan)] == [3, 3]
