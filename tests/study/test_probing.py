"""Probes of finished runs say which run they measure while that takes long."""

import io
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attractor import console
from attractor.models import TransformerConfig
from attractor.study.launch import Job
from attractor.study.probe import probe_runs, probes_of
from attractor.study.study import Probe
from attractor.tasks.text import Text
from attractor.train.config import Runtime, TrainConfig

MODEL = TransformerConfig(vocab_size=8, d_model=8, n_heads=2, n_layers=1, d_ff=8, max_seq_len=8)


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Return two runs that count as finished. Their probes take the first weights, which need no checkpoint."""
    MODEL.build(0)  # the first model of a process takes a second of imports
    monkeypatch.setattr(Job, "finished", True)
    config = TrainConfig(model=MODEL, task=Text("none"), seq_len=8)
    jobs = [Job(config.replace(seed=seed), tmp_path / str(seed), "row") for seed in (0, 1)]
    for job in jobs:
        job.path.mkdir()
    return jobs


class Log(io.StringIO):
    """A log that lets a probe wait for the line about it."""

    def __init__(self) -> None:
        super().__init__()
        self.has_line = threading.Event()

    def write(self, text: str) -> int:
        if "so far" in text:
            self.has_line.set()
        return super().write(text)


def lines_of(jobs: list[Job], measure: Any, log: Log) -> list[str]:
    probe_runs(jobs, Probe("penalty", measure, "first"), Runtime(device="cpu"), Console(file=log, width=200))
    return [line for line in log.getvalue().splitlines() if "penalty of" in line]


def test_a_log_names_the_run_that_is_measured_while_that_takes_long(
    finished: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Criterion: a run whose probe ends at once has no line, and a slow one has a line that counts the runs."""
    log = Log()

    def probe(model: object, config: TrainConfig) -> dict[str, int]:
        if config.seed == 0:
            monkeypatch.setattr(console, "FIRST_SECONDS", 0.001)  # from here on, no run ends before its first line
        else:
            assert log.has_line.wait(60)
        return {"seed": config.seed}

    (line,) = lines_of(finished, probe, log)
    assert re.fullmatch(r"penalty of row seed 1, run 2 of 2: .+ so far", line)
    assert [probes_of(job) for job in finished] == [{"seed": seed, "done": ["penalty"]} for seed in (0, 1)]
    assert lines_of(finished, probe, Log()) == []
