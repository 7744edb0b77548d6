"""The probe `coupling` measures how much a finished model uses its slow path, and counts its trained parameters.

    worth = loss with the gate closed - loss as trained                                                     (1)

An open gate alone proves little, since at a high rate noise opens a gate, too. (1) measures how much the model relies
on the slow path. It is not the gain from the coupling, which only a model trained without it can show.

    constrained = |logits without the constraint - logits| / |logits|                                       (2)

(2) measures whether a constraint of norm changes what the model computes. Where it changes nothing, equal losses say
nothing about the constraint. The logits without it are those of the trained weights, without the unit sphere of the
slow state and with equal residual streams.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from attractor.models import FastSlow
from attractor.models.language_model import LanguageModel
from attractor.study.study import Probe
from attractor.train.config import TrainConfig
from attractor.train.evaluate import validate
from attractor.train.hardware import on_device


def coupling_of_run(model: LanguageModel, config: TrainConfig) -> dict[str, Any]:
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    measured: dict[str, Any] = {"trained_parameters": trained}
    if coupled(model):
        measured["worth"] = worth(model, config)
    if isinstance(model, FastSlow) and (model.config.streams > 1 or model.injection.on_sphere):
        measured["constrained"] = constrained(model, config)
    return {"coupling": measured}


def coupled(model: LanguageModel) -> bool:
    return isinstance(model, FastSlow) and not model.config.frozen


def worth(model: LanguageModel, config: TrainConfig) -> float:
    """Measure (1) on the run's own validation batches."""
    assert isinstance(model, FastSlow)
    task = config.build_task()
    as_trained = validate(model, task, config).loss
    with gate_at(model, 0.0):
        return validate(model, task, config).loss - as_trained


def constrained(model: FastSlow, config: TrainConfig) -> float:
    """Measure (2) on the run's first validation batch."""
    (batch,) = config.build_task().valid_batches(config.micro_batch_size, 1)
    tokens, _, _ = on_device(batch, model.device)
    with torch.no_grad():
        logits, _ = model(tokens)
        with unconstrained(model):
            free, _ = model(tokens)
    return float((free - logits).norm() / logits.norm())


@contextmanager
def unconstrained(model: FastSlow) -> Iterator[None]:
    """Within the block, take slow states off the sphere, and write equally to all residual streams."""
    written = [weights for name, weights in model.named_parameters() if name.endswith("_mixing.write_weights")]
    as_trained, on_sphere = [weights.detach().clone() for weights in written], model.injection.on_sphere
    try:
        with torch.no_grad():
            for weights in written:
                weights.zero_()
        model.injection.on_sphere = False
        yield
    finally:
        model.injection.on_sphere = on_sphere
        with torch.no_grad():
            for weights, trained in zip(written, as_trained, strict=True):
                weights.copy_(trained)


@contextmanager
def gate_at(model: FastSlow, gamma: float, scale: float = 1.0) -> Iterator[None]:
    """Within the block, set the gate to gamma, and scale the injection."""
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


COUPLING_PROBE = Probe("coupling", coupling_of_run)
