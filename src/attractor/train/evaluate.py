"""Validation: loss, accuracy, and how much the context helps.

    context gain = loss on the first 16 positions - loss on the last half                                   (1)

A model that has not learned to use its context gains nothing, and cannot tell attention mechanisms apart.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from attractor.attention.evaluating import evaluating
from attractor.kernels.cross_entropy import NOT_SCORED
from attractor.kernels.precision import autocast
from attractor.models.language_model import LanguageModel
from attractor.tasks import Task
from attractor.tasks.task import Measured
from attractor.train.config import TrainConfig
from attractor.train.hardware import on_device

FIRST_POSITIONS = 16
Judge = Callable[..., tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Evaluation:
    loss: float  # nats per scored token
    accuracy: float
    context_gain: float | None  # None where either stretch of positions holds nothing that is scored
    measures: dict[str, float] = field(default_factory=dict)  # the task's own
    by_position: tuple[float, ...] = ()  # the mean loss at each position; NaN where nothing is scored

    def metric(self, name: str) -> dict[str, object]:
        """The task's own metric, as a run's summary states it."""
        if name == "perplexity":
            return {"name": name, "value": math.exp(min(self.loss, 700.0)), "better": "lower"}
        return {"name": name, "value": self.measures.get(name, self.accuracy), "better": "higher"}


OF_DIVERGED = Evaluation(math.nan, math.nan, None)


@torch.no_grad()
def validate(
    model: LanguageModel, task: Task, config: TrainConfig, part: str = "valid", judge: Judge | None = None
) -> Evaluation:
    """Evaluate a model as its own run does: in the precision, the batches and the number of batches of its config.

    `judge` returns the losses and predictions of a batch; the default is the model's own method.
    """
    device, judge = model.device, judge or model.judge
    losses = counts = n_hits = torch.zeros(0)  # on the device, until all batches are through
    all_targets, all_predictions = [], []
    with evaluating(model):
        for batch in task.valid_batches(config.micro_batch_size, config.eval_batches, part):
            inputs, wanted, real = on_device(batch, device)
            with autocast(device, config.precision):
                loss, predicted = judge(inputs, wanted, real)
            columns = wanted.shape[1] if wanted.dim() == 2 else 1
            if not len(counts):
                losses, counts = torch.zeros(2, columns, dtype=torch.float64, device=device)
                n_hits = torch.zeros((), dtype=torch.long, device=device)
            losses += loss.view(-1, columns).double().sum(0)
            counts += (wanted != NOT_SCORED).view(-1, columns).double().sum(0)
            n_hits += (predicted == wanted).sum()
            if isinstance(task, Measured):
                all_targets.append(batch.targets)
                all_predictions.append(predicted.cpu().numpy())
    losses, counts = losses.cpu(), counts.cpu()
    measures = {}
    if isinstance(task, Measured):
        measures = task.measure(np.concatenate(all_targets), np.concatenate(all_predictions))
    first, half = slice(0, FIRST_POSITIONS), slice(len(counts) // 2, None)
    comparable = len(counts) // 2 >= FIRST_POSITIONS and counts[first].sum() > 0 and counts[half].sum() > 0
    gain = losses[first].sum() / counts[first].sum() - losses[half].sum() / counts[half].sum()  # (1)
    return Evaluation(
        loss=float(losses.sum() / counts.sum()),
        accuracy=int(n_hits) / float(counts.sum()),
        context_gain=float(gain) if comparable else None,
        measures=measures,
        by_position=tuple((losses / counts).tolist()),
    )
