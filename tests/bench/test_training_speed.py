"""Alternating timings of training: a case that fails has a reason, and the others continue. The clock is simulated."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attractor.bench import training
from attractor.bench.passes import PASSES
from attractor.bench.subprocess_timing import NotMeasured
from attractor.bench.training import TimedCase, groups, time_training
from attractor.bench.trial import BenchSetting, Trial

NAMES = ("standard", "coupled-euler", "gated")
counted_flops = functools.cache(training.counted_flops)  # the counts are the same in every test
STEP = {
    "standard": 1.0,
    "coupled-euler": 1.25,
    "gated": 2.0,
}  # seconds of a step, of which a forward pass takes a quarter


def laps(name: str) -> dict[str, float]:
    return dict(zip(PASSES, (STEP[name] / 4, 0.9 * STEP[name], STEP[name]), strict=True))


@dataclass
class FakePasses:
    name: str
    fails_in: int | None = None
    n_parameters: int = 1000
    calls: int = 0

    def __call__(self) -> dict[str, float]:
        self.calls += 1
        if self.calls == self.fails_in:
            raise MemoryError
        return laps(self.name)


def trial_of(name: str) -> Trial:
    return Trial((laps(name), laps(name)), peak_memory=1_000_000)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, setting: BenchSetting) -> Callable[..., dict[str, TimedCase]]:
    """Return the timed cases by name. `alone` and `warm` give errors of the trial and of the first steps, and
    `fails_in` the round in which a case runs out of memory."""

    def run(
        alone: dict[str, Exception] | None = None,
        warm: dict[str, Exception] | None = None,
        fails_in: dict[str, int] | None = None,
        patience: float = 100.0,
        shorter: dict[str, tuple[float, float]] | None = None,
    ) -> dict[str, TimedCase]:
        def tried(name: str, *_: Any) -> Trial:
            if name in (alone or {}):
                raise (alone or {})[name]
            return trial_of(name)

        def warmed_up(name: str, *_: Any) -> tuple[FakePasses, Trial]:
            if name in (warm or {}):
                raise (warm or {})[name]
            return FakePasses(name, (fails_in or {}).get(name)), trial_of(name)

        monkeypatch.setattr(training, "counted_flops", counted_flops)
        monkeypatch.setattr(training, "tried", tried)
        monkeypatch.setattr(training, "warmed_up", warmed_up)
        found = time_training(NAMES, setting, 4, patience, shorter or {})
        assert [cell.name for cell in found] == list(NAMES)
        return {cell.name: cell for cell in found}

    return run


def test_ratios_are_those_of_the_passes(measured: Callable[..., dict[str, TimedCase]]) -> None:
    for name, cell in measured().items():
        assert cell.left_out is None
        assert cell.timings is not None
        assert cell.n_parameters == 1000
        for timed in PASSES:
            assert cell.timings[timed].ratio == pytest.approx(STEP["standard"] / STEP[name])
            assert len(cell.timings[timed].seconds) == 4


@pytest.mark.parametrize("when", ["alone", "warm", "fails_in"])
def test_memory_that_runs_out_leaves_one_case_out(measured: Callable[..., dict[str, TimedCase]], when: str) -> None:
    failure = {"alone": NotMeasured("out of memory"), "warm": MemoryError(), "fails_in": 3}[when]
    cells = measured(**{when: {"coupled-euler": failure}})
    assert cells["coupled-euler"].timings is None
    assert "out of memory" in str(cells["coupled-euler"].left_out)
    assert all(cells[name].timings is not None for name in ("standard", "gated"))


@pytest.mark.parametrize("when", ["alone", "warm", "fails_in"])
def test_without_the_baseline_there_are_no_ratios(measured: Callable[..., dict[str, TimedCase]], when: str) -> None:
    failure = {"alone": NotMeasured("out of memory"), "warm": MemoryError(), "fails_in": 1}[when]
    cells = measured(**{when: {"standard": failure}})
    assert all(cell.timings is None for cell in cells.values())
    assert "no baseline: standard out of memory" in str(cells["gated"].left_out)


def test_a_case_whose_trial_predicts_too_long_a_time_is_left_out(measured: Callable[..., dict[str, TimedCase]]) -> None:
    """Six calls of 2.5 s take 15 s, and six of 1.25 s or 1.56 s take less than ten."""
    cells = measured(patience=10)
    assert [name for name, cell in cells.items() if cell.left_out] == ["gated"]
    assert cells["gated"].left_out == "would take 15 s as its trial says, more than 10 s"
    assert cells["gated"].trial is not None


def test_a_case_whose_flops_predict_too_long_a_time_is_not_tried(
    measured: Callable[..., dict[str, TimedCase]], setting: BenchSetting
) -> None:
    flops = counted_flops("gated", setting)
    cells = measured(patience=60, shorter={"gated": (3.0, flops / 4), "standard": (1.0, flops)})
    assert cells["gated"].left_out == "would take 72 s by its FLOPs, more than 60 s"
    assert cells["gated"].trial is None
    assert cells["standard"].timings is not None


@given(st.lists(st.integers(1, 100), min_size=0, max_size=12), st.integers(1, 200))
def test_groups_have_every_case_once_and_always_the_baseline(sizes: list[int], room: int) -> None:
    states = {str(number): size for number, size in enumerate(sizes)} | {"standard": 10}
    others = [name for name in states if name != "standard"]
    found = groups("standard", others, states, room)
    assert [name for group in found for name in group[1:]] == others
    assert all(group[0] == "standard" for group in found)
    for group in found:
        assert len(group) <= 2 or sum(states[name] for name in group) <= room
