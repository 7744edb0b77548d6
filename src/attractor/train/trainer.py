"""The trainer of a run: its model, its optimizer, and the training step.

    step: learning rate of the schedule; gradients of the micro-batches; clipping; update, unless not finite

On a GPU, reading a value makes the host wait. So the device decides whether a step is applied
(`device_decisions.py`), and a step returns its loss and gradient norm as tensors, which the loop reads later.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from attractor.kernels.precision import autocast, quick_products
from attractor.models.language_model import LanguageModel
from attractor.tasks import Batch, Task
from attractor.train.average import Average
from attractor.train.checkpoint import TrainState
from attractor.train.compiled import compiler, refuse_cuda_graphs
from attractor.train.config import Runtime, TrainConfig
from attractor.train.device_decisions import StepDecisions, all_finite, step_where
from attractor.train.distributed import World, accumulating, gathered, placed_as, unsharded, whole
from attractor.train.evaluate import Evaluation, validate
from attractor.train.hardware import PeakMemory, on_device, resolve_device
from attractor.train.interventions import Interventions
from attractor.train.optimizer import build_optimizer, load_optimizer, set_rate
from attractor.train.parts import training_flops_per_token
from attractor.train.recompute import SAVED_OPS
from attractor.train.segments import Segments
from attractor.train.start import load_start
from attractor.train.telemetry import parameter_norm


@dataclass(frozen=True)
class StepResult:
    """The learning rate and the numbers of a step that was taken; the numbers are still on the device."""

    rate: float
    numbers: dict[str, Tensor]  # loss, grad_norm, finite; under some configurations also penalty and param_norm


class Trainer:
    """All that training changes, besides the files of the run."""

    def __init__(self, config: TrainConfig, task: Task, runtime: Runtime, world: World | None = None) -> None:
        self.config, self.task, self.runtime, self.world = config, task, runtime, world or World()
        self.state = TrainState()
        self.unread: list[StepResult] = []  # steps that are taken, but not read and therefore not in the state yet
        self.prefetched: Iterator[Batch] | None = None  # batches that a thread makes before their steps
        if runtime.threads is not None:
            torch.set_num_threads(runtime.threads)
        self.device = resolve_device(runtime.device)
        self.memory = PeakMemory(self.device)
        torch.manual_seed(config.seed)
        self.model: LanguageModel = config.model.build(config.seed)
        if config.start_folder is not None:
            load_start(config.start_folder, self.model)
        self.model.to(self.device)
        self.model.activation_checkpointing = config.activation_checkpointing
        self.model.saved_ops = SAVED_OPS[config.recompute]
        if runtime.cuda_graphs:
            refuse_cuda_graphs(config, self.device)
        padded = config.compile and task.train_batch(0, config.batch_size).real is not None
        self.compiler = compiler(config, runtime, padded)
        self.loss = self.world.spread(self.model, runtime.parallel, self.compiler)
        self.segments = Segments(config.model.steps_of_batch, self.world)
        self.optimizer = build_optimizer(self.model, config)
        self.interventions = Interventions(config, self.model, self.optimizer, self.world.group)
        self.average = None if config.ema is None else Average(self.model, config.ema, config.ema_every)
        self.autocast = partial(autocast, self.device, config.precision)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.precision == "fp16")
        self.flops_per_token = training_flops_per_token(config.model, config.seq_len)

    @property
    def step(self) -> int:
        """The number of the next step, from 0."""
        return self.state.step + len(self.unread)

    def take_step(self) -> StepResult:
        """Take one optimizer step. Where loss or gradient is not finite, the weights stay as they are."""
        config, step = self.config, self.step
        rate = config.learning_rate(step)
        set_rate(self.optimizer, rate)
        batch = next(self.prefetched) if self.prefetched else self.batch_of(step)
        self.world.seed(config.seed, step)
        if self.runtime.cuda_graphs:
            torch.compiler.cudagraph_mark_step_begin()
        self.segments.begin(self.number_of_batch(step))
        loss = torch.zeros((), device=self.device)
        # The shares make the step independent of the accumulation and of the number of processes.
        micro_batches = self.world.parts(batch, config.accumulation)
        for number, (micro_batch, share) in enumerate(micro_batches, start=1):
            with accumulating(self.loss, more=number < len(micro_batches)):
                loss += self.gradients(micro_batch, share)
        self.scaler.unscale_(self.optimizer)
        penalty = self.interventions.penalty
        penalised = {} if penalty is None else {"penalty": penalty.add_gradients()}
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), config.clip or math.inf, foreach=True)
        loss, norm = self.world.mean(loss, whole(norm).to(self.device))
        finite = torch.isfinite(loss + norm)
        self.move(step, finite)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        # Where the numbers are read later, the norm of the parameters would by then be that of a later step.
        norms = {"param_norm": whole(parameter_norm(self.model))} if self.late else {}
        return StepResult(rate, {"loss": loss, "grad_norm": norm, "finite": finite, **penalised, **norms})

    def quick_products(self) -> AbstractContextManager[None]:
        """Compute the run's half precision in the quickest way while the block runs."""
        return quick_products(self.device, self.config.precision)

    def batch_of(self, step: int) -> Batch:
        """Return the batch of a step, a function of the step and of the data that rollbacks have skipped."""
        return self.task.train_batch(self.number_of_batch(step), self.config.batch_size)

    def number_of_batch(self, step: int) -> int:
        return (step + self.state.n_skipped_batches) // self.segments.n_segments

    def gradients(self, batch: Batch, share: float) -> Tensor:
        """Add the gradients of a micro-batch, weighted by its share, and return its share of the loss."""
        with self.quick_products():
            with self.autocast():
                loss, aux_loss, *states = self.loss(*on_device(batch, self.device), *self.segments.carried())
            self.segments.keep(states)
            self.scaler.scale((loss + aux_loss) * share).backward()
        return loss.detach() * share

    def move(self, step: int, finite: Tensor) -> None:
        """Update the weights and their average, unless the step is not finite."""
        if self.late:
            applied = self.decisions.applied(finite)
            step_where(self.optimizer, applied)  # gradients are unscaled already; overflowed ones are not finite
            if self.average is not None:
                self.average.update(step, applied)
        elif finite:
            self.scaler.step(self.optimizer)
            if self.average is not None:
                self.average.update(step)
        elif self.interventions.clip is not None:
            self.interventions.clip.maxima.reset()  # a resumed run would not know them, and no weight has moved

    @cached_property
    def late(self) -> bool:
        """Whether the numbers of a step are read later than at its end.

        QK-clip reads the logits at every step, so reading late gains nothing. A loss scaler would go on to halve its
        scale in the steps after the one at which the run is to stop.
        """
        return self.device.type != "cpu" and self.interventions.clip is None and not self.scaler.is_enabled()

    @cached_property
    def decisions(self) -> StepDecisions:
        return StepDecisions(self.device, self.state.bad_steps, self.config.max_bad_steps)

    def is_finite(self) -> bool:
        """Return whether all numbers of the weights, their average and the optimizer are finite, in every process."""
        means = () if self.average is None else self.average.means.values()
        of_optimizer = [value for values in self.optimizer.state.values() for value in values.values()]
        return self.world.largest(int(not all_finite([*self.model.state_dict().values(), *means, *of_optimizer]))) == 0

    def evaluation(self, part: str) -> Evaluation:
        """Evaluate the model, with its averaged weights where there is an average, on one validation set."""
        averaged = nullcontext() if self.average is None else self.average.in_place()
        with averaged, unsharded(self.model):
            return validate(self.model, self.task, self.config, part)

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what a checkpoint holds: the weights, and all else that a resumed run continues from.

        Sharded tensors are gathered in the first process.
        """
        collected = partial(gathered, keep=self.world.is_first)
        means, trained = ({}, {}) if self.average is None else (self.average.means, self.average.trained)
        return collected(self.model.state_dict() | means), {
            "trained": collected({name: parameter.detach() for name, parameter in trained.items()}),
            "optimizer": collected(self.optimizer.state_dict()),
            "scaler": self.scaler.state_dict(),
            "interventions": self.interventions.state_dict(),
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
            **self.segments.state_dict(),
        }

    def load_tensors(self, weights: dict[str, Tensor], tensors: dict[str, Any]) -> None:
        """Continue from what `tensors` returned."""
        self.__dict__.pop("decisions", None)  # a trainer that is rolled back counts non-finite steps anew
        wanted = self.model.state_dict()
        self.model.load_state_dict({name: placed_as(tensor, wanted[name]) for name, tensor in weights.items()})
        if self.average is not None:
            self.average.go_on_from(tensors["trained"])
        load_optimizer(self.optimizer, tensors["optimizer"])
        self.scaler.load_state_dict(tensors["scaler"])
        self.interventions.load_state_dict(tensors.get("interventions", {}))  # older checkpoints have none
        self.segments.load_state_dict(tensors, self.device)
        torch.set_rng_state(tensors["random"].cpu())
        if tensors["random_cuda"] is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(tensors["random_cuda"].cpu(), self.device)
