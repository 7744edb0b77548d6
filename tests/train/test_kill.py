"""SIGKILL of real processes and power cuts lose only steps, and a run has one process. `make stress` does more."""

import os
import signal
import time
from pathlib import Path

import pytest

from attractor.runs.run_folder import RunFolder
from attractor.study.launch import Job, launch
from attractor.train.config import Runtime, TrainConfig
from processes import in_fresh_process
from stress.kill_resume import kill_and_compare, start
from stress.power_cut import cut_and_compare


@pytest.mark.slow
def test_a_killed_run_ends_bit_for_bit_as_an_undisturbed_one(tmp_path: Path) -> None:
    in_fresh_process(kill_and_compare, tmp_path, n_kills=2, seed=5, n_steps=40)


@pytest.mark.slow
def test_a_run_under_way_is_refused_to_a_second_process(config: TrainConfig, tmp_path: Path, files) -> None:
    """Criterion: `train` ends with one line and exit code 2, and `launch` reports the run as failed. Neither changes a
    file of the run, whose process is paused meanwhile and then continues to its end."""
    folder = tmp_path / "run"
    first = start(folder, 60)
    while not (folder / "metrics.jsonl").exists():
        assert first.poll() is None
        time.sleep(0.01)
    os.kill(first.pid, signal.SIGSTOP)
    before = files(folder)
    second = start(folder, 60)
    try:
        said = second.communicate(timeout=120)[1].decode()
        assert second.returncode == 2
        (line,) = said.splitlines()
        assert line.startswith(f"error: '{folder}' must be free, and another process (id {first.pid}) carries out")
        job = Job(TrainConfig.from_dict(RunFolder.open(folder).config), folder)
        failures = launch([job], 1, Runtime(device="cpu", threads=1), lambda running, ended: None)
        assert failures == {
            job.name: f"another process carries out the run in '{folder}'; wait until it ends, then repeat the command"
        }
        assert files(folder) == before
    finally:
        second.kill()
        second.communicate()
        os.kill(first.pid, signal.SIGCONT)
        first.communicate(timeout=120)
    assert first.returncode == 0
    assert RunFolder.open(folder).finished


@pytest.mark.slow
def test_what_a_power_cut_leaves_is_resumed_and_ends_as_an_undisturbed_run(tmp_path: Path) -> None:
    """Criterion: `cut_and_compare` states what must hold. The second cut comes in the resumed run."""
    in_fresh_process(cut_and_compare, tmp_path, n_cuts=2, seed=0)
