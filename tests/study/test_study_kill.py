"""Real processes are killed while a study runs, and no finished run is lost. `make stress` kills more often."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attractor.runs.run_folder import RunFolder
from attractor.train.checkpoint import list_checkpoints
from processes import in_fresh_process, living_family
from stress.commands import as_at_a_terminal
from stress.kill_study import STUDY, finish, kill_and_compare, runs_of

N_STEPS = 500  # enough that a run is still under way once its start is noticed
on_linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are seen through /proc")


@pytest.mark.slow
def test_a_killed_study_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    """Criterion: first the launcher, then one run, then all processes are killed; `kill_and_compare` states what must
    hold."""
    in_fresh_process(kill_and_compare, tmp_path, n_kills=3, seed=2, n_steps=40)


def study_run(folder: Path, options: str) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    (folder / "squares.txt").write_text("".join(f"{i} squared is {i * i}\n" for i in range(3000)))
    (folder / "stopped.py").write_text(STUDY.format(n_steps=N_STEPS))
    command = [sys.executable, "-c", "from attractor.cli import main; main()", "study", "run", "stopped.py"]
    command += ["--device=cpu", "--threads=1", *options.split()]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, preexec_fn=as_at_a_terminal, **pipes)


def steps_of(run: Path) -> list[int]:
    if not (run / "metrics.jsonl").exists():
        return []
    return [record["step"] for record in RunFolder.open(run).metrics()]


def wait_until_trained(process: subprocess.Popen[bytes], folder: Path, n_runs: int) -> None:
    """Wait until this many runs have taken steps."""
    deadline = time.monotonic() + 120
    while sum(bool(steps_of(run)) for run in runs_of(folder).values()) < n_runs:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_until_ended(members: list[int]) -> None:
    deadline = time.monotonic() + 120
    while any(living_family(member) for member in members):
        assert time.monotonic() < deadline, "a process outlived its launcher"
        time.sleep(0.01)


def is_saved(run: Path) -> bool:
    """Return whether there is a checkpoint of the last recorded step."""
    checkpoints = list_checkpoints(run / "checkpoints")
    return bool(checkpoints) and int(checkpoints[-1].name.removeprefix("step-")) >= max(steps_of(run))


@pytest.mark.slow
@on_linux
@pytest.mark.parametrize(
    ("number", "options", "n_at_once"),
    [
        (signal.SIGTERM, "--launcher=local --workers=2 --seeds 0", 2),
        (signal.SIGHUP, "--launcher=stacked --workers=1 --seeds 0 1", 2),
        (signal.SIGUSR1, "--launcher=torchrun --workers=2 --seeds 0", 1),
    ],
)
def test_a_signal_to_every_process_of_a_study_saves_every_run(
    number: int, options: str, n_at_once: int, tmp_path: Path
) -> None:
    """Criterion: the signal goes to the launcher, its runs and the fork server, as systemd and Slurm send it. When the
    command has ended, so has every process, and each run under way has a checkpoint of its last step. The message
    counts them, and the same command finishes the study."""
    process = study_run(tmp_path, options)
    try:
        wait_until_trained(process, tmp_path, n_at_once)
        members = living_family(process.pid)
        assert len(members) > 2, "a launcher, a server that forks, and a run"
        for member in sorted(members, reverse=True):  # runs come first, since their launcher stops them again
            os.kill(member, number)
        said = process.communicate(timeout=120)[1].decode()
    finally:
        process.kill()
    assert process.returncode == 128 + number, said
    wait_until_ended(members)  # the fork server ends by itself after its launcher
    under_way = [run for run in runs_of(tmp_path).values() if steps_of(run)]
    assert len(under_way) == n_at_once
    for run in under_way:
        assert not RunFolder.open(run).finished
        assert is_saved(run)
    state = f"runs ended; under way: {n_at_once}, of these with a checkpoint: {n_at_once}."
    assert state in said.splitlines()[-1]
    finish(study_run(tmp_path, options))
    assert all(RunFolder.open(run).finished for run in runs_of(tmp_path).values())


@pytest.mark.slow
@on_linux
def test_ranks_whose_launcher_is_killed_save_and_end(tmp_path: Path) -> None:
    process = study_run(tmp_path, "--launcher=torchrun --workers=2 --seeds 0")
    try:
        wait_until_trained(process, tmp_path, 1)
        members = living_family(process.pid)
    finally:
        process.kill()
        process.communicate()
    wait_until_ended(members)
    (run,) = runs_of(tmp_path).values()
    assert is_saved(run)
    assert not RunFolder.open(run).finished
