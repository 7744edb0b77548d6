"""The power of a paired test of n pairs agrees with statsmodels, with simulation and with the normal limit."""

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from attractor.verdict.power import _power_by_quadrature, detectable_with_power, pairs_needed, power_of_pairs


@pytest.mark.parametrize("n", [3, 8, 40])
@pytest.mark.parametrize("centre", [0.5, 2.0, 4.0])
def test_power_is_that_of_statsmodels(n, centre):
    """The effects are limited to those at which statsmodels' noncentral t distribution is finite. The quadrature, which
    stands in elsewhere, is known there, too."""
    effect = centre / math.sqrt(n)
    expected = TTestPower().power(effect, n, 0.01)
    assert power_of_pairs(2.0, 2 * effect, n, 0.01) == pytest.approx(expected, abs=1e-9)
    assert _power_by_quadrature(centre, n, stats.t.ppf(0.995, n - 1)) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("n", [2, 3, 5, 8, 16, 64])
@pytest.mark.parametrize("level", [0.05, 0.0025, 1e-5])
def test_power_is_finite_and_grows_with_the_effect(n, level):
    found = [power_of_pairs(1.0, centre / math.sqrt(n), n, level) for centre in np.arange(0, 400, 0.5)]
    assert np.isfinite(found).all()
    assert min(np.diff(found)) > -1e-6


@pytest.mark.parametrize("n", [2, 3, 8, 100])
@pytest.mark.parametrize("power", [0.3, 0.8, 0.99])
@pytest.mark.parametrize("level", [0.05, 0.0001])
def test_the_detectable_difference_has_the_power_asked_for(n, power, level):
    found = detectable_with_power(2.0, n, power, level)
    assert power_of_pairs(2.0, found, n, level) == pytest.approx(power, abs=1e-6)
    assert power_of_pairs(2.0, -found, n, level) == pytest.approx(power, abs=1e-6)


def test_limits_of_power():
    assert power_of_pairs(1.0, 0.0, 5) == pytest.approx(0.05)
    assert power_of_pairs(1.0, 1e4, 2) == pytest.approx(1)
    by_n = [power_of_pairs(1.0, 0.7, n) for n in range(2, 30)]
    assert by_n == sorted(by_n)
    normal_limit = stats.norm.ppf(0.975) + stats.norm.ppf(0.8)
    assert detectable_with_power(1.0, 10_000) * 100 == pytest.approx(normal_limit, rel=1e-3)


@pytest.mark.parametrize("difference", [5.0, 1.0, -0.3, 0.05])
@pytest.mark.parametrize("power", [0.8, 0.95])
def test_the_pairs_needed_are_enough_and_one_fewer_is_not(difference, power):
    n = pairs_needed(1.0, difference, power)
    assert power_of_pairs(1.0, difference, n) >= power
    assert n == 2 or power_of_pairs(1.0, difference, n - 1) < power


def test_one_pair_or_an_unknown_spread_gives_no_answer():
    assert detectable_with_power(1.0, 1) is None
    assert power_of_pairs(1.0, 1.0, 1) is None
    assert detectable_with_power(math.nan, 5) is None
    assert power_of_pairs(math.nan, 1.0, 5) is None
    assert pairs_needed(math.inf, 1.0) is None
