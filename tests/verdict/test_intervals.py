"""The intervals agree with scipy's, and are absent where the values determine none."""

import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from attractor.errors import InputError
from attractor.verdict.bootstrap import bootstrap_interval
from attractor.verdict.intervals import (
    Estimate,
    mean_interval,
    paired_difference,
    seed_differences,
    summary,
)
from attractor.verdict.spread import brown_forsythe, spread_ratio


@pytest.mark.parametrize("n", [2, 3, 10])
@pytest.mark.parametrize("level", [0.95, 0.99])
def test_a_paired_difference_is_that_of_the_paired_t_test(n, level):
    of, against = np.random.default_rng(n).normal(size=(2, n))
    interval = paired_difference(dict(enumerate(of)), dict(enumerate(against)), level)
    test = stats.ttest_rel(of, against)
    expected = test.confidence_interval(level)
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))
    assert interval.mean == pytest.approx(np.mean(of - against))
    assert interval.excludes_zero == (test.pvalue < 1 - level)


@pytest.mark.parametrize("interval_of", [bootstrap_interval, partial(spread_ratio, [1.0, 2.0, 4.0])])
def test_only_a_t_interval_may_have_the_level_one(interval_of):
    assert math.isinf(mean_interval([1.0, 2.0], level=1.0).high)
    with pytest.raises(InputError, match=r"level must lie between 0 and 1: 1\.0"):
        interval_of([1.0, 2.0, 3.0, 5.0, 8.0], level=1.0)


@pytest.mark.parametrize("runs", [[1.0, 2.0], pd.Series([1.0, 2.0], index=[2, 1])])
def test_what_has_no_seeds_is_not_paired(runs: object) -> None:
    """The indices of two pandas Series would be combined bit by bit."""
    with pytest.raises(InputError, match=r"of must be numbers by seed.*a pandas Series has to_dict\(\)"):
        paired_difference(runs, runs)


def test_a_table_of_values_is_no_sample() -> None:
    with pytest.raises(InputError, match="values must be one for each run, in one dimension"):
        summary(np.ones((3, 4)))


def test_a_bootstrap_draws_at_least_twice():
    with pytest.raises(InputError, match="n_samples must be an integer of at least 2, got 1"):
        bootstrap_interval([1.0, 2.0, 3.0, 4.0, 9.0], n_samples=1)


@pytest.mark.parametrize("level", [95, 0.0, math.nan])
@pytest.mark.parametrize("interval_of", [mean_interval, bootstrap_interval, partial(spread_ratio, [1.0, 2.0, 4.0])])
def test_a_level_that_is_no_confidence_is_refused(interval_of, level):
    with pytest.raises(InputError, match=r"level must lie between 0 and 1: .*; it is a confidence here: 0\.95, not 95"):
        interval_of([1.0, 2.0, 3.0, 5.0, 8.0], level=level)


def test_only_common_seeds_are_paired():
    interval = paired_difference({0: 1.0, 1: 2.0, 7: 100.0}, {1: 1.0, 0: 0.5, 9: -100.0})
    assert interval.n == 2
    assert interval.mean == 0.75
    with pytest.raises(InputError, match="common seeds"):
        paired_difference({0: 1.0}, {1: 1.0})


def test_one_value_has_no_interval():
    interval = mean_interval([2.0])
    assert (interval.mean, interval.low, interval.high, interval.half_width) == (2.0, None, None, None)
    assert not interval.excludes_zero


def test_an_interval_of_no_values_is_refused():
    with pytest.raises(InputError, match="at least one value"):
        mean_interval([])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_value_that_is_not_finite_shows_no_difference(bad):
    interval = mean_interval([1.0, bad, 1.0])
    assert math.isnan(interval.mean)
    assert not interval.excludes_zero
    assert math.isnan(mean_interval([bad]).mean)


def test_equal_values_have_an_interval_of_width_zero():
    assert mean_interval([0.5, 0.5]).excludes_zero
    assert not mean_interval([0.0, 0.0]).excludes_zero
    assert mean_interval([0.5, 0.5]).half_width == 0


@pytest.mark.parametrize("n", [2, 7])
def test_a_summary_is_that_of_numpy_with_or_without_seeds(n):
    values = np.random.default_rng(n).normal(size=n)
    found = summary(values)
    assert (found.mean, found.standard_deviation) == pytest.approx((values.mean(), values.std(ddof=1)))
    assert found.n == n
    assert summary(list(values)) == summary(dict(enumerate(values))) == found


def test_a_summary_has_no_deviation_where_the_values_determine_none():
    assert summary([3.0]).standard_deviation is None
    lost = summary({0: 1.0, 1: math.inf})
    assert math.isnan(lost.mean)
    assert math.isnan(lost.standard_deviation)
    with pytest.raises(InputError, match="at least one value"):
        summary({})


def test_differences_keep_their_seeds():
    assert seed_differences({3: 1.0, 1: 2.0, 8: 5.0}, {1: 0.5, 3: 3.0}) == {1: 1.5, 3: -2.0}


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


@pytest.mark.parametrize("n", [3, 8])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_interval_covers_the_truth_as_often_as_its_level(n, level):
    draws = np.random.default_rng(n).normal(2.0, 3.0, (2000, n))
    covered = np.mean([found.low <= 2.0 <= found.high for found in (mean_interval(values, level) for values in draws)])
    assert abs(covered - level) < 4 * math.sqrt(level * (1 - level) / 2000)


def test_differences_are_those_of_the_numbers_as_written() -> None:
    """Criterion: 2.0500 - 2.0499 and 2.0501 - 2.0500 are equal, as their decimals are."""
    differences = seed_differences({0: 2.0500, 1: 2.0501}, {0: 2.0499, 1: 2.0500})
    assert differences == {0: 0.0001, 1: 0.0001}
    assert math.isnan(seed_differences({0: math.nan}, {0: 1.0})[0])


def test_the_bootstrap_interval_does_not_depend_on_the_unit() -> None:
    values = [7.0, 8.0, 9.0, 7.0, 8.0, 8.0]
    whole, tenth = (bootstrap_interval(x).interval for x in (values, [value / 10 for value in values]))
    assert whole is not None
    assert tenth is not None
    assert tenth.high == pytest.approx(whole.high / 10)
    assert tenth.low == pytest.approx(whole.low / 10)


def test_groups_that_are_equal_up_to_rounding_have_no_spread_to_compare() -> None:
    assert brown_forsythe([0.3] * 5 + [0.1 + 0.2] * 5, [0.5] * 10).p is None
