"""Cost curves recover the laws that invented measurements follow. Nothing is timed."""

from collections.abc import Sequence
from typing import Any

import pytest

from attractor.bench import cost_curves
from attractor.bench.cases import our_config
from attractor.bench.cost_curves import CostPoint, Growth, curve_cases, growths, points
from attractor.bench.passes import PASSES
from attractor.bench.subprocess_timing import NotMeasured
from attractor.bench.training import counted_parameters
from attractor.bench.trial import BenchSetting, Trial


def growing(name: str, setting: BenchSetting, n_calls: int, patience: float) -> Trial:
    """Return a trial whose time grows as the length to the power 1.5, with a tenth more for each further coupling step.
    Memory beyond the state is proportional to the length."""
    shape = setting.shape
    n_steps = getattr(our_config(name, shape).attention_config.couple, "n_steps", 0)
    seconds = 1e-3 * (shape.seq_len / 8) ** 1.5 * (1 + 0.1 * (n_steps - 1)) * (shape.d_model / 64) ** 2
    lap = dict.fromkeys(PASSES, seconds)
    state = cost_curves.TRAINED_BYTES * counted_parameters(name, setting)
    slow = {timed: 100 * taken for timed, taken in lap.items()}  # the first call, and one on a busy machine
    return Trial((slow, slow, *(lap,) * (n_calls - 2)), state + 1000 * shape.seq_len)


def measured_at(
    names: Sequence[str], setting: BenchSetting, lengths: Sequence[int], widths: Sequence[int], patience: float = 100.0
) -> list[CostPoint]:
    return list(points(curve_cases(names, setting.shape, lengths, widths), setting, patience))


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, setting: BenchSetting) -> dict[tuple[str, str], Growth]:
    monkeypatch.setattr(cost_curves, "tried", growing)
    measured = measured_at(("standard", "coupled-euler"), setting, (8, 16, 32), (64, 128, 256))
    assert all(point.left_out is None for point in measured)
    return {(growth.name, growth.axis): growth for growth in growths(measured)}


def test_known_exponents_are_found(found: dict[tuple[str, str], Growth]) -> None:
    for name in ("standard", "coupled-euler"):
        length, width = found[name, "length"], found[name, "width"]
        assert length.seconds is not None
        assert length.memory is not None
        assert width.seconds is not None
        assert length.seconds.slope == pytest.approx(1.5)
        assert length.memory.slope == pytest.approx(1.0)
        assert width.seconds.slope == pytest.approx(2.0)


def test_the_line_before_each_point_has_its_number_and_the_remaining_time(
    monkeypatch: pytest.MonkeyPatch, setting: BenchSetting
) -> None:
    """Every reading of this clock adds one second. All mechanisms of an axis come before the next axis."""
    said: list[str] = []
    monkeypatch.setattr(cost_curves, "tried", growing)
    monkeypatch.setattr(cost_curves.time, "monotonic", iter(range(100)).__next__)
    along = curve_cases(("standard", "coupled-euler"), setting.shape, (1024,), (64,))
    measured = list(points(along, setting, 100.0, said.append))
    assert [point.axis for point in measured] == ["length"] * 2 + ["width"] * 2 + ["steps"] * len(cost_curves.N_STEPS)
    assert said[:2] == [
        "standard, length 1,024: point 1 of 8",
        "coupled-euler, length 1,024: point 2 of 8, 7.0 s left",
    ]


def test_counted_flops_grow_between_linear_and_quadratic(found: dict[tuple[str, str], Growth]) -> None:
    for axis in ("length", "width"):
        flops = found["standard", axis].flops
        assert flops is not None
        assert 1 < flops.slope < 2


def test_a_further_step_has_a_fitted_cost_and_only_integrators_have_steps(
    found: dict[tuple[str, str], Growth],
) -> None:
    line = found["coupled-euler", "steps"].seconds
    assert line is not None
    assert line.slope / (line.at_zero + line.slope) == pytest.approx(0.1)
    assert ("standard", "steps") not in found


def test_a_point_that_is_too_large_is_left_out_of_the_fit(
    monkeypatch: pytest.MonkeyPatch, setting: BenchSetting
) -> None:
    def tried(name: str, setting: BenchSetting, *given: Any) -> Trial:
        if setting.shape.seq_len == 16:
            raise NotMeasured("out of memory")
        return growing(name, setting, *given)

    monkeypatch.setattr(cost_curves, "tried", tried)
    measured = measured_at(("standard",), setting, (4, 8, 16, 32), (64, 128))
    assert [point.at for point in measured if point.left_out == "out of memory"] == [16, 64, 128]
    (length,) = growths(measured)
    assert length.seconds is not None
    assert length.seconds.slope == pytest.approx(1.5)


def test_a_point_whose_forecast_exceeds_the_limit_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, setting: BenchSetting
) -> None:
    """Four calls of the second length would take more than 20 ms by their FLOPs."""
    tried: list[int] = []

    def noted(name: str, setting: BenchSetting, *given: Any) -> Trial:
        tried.append(setting.shape.seq_len)
        return growing(name, setting, *given)

    monkeypatch.setattr(cost_curves, "tried", noted)
    measured = measured_at(("standard",), setting, (8, 512), (), patience=0.02)
    assert tried == [8]
    assert "by its FLOPs, more than 20 ms" in str(measured[1].left_out)


def test_a_width_with_too_few_heads_is_left_out(monkeypatch: pytest.MonkeyPatch, setting: BenchSetting) -> None:
    monkeypatch.setattr(cost_curves, "tried", growing)
    (point,) = measured_at(("gqa",), setting, (), (64,))
    assert "heads_per_kv must be a divisor of n_heads=1" in str(point.left_out)


def test_memory_below_the_state_has_no_exponent() -> None:
    held = [CostPoint("standard", "length", n, 1.0 * n, 100, 200, 1.0 * n) for n in (1, 2, 4)]
    (found,) = growths(held)
    assert found.memory is None
    assert found.seconds is not None


def test_one_place_has_no_law() -> None:
    (growth,) = growths([CostPoint("standard", "length", 512, seconds, 10**9, 10**6, 1e9) for seconds in (1.0, 1.1)])
    assert growth.seconds is None
