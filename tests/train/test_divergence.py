"""A run that diverges keeps a good checkpoint, says truly what is saved, and can be rolled back."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from attractor.errors import InputError, RunInterrupted
from attractor.runs.observed import observe
from attractor.runs.quantity import LOSS, MEAN_LOSS, PERPLEXITY
from attractor.runs.run_folder import RunFolder
from attractor.runs.study_record import outcome
from attractor.study.launch import Job
from attractor.study.stacked import train_stacked
from attractor.train.checkpoint import TrainState, list_checkpoints
from attractor.train.config import Runtime, TrainConfig
from attractor.train.device_decisions import all_finite
from attractor.train.display import Display
from attractor.train.loop import Run, train
from attractor.train.trainer import StepResult
from same_runs import Interrupt, assert_same_run, newest_tensors, train_in_parts

ROLLBACK = Runtime(device="cpu", log_every=1, save_every=3, on_divergence="rollback", telemetry_every=4)
Overflow = Callable[[Callable[[Run], bool]], None]
SpoilData = Interrupt  # takes the numbers of batches


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(Display, "note", lambda display, text: lines.append(text))
    return lines


@pytest.fixture
def overflow(monkeypatch: pytest.MonkeyPatch) -> Overflow:
    """Make the weights overflow after each step for which the function holds, with a finite loss and gradient."""

    def arrange(holds: Callable[[Run], bool]) -> None:
        move = Run.move

        def overflowing(run: Run, step: int, finite: Tensor) -> None:
            move(run, step, finite)
            if holds(run):
                with torch.no_grad():
                    run.model.embedding.weight[0, 0] = math.inf

        monkeypatch.setattr(Run, "move", overflowing)

    return arrange


@pytest.fixture
def spoil_data(change_losses: Callable) -> SpoilData:
    """Make the loss NaN on these batches of the data, counted from 0, at whichever step they are read."""
    return lambda numbers: change_losses(
        lambda run, loss: loss * math.nan if run.number_of_batch(run.step) in numbers else loss
    )


def state_of(checkpoint: Path) -> dict[str, Any]:
    return json.loads((checkpoint / "state.json").read_text())


def is_finite(checkpoint: Path) -> bool:
    return all_finite(load_file(checkpoint / "model.safetensors").values())


@pytest.mark.parametrize(
    ("optimizer", "lr"), [("adamw", 1e30), ("adamw", 1e300), ("muon", 1e30), ("muon", 3e38), ("muon", 1e300)]
)
def test_absurd_rates_end_in_a_true_line_with_a_good_checkpoint(
    config: TrainConfig, tmp_path: Path, optimizer: str, lr: float
) -> None:
    """Criterion: the run is stopped, and not by an error. Where a checkpoint was good before, it is kept and named."""
    config = config.replace(optimizer=optimizer, lr=lr, warmup_steps=0, max_bad_steps=4)
    line = train(config, tmp_path, Runtime(device="cpu", save_every=1))["diverged"]
    newest = list_checkpoints(tmp_path / "checkpoints")[-1]
    assert "not finite 4 steps in a row" in line
    assert "\n" not in line
    assert ("they are not finite" in line) == (not is_finite(newest))
    assert "no checkpoint is good" in line or is_finite(tmp_path / "checkpoints" / line.split("is ")[-1].split(";")[0])


@pytest.mark.parametrize("n_steps", [4, 5])
def test_a_run_that_diverged_has_no_loss_and_takes_no_step_when_its_command_is_repeated(
    config: TrainConfig, tmp_path: Path, n_steps: int
) -> None:
    """Criterion: the loss of its last finite weights, with which it would enter means, is not its result. It is an
    outcome: an unfinished run would be left out of a verdict, and the runs that survived would decide it."""
    config = config.replace(lr=1e30, warmup_steps=0, max_bad_steps=3, n_steps=n_steps)
    for _ in range(3):
        summary = train(config, tmp_path, Runtime(device="cpu"))
        assert "not finite" in summary["diverged"]
        assert summary["steps"] <= 4
        run = outcome(0, RunFolder.open(tmp_path))
        for quantity in (LOSS, PERPLEXITY, MEAN_LOSS):
            assert math.isnan(quantity.compared(run))
    assert RunFolder.open(tmp_path).state == "diverged"
    assert observe(tmp_path).rows["standard"][0].diverged
    assert Job(config, tmp_path).diverged == summary["diverged"]
    (tmp_path / "summary.json").write_text("{")  # a damaged run stops nothing else: it is left out where it is read
    assert Job(config, tmp_path).diverged is None


def test_the_last_good_checkpoint_outlives_all_that_follow_it(
    config: TrainConfig, tmp_path: Path, overflow: Overflow
) -> None:
    """Criterion: weights overflow in step 4 with a finite gradient, and checkpoints of steps 4 to 10 follow. The one
    of step 3 is kept, and the message names it and says that the newest weights are not finite."""
    overflow(lambda run: run.step == 3)
    line = train(config.replace(max_bad_steps=6), tmp_path, Runtime(device="cpu", save_every=1, keep=2))["diverged"]
    assert "The newest weights are saved" in line
    assert "they are not finite: the last good checkpoint is step-00000003;" in line
    kept = list_checkpoints(tmp_path / "checkpoints")
    assert [(path.name[-2:], is_finite(path)) for path in kept] == [("03", True), ("09", False), ("10", False)]


def test_moments_that_are_not_finite_are_not_good(config: TrainConfig, tmp_path: Path, runtime: Runtime) -> None:
    """Criterion: an infinite second moment of AdamW freezes a weight, and shows neither in the loss nor the weights."""
    move = Run.move

    def spoiled(run: Run, step: int, finite: Tensor) -> None:
        move(run, step, finite)
        if step == 5:
            next(iter(run.optimizer.state.values()))["exp_avg_sq"].view(-1)[0] = math.inf

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "move", spoiled)
        train(config, tmp_path, runtime)
    last = list_checkpoints(tmp_path / "checkpoints")[-1]
    assert is_finite(last)
    assert state_of(last)["good_step"] == 5


def test_a_usual_loss_is_at_most_twice_the_lowest() -> None:
    def is_usual(*losses: float, bad_steps: int = 0) -> bool:
        state = TrainState(bad_steps=bad_steps)
        for loss in losses:
            state.note_loss(loss)
        return state.is_usual

    for usual in ([], [2.0] * 10 + [4.0] * 10, [2.0] * 12 + [9.0], [5.0, 9.0] + [3.0] * 10, [0.001] * 10 + [0.09] * 10):
        assert is_usual(*usual)
    assert not is_usual(*[2.0] * 10, *[4.3] * 10)
    assert not is_usual(2.0, bad_steps=1)


def test_a_checkpoint_whose_loss_is_too_high_does_not_replace_the_good_one(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_step = Run.take_step

    def rising(run: Run) -> StepResult:
        step = take_step(run)
        return StepResult(step.rate, step.numbers | {"loss": step.numbers["loss"] * (5 if run.step >= 4 else 1)})

    monkeypatch.setattr(Run, "take_step", rising)
    train(config, tmp_path, Runtime(device="cpu", save_every=1, keep=1))
    kept = list_checkpoints(tmp_path / "checkpoints")
    good = state_of(kept[-1])["good_step"]
    assert 4 <= good < 10
    assert good in {int(path.name.removeprefix("step-")) for path in kept}


def test_a_resumed_run_remembers_its_losses_around_a_non_finite_one(
    config: TrainConfig, tmp_path: Path, spoil: Callable, interrupt_during: Interrupt
) -> None:
    """Criterion: 50 losses after a resumption the detector of spikes still works; JSON has no NaN."""
    spoil([3], "loss")
    interrupt_during([5])
    config = config.replace(n_steps=56, eval_every=56)
    with pytest.raises(RunInterrupted):
        train(config, tmp_path, Runtime(device="cpu"))
    assert train(config, tmp_path, Runtime(device="cpu"))["steps"] == 56


def test_a_rollback_goes_to_the_good_checkpoint_and_skips_the_data(
    config: TrainConfig, tmp_path: Path, spoil_data: SpoilData, notes: list[str]
) -> None:
    """Criterion: data 7 and 8 stop the run at step 9. It goes back to step 6, and goes on with data 9, which a state,
    the metrics, the summary and a line say."""
    spoil_data([7, 8])
    read: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        task = type(config.build_task())
        make = task.train_batch
        patch.setattr(task, "train_batch", lambda self, step, size: (read.append(step), make(self, step, size))[1])
        summary = train(config.replace(max_bad_steps=2), tmp_path, ROLLBACK)
    assert read[-(12 - 6) :] == [9, 10, 11, 12, 13, 14]
    assert summary["rollbacks"] == 1
    assert summary["data_skipped"] == [[6, 6, 9]]
    assert summary["steps"] == 12
    assert summary["skipped_steps"] == 0
    line = "rollback 1 of 3: diverged at step 9, back to the good checkpoint of step 6, skipping the data of the 3"
    assert any(line in note for note in notes)
    records = RunFolder.open(tmp_path).metrics()
    (rollback,) = [record for record in records if "rollback" in record]
    assert {**rollback, "tokens": 0} == {"step": 7, "tokens": 0, "rollback": 1, "diverged_at": 9, "batches_skipped": 3}
    assert [record["step"] for record in records if "loss" in record] == list(range(1, 13))


VARIANTS: dict[str, dict[str, Any]] = {
    "AdamW": {},
    "Muon and QuacK": {"optimizer": "muon", "quack": 0.1},
    "average and regularizer": {"ema": 0.9, "regularizer": "spectral"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_rolled_back_run_that_is_interrupted_equals_one_that_is_not(
    config: TrainConfig, tmp_path: Path, spoil_data: SpoilData, interrupt_during: Interrupt, variant: str
) -> None:
    """Criterion: two rollbacks, the second before another checkpoint, and interruptions before, between and after
    them, at steps where nothing else is saved. The interrupted run also saves after each step, by time."""
    spoil_data([4, 5, 7, 8])
    config = config.replace(max_bad_steps=2, **VARIANTS[variant])
    assert train(config, tmp_path / "whole", ROLLBACK)["data_skipped"] == [[3, 3, 6], [3, 6, 9]]
    runtime = replace(ROLLBACK, save_every_minutes=1e-9)
    train_in_parts(config, tmp_path / "parts", runtime, interrupt_during, 1, 4, 7, 10)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_run_that_diverges_before_its_first_checkpoint_goes_back_to_its_start(
    config: TrainConfig, tmp_path: Path, overflow: Overflow
) -> None:
    overflow(lambda run: run.step == 1 and not run.state.rollbacks)
    assert train(config.replace(max_bad_steps=2), tmp_path, ROLLBACK)["data_skipped"] == [[0, 0, 4]]
    assert all_finite(newest_tensors(tmp_path)["weights"].values())


def test_rollbacks_have_a_limit(config: TrainConfig, tmp_path: Path, overflow: Overflow, notes: list[str]) -> None:
    overflow(lambda run: run.step == 4)
    line = train(config.replace(max_bad_steps=2), tmp_path, ROLLBACK)["diverged"]
    assert [note[:15] for note in notes if "rollback" in note] == [f"rollback {n} of 3" for n in (1, 2, 3)]
    assert "2 steps in a row (max_bad_steps=2) after 3 rollbacks. The newest weights are saved" in line
    assert "the last good checkpoint is step-00000003; try" in line


def test_a_stopped_run_can_be_rolled_back_when_it_is_resumed(
    config: TrainConfig, tmp_path: Path, spoil_data: SpoilData
) -> None:
    spoil_data([7, 8])
    config = config.replace(max_bad_steps=2)
    assert "diverged" in train(config, tmp_path, Runtime(device="cpu", save_every=3))
    summary = train(config, tmp_path, ROLLBACK)
    assert summary["data_skipped"] == [[6, 6, 9]]
    assert math.isfinite(summary["valid_loss"])
    assert RunFolder.open(tmp_path).state == "finished"


def test_stacked_runs_refuse_to_roll_back_and_cuda_graphs(config: TrainConfig, tmp_path: Path) -> None:
    jobs = [Job(config.replace(seed=seed), tmp_path / str(seed)) for seed in (0, 1)]
    for runtime in (ROLLBACK, Runtime(cuda_graphs=True)):
        with pytest.raises(InputError, match="on_divergence must be stop, with cuda_graphs off"):
            train_stacked(jobs, runtime)


def test_stacked_runs_keep_the_good_checkpoint_and_name_it(config: TrainConfig, tmp_path: Path) -> None:
    config = config.replace(lr=1e30, max_bad_steps=3, warmup_steps=0, model=config.model.replace(dropout=0.0))
    jobs = [Job(config.replace(seed=seed), tmp_path / str(seed)) for seed in (0, 1)]
    train_stacked(jobs, Runtime(device="cpu", save_every=1))
    for job in jobs:
        reason = (RunFolder.open(job.path).summary() or {})["diverged"]
        assert "is good" in reason or "the last good checkpoint is step-" in reason
