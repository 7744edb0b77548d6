"""The live view follows the metrics files of the runs."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from attractor.runs.run_folder import RunFolder
from attractor.study.launch import Job
from attractor.study.watch import LatestStep, LiveView
from attractor.train.config import TrainConfig


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", {"lr": 0.1})


def append(folder: RunFolder, step: int, **numbers: float) -> None:
    folder.append({"step": step, "tokens": step, **numbers})


def test_the_latest_step_is_that_of_the_whole_file_after_every_change(folder: RunFolder) -> None:
    """Criterion: after any change of the file, the record is the last of its complete lines that has a loss. There is
    none at first, torn and damaged lines do not count, and a resumed run steps back."""
    path = folder.path / "metrics.jsonl"
    latest = LatestStep(path)
    assert latest.read() == {}
    for step in (1, 2):
        append(folder, step, loss=1.0)
        assert latest.read()["step"] == step
    append(folder, 3, valid_loss=2.0)
    for added, step in ((b"", 2), (b'{"step": 4, "tokens": 4, "lo', 2), (b'ss": 1.0}\n', 4), (b"damaged\n", 4)):
        with path.open("ab") as file:
            file.write(added)
        assert latest.read()["step"] == step
    path.write_bytes(path.read_bytes().replace(b"damaged\n", b""))
    folder.keep_until(1)
    assert latest.read()["step"] == 1
    folder.keep_until(0)
    assert latest.read() == {}


def test_a_refresh_reads_only_the_added_lines(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: after a long history, another read parses only the one new line."""
    path = folder.path / "metrics.jsonl"
    path.write_text('{"step": 1, "tokens": 1, "loss": 1.0}\n' * 10_000)
    latest = LatestStep(path)
    latest.read()
    read: list[int] = []
    loads = json.loads
    monkeypatch.setattr("attractor.study.watch.json.loads", lambda line: (read.append(len(line)), loads(line))[1])
    assert latest.read()["step"] == 1
    append(folder, 2, loss=1.0)
    assert latest.read()["step"] == 2
    assert len(read) == 1
    assert latest.added.n_bytes_read == path.stat().st_size


@pytest.mark.parametrize("terminal", [False, True])
def test_a_log_regularly_reports_the_steps_of_the_runs(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    """Criterion: a line that is due has the step, the loss and the speed of each running run, and the time left once
    the pace is known; a terminal has progress bars instead."""
    monkeypatch.setattr("attractor.study.watch.now_and_then", lambda: lambda: True)
    job, said = Job(TrainConfig(n_steps=1000), folder.path, "gated"), StringIO()
    append(folder, 120, loss=2.5, tokens_per_second=64.0)
    watch = LiveView(Console(file=said, force_terminal=terminal, width=120), [job])
    monkeypatch.setattr(watch.progress, "get_time", lambda: 0.0)
    watch([job], [])
    monkeypatch.setattr(watch.progress, "get_time", lambda: 10.0)
    append(folder, 220, loss=2.25, tokens_per_second=64.0)
    watch([job], [])
    lines = (
        "0 of 1 runs ended; gated seed 0 step 120 of 1,000  loss 2.500  64 tok/s\n"
        "0 of 1 runs ended  78 s left; gated seed 0 step 220 of 1,000  loss 2.250  64 tok/s\n"
    )
    assert said.getvalue() == ("" if terminal else lines)
