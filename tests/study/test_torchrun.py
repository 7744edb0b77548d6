"""`launch` on several processes of one run: the contract of `study/launch.py`, each run by torchrun."""

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from attractor.errors import InputError, RunInterrupted
from attractor.evidence.run import RunFolder
from attractor.study.launch import Job
from attractor.study.torchrun import launch
from attractor.train.config import Runtime, TrainConfig

RUNTIME = Runtime(device="cpu", threads=1, log_every=1)


def ignore(running: Sequence[Job], ended: Sequence[Job]) -> None: ...


@pytest.mark.slow
def test_runs_one_after_another_and_a_failed_one_does_not_stop_the_rest(base: TrainConfig, tmp_path: Path) -> None:
    """Criterion: the failure is the line that `train` would say; the other run ends on two processes; a second call
    starts nothing and changes nothing."""
    jobs = [Job(base, tmp_path / "taken"), Job(base.replace(seed=1), tmp_path / "good")]
    RunFolder.create(jobs[0].path, base.replace(lr=1e-4).to_dict())
    failures = launch(jobs, 2, RUNTIME, ignore)
    assert failures.keys() == {"standard seed 0"}
    assert "holds a run with another configuration: lr is 0.0001 there" in failures["standard seed 0"]
    summary = RunFolder.open(jobs[1].path).summary()
    assert summary is not None
    assert (summary["steps"], summary["processes"]) == (12, 2)
    assert launch(jobs[1:], 2, RUNTIME, ignore) == {}
    assert RunFolder.open(jobs[1].path).summary() == summary


@pytest.mark.slow
def test_a_signal_saves_and_the_same_call_goes_on(base: TrainConfig, tmp_path: Path) -> None:
    """Criterion: the run that was under way is saved where it stood, and ends when launched again."""
    job = Job(base.replace(n_steps=4000, eval_every=4000, warmup_steps=0), tmp_path / "run")

    def stop(running: Sequence[Job], ended: Sequence[Job]) -> None:
        if running and (job.path / "metrics.jsonl").exists() and RunFolder.open(job.path).metrics():
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(RunInterrupted, match="0 of 1 runs ended, the one that ran is saved") as caught:
        launch([job], 2, RUNTIME, stop)
    assert caught.value.exit_code == 143
    (saved,) = (job.path / "checkpoints").glob("step-*")
    assert RunFolder.open(job.path).metrics()[-1]["step"] == int(saved.name.removeprefix("step-")) < 4000


def test_a_batch_that_cannot_be_shared_out_is_refused_before_anything_starts(base: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="divisible by the number of processes, 3, got 4 / 1"):
        launch([Job(base, tmp_path / "run")], 3, RUNTIME, ignore)
    assert not (tmp_path / "run").exists()
