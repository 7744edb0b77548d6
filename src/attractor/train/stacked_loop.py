"""The training loop of runs that differ by their seed alone: they take each step together, as rows of one `Stack`.

Each run keeps its own data order, clipping, counters, folder and checkpoints in the ordinary form. So whatever reads or
resumes a run need not know how its steps were taken. Its summary and environment say `stacked`: the number of runs in
the process. Time and memory are divided evenly among the runs, and are no measure of a run alone.

Nothing is read from the device until a line of metrics, an evaluation or a checkpoint is due.
"""

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from attractor.errors import InputError, RunInterrupted
from attractor.runs.run_folder import ENVIRONMENT
from attractor.tasks import Batch
from attractor.train.config import TrainConfig
from attractor.train.evaluate import Evaluation, validate
from attractor.train.hardware import on_device
from attractor.train.heap import freed_memory_kept
from attractor.train.interrupt import StopRequest
from attractor.train.loop import Run, is_observed
from attractor.train.parameters import parameter_groups
from attractor.train.parts import without_data
from attractor.train.stacked import NUMBERS, Stack

LARGEST = 20_000_000  # parameters; a larger model keeps a device busy alone, and several of them may not fit


def stackable(config: TrainConfig) -> str | None:
    """Return None if runs of this configuration can be trained together, else the reason why not."""
    model = config.model
    obstacles = {
        "dropout draws random numbers, of which each run has its own": bool(
            model.dropout or any(mechanism.dropout for mechanism in model.mechanisms)
        ),
        "fp16 needs a loss scale for each run": config.precision == "fp16",
        "activation checkpointing recomputes one model at a time": config.activation_checkpointing,
        "Muon orthogonalises the matrices of one model": config.optimizer != "adamw",
        "the stack has no parameter group for gates with a learning rate of their own": config.gate_lr is not None,
        "each run carries the states of its own batch from step to step": model.steps_of_batch > 1,
        "each run has its own noise, which blanks start from": getattr(model, "blank", None) is not None,
        "an average of the weights is that of one model": config.ema is not None,
        "a regularizer adds to the gradients of one model": config.regularizer is not None,
        "QuacK, fixed rates and QK-clip act on the step of one optimizer": any(
            value is not None for value in (config.quack, config.qk_rate, config.qk_clip)
        ),
    }
    if obstacle := next((why for why, holds in obstacles.items() if holds), None):
        return obstacle
    parameters = list((built := without_data(model)).parameters())
    n_parameters = sum(parameter.numel() for parameter in parameters)
    if n_parameters > LARGEST:
        return f"a model of {n_parameters:,} parameters is too large to stack (at most {LARGEST:,})"
    if not all(parameter.requires_grad for parameter in parameters):
        return "the model has parameters that are not trained"
    if next(built.buffers(), None) is not None:
        return "the model keeps a state beside its parameters"
    return _cannot_be_vmapped(model, config.seq_len)


@lru_cache(maxsize=64)
def _cannot_be_vmapped(config: Any, seq_len: int) -> str | None:
    """Return what, if anything, prevents the gradients of two such models without data."""
    model = without_data(config)
    optimizer = torch.optim.AdamW(parameter_groups(model, weight_decay=0.1))
    stack = Stack([model] * 2, [optimizer] * 2, nullcontext, 1.0, 1, [0, 0], traced=False)
    inputs = np.zeros((1, seq_len), dtype=np.int64)
    targets = inputs if config.n_classes is None else np.zeros(1, np.float64 if config.n_classes == 1 else np.int64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns if it would compute one model after another
            stack.gradients([Batch(inputs, targets)] * 2, 1)
    except Exception as error:
        if not (isinstance(error, RuntimeError | UserWarning) or config.own_code):  # no refusal, but a fault of ours
            raise
        return f"its step cannot be vmapped: {type(error).__name__}: {error}".splitlines()[0]
    return None


class StackedRun(Run):
    """One of the runs: an ordinary run whose steps and evaluations are computed by the stack."""

    training: "StackedTraining"
    row: int
    has_stopped = False

    def join(self, training: "StackedTraining", row: int) -> None:
        self.training, self.row, self.memory = training, row, training.memory
        self.folder.write(ENVIRONMENT, self.folder.environment | {"stacked": len(training.runs)})
        self.folder.seal()
        self.has_stopped = self.divergence is not None

    def account_for(self, rate: float, numbers: Mapping[str, float]) -> None:
        super().account_for(rate, numbers)
        if self.divergence is not None:
            self.checkpoints.save()
            self.has_stopped = True

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        # A separate run would still have the random state of its seed, since a stackable model draws nothing.
        torch.manual_seed(self.config.seed)
        # torch would save a view with all rows that it is part of.
        return tree_map_only(Tensor, torch.clone, super().tensors())

    def evaluation(self, part: str) -> Evaluation:
        return self.training.evaluations(part)[self.row]

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"stacked": len(self.training.runs)}


