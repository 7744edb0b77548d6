"""The control's gap in units of the baseline's noise."""

import math

import numpy as np
import pytest

from attractor.evidence.sensitivity import SENSITIVE_GAP, twin_gap_in_sds


def test_the_gap_is_counted_in_the_baselines_deviations():
    found = twin_gap_in_sds({0: 5.0, 1: 7.0}, {0: 1.0, 1: 2.0, 2: 3.0})
    assert (found.gap, found.baseline_sd, found.in_sds) == pytest.approx((4.0, 1.0, 4.0))
    assert (found.n_control, found.n_baseline) == (2, 3)
    assert not found.sensitive


def test_it_has_no_unit_and_no_origin():
    control, baseline = np.random.default_rng(0).normal(size=(2, 4))
    base = twin_gap_in_sds(control, baseline).in_sds
    assert twin_gap_in_sds(3 * control + 1, 3 * baseline + 1).in_sds == pytest.approx(base)


def test_the_instrument_is_sensitive_from_ten_deviations_on():
    for control, sensitive in ((SENSITIVE_GAP + 0.01, True), (SENSITIVE_GAP - 0.01, False), (-100.0, False)):
        assert twin_gap_in_sds([control], [-1.0, 0.0, 1.0]).sensitive is sensitive


@pytest.mark.parametrize(
    ("control", "baseline"),
    [([5.0], [1.0]), ([5.0], [1.0, 1.0]), ([math.nan], [1.0, 2.0]), ([5.0], [1.0, math.inf])],
)
def test_where_nothing_can_be_said_nothing_is(control, baseline):
    found = twin_gap_in_sds(control, baseline)
    assert found.in_sds is None
    assert found.sensitive is None
