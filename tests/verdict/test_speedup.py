"""The effective speedup is exact without noise, and its interval keeps its confidence on simulated ladders."""

import math

import numpy as np
import pytest

from attractor.verdict import effective_speedup

BUDGETS = (0.5, 1.0, 2.0)


def ladder(slope=0.08, spread=0.0, n=4, budgets=BUDGETS, rng=None, shared=None):
    """Return the losses of a baseline by budget and seed, whose noise is partly that of the seed."""
    rng = rng or np.random.default_rng(0)
    shared = np.zeros(n) if shared is None else shared
    noise = shared + spread * rng.normal(size=(len(budgets), n))
    return {c: dict(enumerate(3.0 - slope * math.log(c) + noise[i])) for i, c in enumerate(budgets)}


@pytest.mark.parametrize("speedup", [0.6, 1.0, 1.25, 1.9])
@pytest.mark.parametrize("throughput", [0.8, 1.0, 1.3])
def test_it_is_exact_where_there_is_no_noise(speedup, throughput):
    row = dict.fromkeys(range(4), 3.0 - 0.08 * math.log(speedup))
    for budgets in (BUDGETS, (0.25, 0.5, 1, 3)):
        found = effective_speedup(ladder(budgets=budgets), row, [throughput] * 3)
        assert (found.value, found.low, found.high) == pytest.approx([speedup * throughput] * 3)
        assert found.slope == pytest.approx(0.08)
        assert found.paired
    unpaired = effective_speedup({c: list(losses.values()) for c, losses in ladder().items()}, [row[0]] * 5, throughput)
    assert (unpaired.value, unpaired.low, unpaired.high) == pytest.approx([speedup * throughput] * 3)
    assert not unpaired.paired


def test_a_row_like_the_baseline_has_the_speedup_of_its_throughput():
    """Criterion: paired with itself, the baseline has no other uncertainty than that of the throughput."""
    noisy = ladder(spread=0.004)
    assert effective_speedup(noisy, noisy[1], 0.9).value == pytest.approx(0.9)
    ratios = np.array([0.88, 0.9, 0.93, 0.89])
    found = effective_speedup(noisy, noisy[1], ratios)
    mean, error = np.log(ratios).mean(), np.log(ratios).std(ddof=1) / 2
    assert found.value == pytest.approx(math.exp(mean))
    slopes = np.subtract(list(noisy[0.5].values()), list(noisy[2.0].values())) / (2 * math.log(2))
    unsure = (3.182446 * slopes.std(ddof=1) / 2 / slopes.mean()) ** 2  # the share of the slope that is noise
    half_width = 3.182446 * error / math.sqrt(1 - unsure)
    assert (found.low, found.high) == pytest.approx((math.exp(mean - half_width), math.exp(mean + half_width)))


def test_a_steeper_ladder_makes_a_difference_worth_less_time():
    values = [effective_speedup(ladder(slope), [2.99] * 4, 1.1).value for slope in (0.05, 0.5, 5.0, 5e4)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(1.1, abs=1e-5)


def test_without_throughput_the_interval_holds_the_ratios_that_a_t_test_does_not_refuse():
    """Criterion: at each end of the interval, the t statistic of D - θ b, computed seed by seed, is the quantile."""
    losses = ladder(spread=0.004, n=5)
    row = {seed: 2.985 + 0.003 * seed for seed in range(5)}
    found = effective_speedup(losses, row, level=0.9)
    gains = np.array([losses[1][seed] - row[seed] for seed in range(5)])
    slopes = np.array([(losses[0.5][seed] - losses[2][seed]) / (2 * math.log(2)) for seed in range(5)])
    for end, sign in ((found.low, 1), (found.high, -1)):
        remainder = gains - math.log(end) * slopes
        assert sign * remainder.mean() / (remainder.std(ddof=1) / math.sqrt(5)) == pytest.approx(2.131847, rel=1e-5)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize(
    ("n", "spread", "correlation", "slope", "speedup", "of_throughput"),
    [(4, 0.002, 0.5, 0.05, 1.2, 0.02), (4, 0.01, 0.0, 0.1, 0.8, 0.1), (8, 0.01, 0.5, 0.05, 1.25, 0.05)],
)
def test_intervals_cover_the_truth_at_their_confidence(paired, n, spread, correlation, slope, speedup, of_throughput):
    rng = np.random.default_rng(7)
    covered, bounded, n_simulations = 0, 0, 2000
    for _ in range(n_simulations):
        shared = rng.normal(size=n) * spread * math.sqrt(correlation) * paired
        own = spread * math.sqrt(1 - correlation * paired)
        losses = ladder(slope, own, n, rng=rng, shared=shared)
        row = dict(enumerate(3.0 - slope * math.log(speedup) + shared + own * rng.normal(size=n), 0 if paired else 100))
        found = effective_speedup(losses, row, 0.9 * np.exp(rng.normal(size=n) * of_throughput))
        assert found.paired == paired
        covered += found.low <= 0.9 * speedup <= found.high
        bounded += found.low > 0 and math.isfinite(found.high)
    assert 0.93 <= covered / n_simulations <= 0.98
    assert bounded / n_simulations > 0.5


@pytest.mark.parametrize(("speedup", "side"), [(2.5, "longest"), (0.3, "shortest")])
@pytest.mark.parametrize("n", [2, 6])
def test_outside_the_ladder_there_is_a_bound_and_no_number(speedup, side, n):
    row = dict.fromkeys(range(n), 3.0 - 0.08 * math.log(speedup))
    found = effective_speedup(ladder(n=n, spread=1e-4), row, 0.9)
    assert found.value is None
    assert f"beyond the {side} budget of the ladder" in found.reason
    if n == 2:
        assert found.low is found.high is None
    elif side == "longest":
        assert (found.low, found.high) == (pytest.approx(2 * 0.9), math.inf)
    else:
        assert (found.low, found.high) == (0, pytest.approx(0.5 * 0.9))
    unsure = effective_speedup(ladder(n=6, spread=0.01), dict(enumerate(ladder(spread=0.01, n=6)[2.0].values())), 0.9)
    assert unsure.high == math.inf
    assert unsure.low < 2 * 0.9


@pytest.mark.parametrize(
    ("losses", "row", "reason", "has_value"),
    [
        (ladder(n=3, spread=0.003), {0: 2.99, 1: 2.98, 2: 2.99}, "an interval needs 4 seeds", True),
        (ladder(n=8), [2.99], "an interval needs 4 seeds", True),
        (ladder(slope=-0.05), [3.0] * 4, "does not fall", False),
        (ladder(), [3.0, 3.0, 3.0, math.nan], "diverged", False),
        ({**ladder(), 2: [math.inf] * 4}, [3.0] * 4, "diverged", False),
    ],
)
def test_where_the_losses_allow_no_interval_the_reason_says_why(losses, row, reason, has_value):
    found = effective_speedup(losses, row)
    assert reason in found.reason
    assert found.low is found.high is None
    assert (found.value is not None) == has_value


def test_a_slope_that_cannot_be_told_from_zero_leaves_the_interval_unbounded():
    slopes = {0.5: [3.1, 2.9, 3.1, 2.95], 1: [3.0] * 4, 2: [2.9, 3.1, 3.0, 2.9]}
    found = effective_speedup(slopes, [3.0, 2.99, 3.01, 2.98])
    assert found.value is not None
    assert (found.low, found.high) == (0, math.inf)
    assert "unbounded" in found.reason