class StackedTraining:
    """The runs in progress, which all stand at the same step."""

    def __init__(self, runs: Sequence[StackedRun], traced: bool | None = None) -> None:
        first = runs[0]
        self.runs, self.config, self.runtime, self.device = runs, first.config, first.runtime, first.device
        for run in runs:
            run.checkpoints.restore()
        standing = {f"seed {run.config.seed} at {run.state.step}" for run in runs}
        if len({run.state.step for run in runs}) > 1:
            raise InputError(
                f"stacked runs must stand at the same step, got {', '.join(sorted(standing))}; "
                "let the ordinary loop finish them: attractor train --resume"
            )
        self.step = first.state.step
        self.stack = Stack(
            [run.model for run in runs],
            [cast(torch.optim.AdamW, run.optimizer) for run in runs],
            first.autocast,
            self.config.clip,
            self.config.max_bad_steps,
            [run.state.bad_steps for run in runs],
            # On a CPU, computing takes longer than launching.
            traced=self.device.type == "cuda" if traced is None else traced,
            compiler=first.compiler if self.config.compile else None,
        )
        self.memory, self.compiling = first.memory, first.compiling
        self.memory.n_shares = len(runs)
        for row, run in enumerate(runs):
            run.join(self, row)
        self.unread: list[tuple[float, Tensor]] = []  # learning rates and NUMBERS of steps that are not read yet
        self.since = time.perf_counter()
        self.evaluated: dict[str, list[Evaluation]] = {}

    @property
    def alive(self) -> list[StackedRun]:
        return [run for run in self.runs if not run.has_stopped]

    def carry_out(self, stop: StopRequest) -> None:
        for run in self.runs:
            run.display.begin(run.facts(), self.step, self.config.n_steps)
        self.since = time.perf_counter()
        with self.compiling:
            self.take_steps(stop)

    def take_steps(self, stop: StopRequest) -> None:
        n_steps = self.config.n_steps
        while self.step < n_steps and self.alive:
            self.take_step()
            interrupted = stop.signal_number
            is_time = any(run.checkpoints.is_time for run in self.alive)
            if not (interrupted or is_time or is_observed(self.config, self.runtime, self.step)):
                continue
            self.read_steps()
            for run in self.alive:
                run.observe(interrupted, stop.saving, is_time)
            self.since = time.perf_counter()
            if interrupted is not None and self.step < n_steps:
                raise RunInterrupted(
                    f"interrupted after step {self.step}, saved: {len(self.runs)} runs trained together. "
                    "Resume with the same command",
                    interrupted,
                )

    def take_step(self) -> None:
        config = self.config
        rate = config.learning_rate(self.step)
        batches = [run.task.train_batch(self.step, config.batch_size) for run in self.runs]
        self.unread.append((rate, self.stack.take_step(batches, config.accumulation, rate)))
        self.evaluated = {}
        self.step += 1

    def read_steps(self) -> None:
        """Read the numbers of the unread steps, and account for them in every run."""
        numbers_of_steps = torch.stack([numbers for _, numbers in self.unread]).tolist()  # waits for the device
        compiled, self.compiling.seconds = self.compiling.seconds, 0.0
        seconds = (time.perf_counter() - self.since - compiled) / len(self.unread) / len(self.runs)
        for run in self.alive:
            run.state.compile_seconds += compiled / len(self.runs)
            if compiled:
                run.display.note(f"compiled in {compiled:.1f} s for {len(self.runs)} runs together")
        for (rate, _), numbers in zip(self.unread, numbers_of_steps, strict=True):
            for run in self.alive:
                run.state.train_seconds += seconds
                run.account_for(rate, {name: row[run.row] for name, row in zip(NUMBERS, numbers, strict=True)})
        self.unread = []

    def evaluations(self, part: str) -> list[Evaluation]:
        """Return the evaluation of every run on the same batches. All are computed at once, and only once at a step."""
        if part not in self.evaluated:
            task, config = self.runs[0].task, self.config
            batches = task.valid_batches(config.micro_batch_size, config.eval_batches, part)
            judged = [self.stack.judge(*on_device(batch, self.device)) for batch in batches]

            def judge_of(row: int) -> Callable[..., tuple[Tensor, Tensor]]:
                of_run = iter([(losses[row], predictions[row]) for losses, predictions in judged])
                return lambda *batch: next(of_run)

            self.evaluated[part] = [validate(run.model, task, config, part, judge_of(run.row)) for run in self.runs]
        return self.evaluated[part]


def train_stack(runs: Sequence[StackedRun], traced: bool | None = None) -> None:
    """Carry runs of one configuration and several seeds to their end."""
    together = StackedTraining(runs, traced)
    try:
        with StopRequest(runs[0].overdue) as stop, freed_memory_kept(), runs[0].quick_products():
            together.carry_out(stop)
    finally:
        for run in runs:
            run.close()
    for run in runs:
        run.conclude()
