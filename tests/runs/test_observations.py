"""Run folders are read as observations by label and seed, and nothing is read twice or made up."""

import math
from pathlib import Path

import pytest

from attractor.errors import InputError
from attractor.runs.observations import are_runs, read_runs
from attractor.runs.run_folder import RunFolder


def finished(path: Path, label: str, seed: int, *losses: float, lr: float = 0.1) -> Path:
    run = RunFolder.create(path, {"label": label, "seed": seed, "lr": lr})
    for step, loss in enumerate(losses, start=1):
        run.append({"step": step, "tokens": 8 * step, "loss": 9.0})
        run.append({"step": step, "tokens": 8 * step, "valid_loss": loss, "accuracy": 1 - loss / 10})
    run.write_summary({"tokens": 8 * len(losses), "wall_seconds": 2.0})
    return path


def test_runs_are_read_by_label_and_seed(tmp_path: Path) -> None:
    finished(tmp_path / "a", "standard", 0, 3.0, 2.0)
    finished(tmp_path / "b", "standard", 1, 3.0, math.nan)
    finished(tmp_path / "c", "mine", 0, 1.0)
    RunFolder.create(tmp_path / "d", {"label": "mine", "seed": 1})
    assert are_runs([tmp_path])
    assert not are_runs([tmp_path, tmp_path / "a" / "checkpoints"])
    observations = read_runs([tmp_path, tmp_path / "a"])
    assert str({row: observations.values(row) for row, _ in observations}) == (
        "{'standard': {0: 2.0, 1: nan}, 'mine': {0: 1.0}}"
    )
    run = observations.rows["standard"][0]
    assert (run.curve, run.tokens, run.seconds) == (((1, 3.0), (2, 2.0)), 16, 2.0)
    assert "1 unfinished runs are left out" in observations.notes
    assert read_runs([tmp_path / "a"], "accuracy").values("standard") == {0: 0.8}


def test_two_runs_of_a_seed_and_unknown_metrics_are_refused(tmp_path: Path) -> None:
    one = finished(tmp_path / "a", "standard", 0, 2.0)
    other = finished(tmp_path / "b", "standard", 0, 1.0, lr=0.2)
    with pytest.raises(InputError, match=r"'standard' has two for seed 0, .* differ in lr; give"):
        read_runs([one, other])
    with pytest.raises(InputError, match=r"'bpb' is none of .*; known: .*'valid_loss'"):
        read_runs([one], "bpb")
