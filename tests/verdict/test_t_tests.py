"""The t tests agree with scipy's and statsmodels', and follow shifts, scalings and exchanges of the data."""

import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats import weightstats

from attractor.verdict.intervals import Summary, paired_difference, seed_differences, summary
from attractor.verdict.t_tests import paired_t_test, welch

counts = st.integers(2, 12)
seeds = st.integers(0, 10_000)


@given(seed=seeds, n=counts, level=st.sampled_from([0.95, 0.99]))
def test_the_paired_test_is_scipys(seed, n, level):
    of, against = np.random.default_rng(seed).normal(size=(2, n))
    by_seed = dict(enumerate(of)), dict(enumerate(against))
    found = paired_t_test(seed_differences(*by_seed), level)
    expected = stats.ttest_rel(of, against)
    interval = expected.confidence_interval(level)
    assert (found.statistic, found.p) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-7)
    assert (found.degrees_of_freedom, found.n) == (n - 1, n)
    assert found.interval == paired_difference(*by_seed, level)
    assert (found.interval.low, found.interval.high) == pytest.approx((interval.low, interval.high))
    assert found.interval.mean == pytest.approx(np.mean(of - against))
    assert found.interval.excludes_zero == (found.p < 1 - level)


@given(seed=seeds, n=counts, m=counts)
def test_welchs_test_is_scipys(seed, n, m):
    rng = np.random.default_rng(seed)
    of, against = rng.normal(0.5, 1, n), rng.normal(0, 3, m)
    found = welch(of, against, level=0.9)
    expected = stats.ttest_ind(of, against, equal_var=False)
    interval = expected.confidence_interval(0.9)
    assert (found.statistic, found.p) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-7)
    assert found.degrees_of_freedom == pytest.approx(expected.df)
    assert (found.interval.low, found.interval.high) == pytest.approx((interval.low, interval.high))
    assert found.n == n + m


def test_published_means_and_deviations_suffice_for_a_test():
    """Criterion: means and standard deviations of two rows of a published table, over 10 and 3 seeds, give the
    same test as in scipy."""
    found = welch(Summary(22.55, 0.04, 10), Summary(24.22, 0.11, 3))
    expected = stats.ttest_ind_from_stats(22.55, 0.04, 10, 24.22, 0.11, 3, equal_var=False)
    assert (found.statistic, found.p) == pytest.approx(tuple(expected))
    of, against = np.random.default_rng(0).normal(size=(2, 5))
    assert welch(summary(of), summary(against)) == welch(of, against)


@pytest.mark.parametrize(
    "found",
    [
        paired_t_test([0.3], margin=1.0),
        paired_t_test([0.3, math.nan, 0.4], margin=1.0),
        paired_t_test([0.0, 0.0]),
        welch([1.0], [2.0, 3.0], margin=1.0),
        welch([1.0, 2.0], [math.inf, 3.0]),
        welch(Summary(1.0, 0.1, 1), Summary(2.0, 0.1, 5)),
        welch(Summary(1.0, math.nan, 3), Summary(2.0, 0.1, 5), margin=1.0),
        welch([1.0, 1.0], [1.0, 1.0]),
    ],
    ids=str,
)
def test_values_that_determine_no_test_have_no_p_value(found):
    assert found.statistic is None
    assert found.p is found.p_within is None
    assert not found.interval.excludes_zero
    assert asdict(found)["interval"]["n"] == found.n


def test_differences_without_spread_tell_no_more_than_their_order():
    """Criterion: the p value is that of n signs alike, or of one group's values all above the other's."""
    assert paired_t_test([0.25, 0.25]).p == 2 / 2**2
    assert paired_t_test([0.25] * 8).p == 2 / 2**8
    assert welch([1.0, 1.0, 1.0], [2.0, 2.0]).p == 2 / 10
    assert paired_t_test([0.0, 0.0], margin=0.1).p_within < 0.05
    assert paired_t_test([0.2, 0.2], margin=0.1).p_within > 0.95
    assert paired_t_test([1.0, 1.0], margin=1.0).p_within is None


@pytest.mark.parametrize("value", [0.1, 0.7, 0.01])
@pytest.mark.parametrize("n", range(2, 9))
def test_rounding_is_no_spread(value, n):
    """Criterion: differences that are equal but for the rounding of a subtraction are treated as equal."""
    assert paired_t_test([value] * n).p == 2 / 2**n
    losses = [0.5 + 0.013 * seed for seed in range(n)]
    assert paired_t_test([(loss + value) - loss for loss in losses]).p == 2 / 2**n
    assert welch([value] * 3, [3 * value] * 3).p == pytest.approx(0.1)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("margin", [0.2, 1.0, 3.0])
def test_being_within_a_margin_is_tested_as_in_statsmodels(seed, margin):
    rng = np.random.default_rng(seed)
    of, against = rng.normal(size=6), rng.normal(0.3, 2, size=6)
    paired = paired_t_test(of - against, margin=margin)
    assert paired.p_within == pytest.approx(weightstats.ttost_paired(of, against, -margin, margin)[0])
    apart = welch(of, against[:4], margin=margin)
    expected = weightstats.ttost_ind(of, against[:4], -margin, margin, usevar="unequal")[0]
    assert apart.p_within == pytest.approx(expected)
