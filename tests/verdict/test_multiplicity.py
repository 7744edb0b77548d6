"""Holm's p values equal those of statsmodels, lie between the unadjusted and Bonferroni's, and keep their level."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats import multitest

from attractor.verdict.multiplicity import holm

p_values = st.lists(st.floats(0, 1), max_size=12).map(lambda values: dict(enumerate(values)))


@given(p_values)
def test_adjusted_values_lie_between_the_plain_ones_and_bonferronis(plain):
    adjusted = holm(plain)
    for key, p in plain.items():
        assert p <= adjusted[key] <= min(1.0, len(plain) * p)
    order = sorted(plain, key=lambda key: plain[key])
    assert [adjusted[key] for key in order] == sorted(adjusted.values())
    assert holm(dict(reversed(plain.items()))) == adjusted


@pytest.mark.parametrize("seed", range(5))
def test_adjusted_values_are_those_of_statsmodels(seed):
    values = np.random.default_rng(seed).uniform(size=9) ** 3
    expected = multitest.multipletests(values, method="holm")[1]
    assert list(holm(dict(enumerate(values))).values()) == pytest.approx(list(expected))


def test_one_test_needs_no_correction_and_an_unknown_p_is_not_counted():
    assert holm({"C1": 0.04}) == {"C1": 0.04}
    assert holm({"C1": 0.01, "C2": None, "C3": 0.04}) == {"C1": 0.02, "C2": None, "C3": 0.04}
    assert holm({}) == {}
