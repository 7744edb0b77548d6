"""Interrupt runs, and compare two runs bit by bit."""

import signal
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from attractor.errors import RunInterrupted
from attractor.runs.run_folder import RunFolder
from attractor.train.config import Runtime, TrainConfig
from attractor.train.display import Display
from attractor.train.loop import Run, train
from attractor.train.trainer import StepResult

Interrupt = Callable[[Iterable[int]], None]
MEASURED = {"tokens_per_second", "peak_memory_bytes", "wall_seconds"}  # fields that differ even between equal runs


class Listening(Display):
    """Keeps the notes of runs."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def build_run(config: TrainConfig, path: Path, runtime: Runtime) -> Run:
    task = config.build_task()
    return Run(config, RunFolder.create(path, config.identity(task)), task, runtime, Display())


def newest_tensors(path: Path) -> dict[str, Any]:
    """Return the weights, optimizer and random state of the newest checkpoint by name."""
    checkpoint = max((path / "checkpoints").glob("step-*"))
    others = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    return {"weights": load_file(checkpoint / "model.safetensors")} | others


def same(one: Any, other: Any) -> bool:
    """Compare bit for bit, through nested dictionaries and lists."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def without_measured(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in MEASURED}


def assert_same_run(one: Path, other: Path) -> None:
    """Check that weights, optimizer, random state, metrics, best checkpoint and summary of two finished runs are
    equal."""
    first, second = newest_tensors(one), newest_tensors(other)
    for part in first:
        assert same(first[part], second[part]), f"{part} differs"
    records = [[without_measured(r) for r in RunFolder.open(path).metrics()] for path in (one, other)]
    assert records[0] == records[1]
    assert (one / "checkpoints/best.json").read_text() == (other / "checkpoints/best.json").read_text()
    summaries = [without_measured(RunFolder.open(path).summary() or {}) for path in (one, other)]
    assert summaries[0] == summaries[1]


def train_in_parts(
    config: TrainConfig, path: Path, runtime: Runtime, interrupt_during: Callable[[Iterable[int]], None], *steps: int
) -> None:
    """Interrupt a run in the middle of each of these steps, counted from 0, and resume it up to its end.

    Each session begins with another random state, as a new process does.
    """
    interrupt_during(steps)
    for step in steps:
        with pytest.raises(RunInterrupted, match=f"interrupted after step {step + 1}, saved"):
            train(config, path, runtime)
        torch.manual_seed(step)
    train(config, path, runtime)


def train_with_and_without_telemetry(config: TrainConfig, folder: Path, runtime: Runtime) -> dict[str, Any]:
    """Train two runs in `with` and `without`, check that their weights and losses are equal in every bit, and return
    the summary of the first."""
    summary = train(config, folder / "with", runtime)
    train(config, folder / "without", replace(runtime, telemetry_every=None))
    runs = [folder / "with", folder / "without"]
    one, other = (max((run / "checkpoints").glob("step-*")) / "model.safetensors" for run in runs)
    assert one.read_bytes() == other.read_bytes()
    first, second = ([r["loss"] for r in RunFolder.open(run).metrics() if "loss" in r] for run in runs)
    assert first == second
    return summary


def interrupting(patch: pytest.MonkeyPatch) -> Callable[[Iterable[int]], None]:
    """Return a function that arranges a Ctrl-C in the middle of each of the given steps, counted from 0."""

    def arrange(steps: Iterable[int]) -> None:
        left, take_step = set(steps), Run.take_step

        def interrupted(run: Run) -> StepResult:
            if run.step in left:
                left.remove(run.step)
                signal.raise_signal(signal.SIGINT)
            return take_step(run)

        patch.setattr(Run, "take_step", interrupted)

    return arrange
