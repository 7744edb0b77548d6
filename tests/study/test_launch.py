"""The loop of all launchers handles signals that come from elsewhere."""

import json
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from attractor.errors import RunInterrupted
from attractor.runs.machine import environment
from attractor.runs.run_folder import RunFolder
from attractor.study import launch as launching
from attractor.study.launch import Job, launch
from attractor.train import interrupt
from attractor.train.config import Runtime, TrainConfig
from attractor.train.interrupt import StopRequest

RUNTIME = Runtime(device="cpu", threads=1, log_every=1)


class StopTheRun:
    """Stop the run by a signal from `watch`, and optionally the launcher once the run has ended."""

    def __init__(self, job: Job, launcher_too: bool) -> None:
        self.job, self.launcher_too = job, launcher_too
        self.stopped = False

    def __call__(self, running: Sequence[Job], ended: Sequence[Job]) -> None:
        metrics = self.job.path / "metrics.jsonl"
        if not self.stopped and metrics.exists() and RunFolder.open(self.job.path).metrics():
            self.stopped = True
            os.kill(int((self.job.path / ".run.lock").read_text()), signal.SIGTERM)
        elif self.launcher_too and ended:
            self.launcher_too = False
            signal.raise_signal(signal.SIGTERM)


def test_a_run_stopped_from_outside_is_reported_as_saved_and_the_others_continue(
    base: TrainConfig, tmp_path: Path
) -> None:
    jobs = [Job(base.replace(n_steps=4000, eval_every=4000), tmp_path / "long"), Job(base, tmp_path / "short", "short")]
    failures = launch(jobs, 1, RUNTIME, StopTheRun(jobs[0], launcher_too=False))
    (saved,) = (jobs[0].path / "checkpoints").glob("step-*")
    why = f"signal 15 stopped it; its newest checkpoint is '{saved.name}', from which the same command goes on"
    assert failures == {jobs[0].name: why}
    assert jobs[1].finished
    shutil.rmtree(saved)
    for exit_code in (128 + signal.SIGTERM, -signal.SIGTERM):  # before its first checkpoint nothing is saved
        assert jobs[0].failure(exit_code).endswith("; it has no checkpoint yet, so the same command starts it anew")


def test_a_signal_to_all_may_reach_a_run_before_its_launcher(base: TrainConfig, tmp_path: Path) -> None:
    """Criterion: a run that the signal ended before it reached the launcher counts as under way, since the same command
    continues it. It does not count as ended, as after a failure."""
    long = base.replace(n_steps=100_000, eval_every=100_000)
    jobs = [Job(long, tmp_path / "first"), Job(long, tmp_path / "second", "second")]
    with pytest.raises(RunInterrupted, match=r"0 of 2 runs ended; under way: 2, of these with a checkpoint: [12]\."):
        launch(jobs, 1, RUNTIME, StopTheRun(jobs[0], launcher_too=True))
    assert jobs[0].has_checkpoint


def test_pairs_that_began_on_another_processor_are_started_last(tmp_path: Path) -> None:
    jobs = [Job(TrainConfig(seed=seed), tmp_path / f"{seed}-{row}") for seed in (0, 1) for row in "ab"]
    jobs[0].path.mkdir()
    pool = launching.ProcessPool(1, lambda batch: Stuck())
    for processor, seeds in ((environment()["processor"], [0, 0, 1, 1]), ("another", [1, 1, 0, 0])):
        (jobs[0].path / "environment.json").write_text(json.dumps({"processor": processor}))
        assert [job.config.seed for job in pool.in_order(jobs)] == seeds


class Stuck:
    """A process that does not end when it is asked to, as one that is stopped by SIGSTOP."""

    exitcode = None
    is_killed = False

    def is_alive(self) -> bool:
        return not self.is_killed

    def kill(self) -> None:
        self.is_killed = True

    def start(self) -> None: ...

    def terminate(self) -> None: ...

    def join(self) -> None: ...


@pytest.mark.parametrize("impatient", [True, False])
def test_a_process_that_does_not_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, impatient: bool
) -> None:
    """Criterion: it is killed at a second Ctrl-C, and by itself when its time is over, unless it saves."""
    monkeypatch.setattr(launching, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(launching, "STOP_SECONDS", 3600.0 if impatient else 0.0)
    monkeypatch.setattr(StopRequest, "insists", impatient)
    pool, process = launching.ProcessPool(1, lambda batch: Stuck()), Stuck()
    pool.batches = {process: [Job(TrainConfig(), tmp_path / "run")]}
    assert pool.stop() == []
    assert process.is_killed


def test_only_a_second_ctrl_c_insists(monkeypatch: pytest.MonkeyPatch) -> None:
    with StopRequest() as stop:
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
            stop.note(number)
        assert not StopRequest.insists, "signals in quick succession are one"
        monkeypatch.setattr(interrupt, "SUCCESSION_SECONDS", -1.0)
        stop.note(signal.SIGTERM)
        assert not StopRequest.insists
        stop.note(signal.SIGINT)
        assert StopRequest.insists
    assert stop.signal_number == signal.SIGINT
