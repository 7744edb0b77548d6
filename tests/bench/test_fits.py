"""Fits of costs recover known laws, and the error of an exponent agrees with a statistics library."""

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import linregress

from attractor.bench.fits import power_law, straight_line

PLACES = [256, 512, 1024, 2048, 4096]


@given(st.floats(-2, 3), st.floats(1e-6, 1e6))
def test_an_exact_power_is_recovered(exponent: float, factor: float) -> None:
    line = power_law(PLACES, [factor * x**exponent for x in PLACES])
    assert line.slope == pytest.approx(exponent, abs=1e-9)
    assert line.error == pytest.approx(0, abs=1e-6)
    assert exp(line.at_zero) == pytest.approx(factor, rel=1e-6)


def test_two_regimes_lie_between_their_exponents_and_show_in_the_error() -> None:
    """The cost is the sum of a linear and a quadratic part, so no single exponent fits, and the error shows it."""
    line = power_law(PLACES, [x + x**2 / 1000 for x in PLACES])
    assert 1 < line.slope < 2
    assert line.error is not None
    assert line.error > 0.03


@given(st.lists(st.floats(-5, 5), min_size=5, max_size=5))
def test_slope_and_error_are_those_of_least_squares(noise: list[float]) -> None:
    x = [1, 2, 3, 4, 6]
    y = [3 + 2 * a + b for a, b in zip(x, noise, strict=True)]
    line, known = straight_line(x, y), linregress(x, y)
    assert line.slope == pytest.approx(known.slope, abs=1e-9)
    assert line.at_zero == pytest.approx(known.intercept, abs=1e-9)
    assert line.error == pytest.approx(known.stderr, abs=1e-6)


def test_two_points_have_a_slope_and_no_error() -> None:
    line = straight_line([1, 3], [5.0, 9.0])
    assert (line.at_zero, line.slope, line.error) == (3, 2, None)
