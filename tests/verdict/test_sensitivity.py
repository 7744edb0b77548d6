"""A setting is sensitive where the control is shown, in pairs, to be worse by more than the margin."""

import math

import numpy as np
import pytest

from attractor.verdict.sensitivity import control_gap

BASELINE = {0: 1.70, 1: 1.71, 2: 1.69, 3: 1.72}


def worse(by: float, noise: float = 0.001) -> dict[int, float]:
    return {seed: loss + by + noise * (-1) ** seed for seed, loss in BASELINE.items()}


def test_noise_that_seeds_share_does_not_hide_the_gap():
    """The baseline varies by .013 over seeds. A gap of .02 is unclear relative to that variation, and clear in
    pairs."""
    assert control_gap(worse(0.02), BASELINE).sensitive is True
    assert control_gap(worse(0.02, noise=0.05), BASELINE).sensitive is False
    assert control_gap(worse(-0.02), BASELINE).sensitive is False
    outlying = BASELINE | {3: 2.0}  # in both rows
    assert control_gap({s: loss + 0.1 for s, loss in outlying.items()} | {0: 1.802}, outlying).sensitive is True


def test_the_gap_must_exceed_the_margin():
    gap = control_gap(worse(0.02), BASELINE)
    assert gap.interval is not None
    assert gap.interval.low is not None
    for margin, sensitive in ((0.0, True), (gap.interval.low - 1e-6, True), (gap.interval.low + 1e-6, False)):
        assert control_gap(worse(0.02), BASELINE, margin).sensitive is sensitive


def test_a_control_that_is_like_the_baseline_is_rarely_called_worse():
    """Criterion: this happens in one of forty trials, since the interval has 95% and only one of its sides counts."""
    rng = np.random.default_rng(0)
    draws = 0.01 * rng.standard_normal((2000, 4))
    called = [control_gap(dict(enumerate(map(float, draw))), dict.fromkeys(range(4), 0.0)).sensitive for draw in draws]
    assert np.mean(called) == pytest.approx(0.025, abs=0.0105)  # the tolerance is three binomial standard deviations


@pytest.mark.parametrize(
    ("control", "baseline"),
    [({0: 5.0}, {0: 1.0}), ({0: 5.0}, {1: 1.0}), ({0: math.nan, 1: 2.0}, {0: 1.0, 1: 1.0}), ({}, {})],
)
def test_sensitivity_is_unknown_without_enough_runs(control, baseline):
    assert control_gap(control, baseline).sensitive is None
