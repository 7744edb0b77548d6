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
from stress.kills import kill_and_compare, start_run
from stress.power_cut import cut_and_compare
from stress.signals import send_and_check


@pytest.mark.slow
def test_a_killed_study_ends_bit_for_bit_as_an_undisturbed_one(tmp_path: Path) -> None:
    """Criterion: first the launcher, then one run, then all processes are killed; `kill_and_compare` states what must
    hold."""
    in_fresh_process(kill_and_compare, tmp_path, n_kills=3, seed=2, n_steps=40)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are seen through /proc")
def test_a_signal_to_every_process_of_a_study_saves_every_run(tmp_path: Path) -> None:
    """Criterion: that of `stress/signals.py`, for each launcher. The second signal comes to what continues."""
    cases = [("local", signal.SIGTERM), ("stacked", signal.SIGHUP), ("torchrun", signal.SIGUSR1)]
    twice = [(launcher, number, "training") for launcher, number in cases for _ in range(2)]
    in_fresh_process(send_and_check, tmp_path, twice, seed=0)


@pytest.mark.slow
def test_a_run_under_way_is_refused_to_a_second_process(config: TrainConfig, tmp_path: Path, files) -> None:
    """Criterion: `train` ends with one line and exit code 2, and `launch` reports the run as failed. Neither changes a
    file of the run, whose process is paused meanwhile and then continues to its end."""
    folder = tmp_path / "run"
    first = start_run(folder, 60)
    while not (folder / "metrics.jsonl").exists():
        assert first.poll() is None
        time.sleep(0.01)
    os.kill(first.pid, signal.SIGSTOP)
    before = files(folder)
    second = start_run(folder, 60)
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
