"""Probes of finished runs say which run they measure while that takes long."""

import io
import re
import time
from pathlib import Path

import pytest
from rich.console import Console

from attractor import sign_of_life
from attractor.models import TransformerConfig
from attractor.study.launch import Job
from attractor.study.probe import Probe, probe_runs, probes_of
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


def lines_of(jobs: list[Job], probe: Probe) -> list[str]:
    console = Console(file=io.StringIO(), width=200)
    probe_runs(jobs, "penalty", probe, Runtime(device="cpu"), console)
    assert isinstance(console.file, io.StringIO)
    return [line for line in console.file.getvalue().splitlines() if "penalty of" in line]


def test_a_log_names_the_run_that_is_measured_while_that_takes_long(
    finished: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Criterion: a run whose probe ends at once has no line, and a slow one has a line that counts the runs."""
    monkeypatch.setattr(sign_of_life, "FIRST_SECONDS", 1.0)

    def probe(model: object, config: TrainConfig) -> dict[str, int]:
        time.sleep(1.5 * config.seed)
        return {"seed": config.seed}

    (line,) = lines_of(finished, probe)
    assert re.fullmatch(r"penalty of row seed 1, run 2 of 2: 1\d{3} ms so far", line)
    assert [probes_of(job) for job in finished] == [{"seed": seed, "done": ["penalty"]} for seed in (0, 1)]
    assert lines_of(finished, probe) == []
