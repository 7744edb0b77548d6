"""What of a finished run's model is in use: the parameters that were trained, and what the slow path is worth to it.

    worth = loss with the gate shut - loss as trained                                                       (1)

An open gate alone says little, since noise would open one at a high rate; (1) says by how much the rest has come to
rely on what passes it. It is not what the coupling has gained: that takes a model that was trained without.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from attractor.models import FastSlow
from attractor.models.language_model import LanguageModel
from attractor.train.config import TrainConfig
from attractor.train.evaluate import evaluate
from attractor.train.loop import AUTOCAST


def coupling_of_run(model: LanguageModel, config: TrainConfig) -> dict[str, Any]:
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return {"coupling": {"trained_parameters": trained} | ({"worth": worth(model, config)} if coupled(model) else {})}


def coupled(model: LanguageModel) -> bool:
    return isinstance(model, FastSlow) and not model.config.frozen


def worth(model: LanguageModel, config: TrainConfig) -> float:
    """(1), on the run's own validation batches."""
    assert isinstance(model, FastSlow)
    half = AUTOCAST.get(config.precision)
    autocast = torch.autocast(model.device.type, half) if half else nullcontext()
    sizes = config.batch_size // config.accumulation, config.eval_batches
    task = config.build_task()
    as_trained = evaluate(model, task, *sizes, autocast).loss
    with gate_at(model, 0.0):
        return evaluate(model, task, *sizes, autocast).loss - as_trained


@contextmanager
def gate_at(model: FastSlow, gamma: float, scale: float = 1.0) -> Iterator[None]:
    """For a while, the gate as it is told, and the injection `scale` times as large."""
    gate, weight = model.injection.gate, model.injection.norm.weight
    as_trained = gate.detach().clone(), weight.detach().clone()
    try:
        with torch.no_grad():
            gate.fill_(gamma)
            weight.mul_(scale)
        yield
    finally:
        with torch.no_grad():
            gate.copy_(as_trained[0])
            weight.copy_(as_trained[1])
