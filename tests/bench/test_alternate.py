"""The arithmetic of alternating measurements on a simulated clock, without real timings."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attractor.bench.alternate import Timing, alternate


def cases_on_a_drifting_clock(costs: dict[str, float]) -> tuple[dict[str, Callable[[], None]], Callable[[], float]]:
    """Return cases whose calls take their cost times the factor of a machine that slows by a percent with every
    call."""
    now, slowness = [0.0], [1.0]

    def run(cost: float) -> None:
        now[0] += cost * slowness[0]
        slowness[0] *= 1.01

    return {name: (lambda cost=cost: run(cost)) for name, cost in costs.items()}, lambda: now[0]


def test_ratios_survive_a_machine_that_slows_down() -> None:
    """Criterion: the speeds are 1, 1/2 and 2 relative to the baseline within 2%, though the last round takes twice the
    first."""
    cases, clock = cases_on_a_drifting_clock({"standard": 1.0, "slow": 2.0, "fast": 0.5})
    timings = alternate(cases, "standard", n_rounds=20, clock=clock)
    assert timings["standard"].seconds[-1] > 1.5 * timings["standard"].seconds[0]
    for name, speed in {"standard": 1.0, "slow": 0.5, "fast": 2.0}.items():
        assert timings[name].ratio == pytest.approx(speed, rel=0.02)
        low, high = timings[name].spread
        assert low <= high


def test_order_reverses_from_round_to_round_and_warm_up_is_not_timed() -> None:
    calls: list[str] = []
    cases = {name: (lambda name=name: calls.append(name)) for name in "abc"}
    timings = alternate(cases, "a", n_rounds=2, warm_up=1)
    assert "".join(calls) == "abc" + "abc" + "cba"
    assert all(len(timing.seconds) == 2 for timing in timings.values())


def test_spread_is_the_middle_half_of_the_rounds() -> None:
    timing = Timing(seconds=(1.0, 1.0, 1.0, 1.0, 1.0), baseline=(0.1, 0.9, 1.0, 1.1, 9.0))
    assert timing.ratio == 1.0
    assert timing.spread == (0.9, 1.1)


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=12))
def test_the_ratio_lies_within_the_spread(rounds: list[tuple[float, float]]) -> None:
    seconds, baseline = zip(*rounds, strict=True)
    timing = Timing(seconds, baseline)
    low, high = timing.spread
    assert low <= timing.ratio <= high
