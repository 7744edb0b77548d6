"""TOST agrees with statsmodels and with its confidence interval, and keeps its error rate."""

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats import weightstats

from attractor.errors import InputError
from attractor.verdict.equivalence import paired_equivalence, welch_equivalence
from attractor.verdict.intervals import Summary, summary


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("margin", [0.2, 1.0, 3.0])
def test_the_p_values_are_those_of_statsmodels(seed, margin):
    rng = np.random.default_rng(seed)
    of, against = rng.normal(size=6), rng.normal(0.3, 2, size=6)
    paired = paired_equivalence(of - against, margin)
    assert paired.p == pytest.approx(weightstats.ttost_paired(of, against, -margin, margin)[0])
    apart = welch_equivalence(of, against[:4], margin)
    assert apart.p == pytest.approx(weightstats.ttost_ind(of, against[:4], -margin, margin, usevar="unequal")[0])
    assert apart == welch_equivalence(summary(of), summary(against[:4]), margin)


@pytest.mark.parametrize("level", [0.01, 0.05])
def test_equivalence_is_an_interval_within_the_margin(level):
    outcomes = set()
    for seed in range(200):
        differences = np.random.default_rng(seed).normal(0.2, 0.5, size=6)
        found = paired_equivalence(differences, 0.7, level)
        expected = stats.ttest_1samp(differences, 0).confidence_interval(1 - 2 * level)
        assert (found.interval.low, found.interval.high) == pytest.approx((expected.low, expected.high))
        assert found.equivalent == (max(-expected.low, expected.high) < 0.7)
        outcomes.add(found.equivalent)
    assert outcomes == {True, False}


def test_scale_sign_and_order_do_not_matter():
    differences = np.random.default_rng(0).normal(size=7)
    p = paired_equivalence(differences, 0.8).p
    assert paired_equivalence(3 * differences, 2.4).p == pytest.approx(p)
    assert paired_equivalence(-differences, 0.8).p == pytest.approx(p)
    assert paired_equivalence(differences[::-1], 0.8).p == pytest.approx(p)


def test_a_wider_margin_is_easier():
    differences = np.random.default_rng(0).normal(size=7)
    p_values = [paired_equivalence(differences, margin).p for margin in (0.01, 0.1, 1.0, 10.0)]
    assert p_values == sorted(p_values, reverse=True)
    assert paired_equivalence(differences, 1e6).equivalent


def test_a_difference_as_large_as_the_margin_is_called_equivalent_at_most_as_often_as_the_level():
    draws = np.random.default_rng(1).normal(1.0, 0.3, (4000, 5))
    errors = np.mean([paired_equivalence(differences, 1.0).equivalent for differences in draws])
    assert abs(errors - 0.05) < 4 * math.sqrt(0.05 * 0.95 / 4000)


@pytest.mark.parametrize(
    "found",
    [
        paired_equivalence([0.0], 1.0),
        paired_equivalence([0.0, math.nan], 1.0),
        welch_equivalence([0.0], [0.0, 0.1], 1.0),
        paired_equivalence([1.0, 1.0], 1.0),
        welch_equivalence(Summary(1.0, math.nan, 3), Summary(1.0, 0.1, 3), 1.0),
    ],
    ids=str,
)
def test_values_that_determine_no_test_have_no_p_value(found):
    assert found.p is None
    assert found.equivalent is None


def test_differences_without_spread_are_equivalent_only_within_the_margin():
    assert paired_equivalence([0.0, 0.0], 0.1).equivalent
    assert not paired_equivalence([0.2, 0.2], 0.1).equivalent


@pytest.mark.parametrize("margin", [0.0, -1.0, math.nan, math.inf])
def test_a_margin_must_be_a_positive_number(margin):
    with pytest.raises(InputError, match="margin must be a number above zero"):
        paired_equivalence([0.0, 0.1], margin)


def test_a_confidence_level_is_refused_as_an_error_rate():
    with pytest.raises(InputError, match=r"0\.05, not 0\.95"):
        paired_equivalence([0.0, 0.1], 1.0, level=0.95)
