"""Validation: loss, accuracy, and how much the context helps.

    context gain = loss on the first 16 positions - loss on the last half                                   (1)

A model that has not learned to use its context gains nothing, and cannot tell attention mechanisms apart.
"""

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from attractor.kernels.cross_entropy import IGNORED, position_losses
from attractor.models import Transformer
from attractor.tasks import Task

FIRST_POSITIONS = 16


@dataclass(frozen=True)
class Evaluation:
    loss: float  # nats per scored token
    accuracy: float
    context_gain: float | None  # None where either stretch of positions holds nothing that is scored

    def metric(self, name: str) -> dict[str, object]:
        """The task's own metric, as a run's summary states it."""
        if name == "accuracy":
            return {"name": "accuracy", "value": self.accuracy, "better": "higher"}
        return {"name": "perplexity", "value": math.exp(min(self.loss, 700.0)), "better": "lower"}


@torch.no_grad()
def evaluate(
    model: Transformer, task: Task, batch_size: int, max_batches: int | None, autocast: AbstractContextManager[Any]
) -> Evaluation:
    """Over the task's validation batches, which are the same for every run."""
    device = model.device
    was_training = model.training
    model.eval()
    losses, hits, counts = (torch.zeros(0, dtype=torch.float64) for _ in range(3))
    for tokens, targets in task.valid_batches(batch_size, max_batches):
        inputs, wanted = torch.from_numpy(tokens).to(device), torch.from_numpy(targets).to(device)
        with autocast:
            hidden, _ = model.hidden(inputs)
            loss, hit = position_losses(hidden.flatten(0, 1), model.readout, wanted.flatten())
        if not len(counts):
            losses, hits, counts = (torch.zeros(wanted.shape[1], dtype=torch.float64) for _ in range(3))
        losses += loss.view_as(wanted).double().sum(0).cpu()
        hits += hit.view_as(wanted).double().sum(0).cpu()
        counts += (wanted != IGNORED).double().sum(0).cpu()
    model.train(was_training)
    first, half = slice(0, FIRST_POSITIONS), slice(len(counts) // 2, None)
    comparable = len(counts) // 2 >= FIRST_POSITIONS and counts[first].sum() > 0 and counts[half].sum() > 0
    gain = losses[first].sum() / counts[first].sum() - losses[half].sum() / counts[half].sum()  # (1)
    return Evaluation(
        loss=float(losses.sum() / counts.sum()),
        accuracy=float(hits.sum() / counts.sum()),
        context_gain=float(gain) if comparable else None,
    )
