"""Stored runs and tables in memory are read as observations by row and seed, and nothing is made up."""

import math
from pathlib import Path

import numpy as np
import pandas
import pytest

from attractor.errors import InputError
from attractor.runs.observed import observe
from attractor.runs.run_folder import RunFolder
from attractor.verdict.observations import Observations

NAMES = {"row": None, "seed": None, "value": None, "step": None}


def values(observations: Observations) -> str:
    return str({row: observations.values(row) for row, _ in observations})


def finished(path: Path, label: str, seed: int, *losses: float) -> Path:
    run = RunFolder.create(path, {"label": label, "seed": seed})
    for step, loss in enumerate(losses, start=1):
        run.append({"step": step, "tokens": 8 * step, "loss": 9.0})
        run.append({"step": step, "tokens": 8 * step, "valid_loss": loss})
    run.write_summary({"valid_loss": losses[-1], "wall_seconds": 2.0})
    return path


def test_runs_are_read_by_label_and_seed(tmp_path: Path) -> None:
    finished(tmp_path / "a", "standard", 0, math.nan, 2.0)
    finished(tmp_path / "b", "standard", 1, 3.0, math.nan)
    finished(tmp_path / "c", "mine", 0, 1.0)
    RunFolder.create(tmp_path / "d", {"label": "mine", "seed": 1})
    observations = observe([tmp_path], **NAMES)
    assert values(observations) == "{'standard': {0: 2.0, 1: nan}, 'mine': {0: 1.0}}"
    run = observations.rows["standard"][0]
    assert str((run.curve, run.seconds)) == "(((1.0, nan), (2.0, 2.0)), 2.0)"
    assert observations.notes
    finished(tmp_path / "e", "mine", 0, 1.0)
    with pytest.raises(InputError, match=r"two of 'mine' have seed 0"):
        observe([tmp_path], **NAMES)


def test_the_folder_of_another_program_with_a_config_is_no_run(tmp_path: Path) -> None:
    checkpoint = tmp_path / "mine-seed0" / "checkpoint-5"
    checkpoint.mkdir(parents=True)
    (checkpoint / "config.json").write_text('{"model_type": "gpt2"}')
    (checkpoint / "trainer_state.json").write_text('{"log_history": [{"eval_loss": 2.5, "step": 5}]}')
    assert values(observe(tmp_path, **NAMES)) == "{'mine': {0: 2.5}}"


def test_tables_in_memory_are_read_as_files_are() -> None:
    frame = pandas.DataFrame(
        {
            "method": ["x", "x", "y"],
            "seed": pandas.array([0, 1, 0], dtype="Int64"),
            "loss": pandas.array([1.5, None, np.inf], dtype="Float64"),
            "date": [pandas.Timestamp("2026-01-02"), pandas.NaT, None],
        }
    )
    expected = "{'x': {0: 1.5, 1: nan}, 'y': {0: inf}}"
    observations = observe(frame, **NAMES)
    assert values(observations) == expected
    assert observations.rows["x"][0].date == "2026-01-02 00:00:00"
    columns = {"method": ["x", "x", "y"], "seed": np.array([0, 1, 0]), "loss": np.float32([1.5, np.nan, np.inf])}
    assert values(observe(columns, **NAMES)) == expected
    assert values(observe(frame.astype(object).to_dict("records"), **NAMES)) == expected
    by_seed = frame.set_index(["method", "seed"])["loss"]
    wide = pandas.DataFrame({"seed": [0, 1], "x": [1.5, np.nan], "y": [np.inf, 2.5]}).set_index("seed")
    assert [values(observe(part, **NAMES)) for part in (by_seed, by_seed.to_frame())] == [expected] * 2
    assert values(observe(wide, **NAMES)) == "{'x': {0: 1.5, 1: nan}, 'y': {0: inf, 1: 2.5}}"
    for data, message in (({"loss": [1], "seed": [1, 2]}, "equally long"), (frame[:0], "a table with rows")):
        with pytest.raises(InputError, match=message):
            observe(data, **NAMES)
    frame.loc[1, "method"] = None
    with pytest.raises(InputError, match=r"'method' must be filled, and in row 2 of 'the table'"):
        observe(frame, **NAMES)
