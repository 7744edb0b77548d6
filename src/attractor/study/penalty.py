"""The probe `penalty` measures whether a penalty on weights could have acted: its gradient beside that of the loss.

    ratio          |w dP/dW| / |dL/dW|       over the weights W that the penalty P takes                    (1)
    ratio_to_all   |w dP/dW| / |dL/dtheta|   over all parameters of the model                               (2)

w is the penalty's weight, and L the loss of the first batch. Both gradients are those of the run's first step, at its
first weights: the probe needs the configuration of a run and nothing that it has learned. A penalty whose ratio is far
below 1 leaves the weights where the loss alone puts them, and its effect on accuracy says nothing about the penalty.

`probes.penalty` of runs with a penalty: `weight`, `gradient` (the numerator), `ratio`, `ratio_to_all`.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from attractor.models.language_model import LanguageModel
from attractor.train.config import Runtime, TrainConfig
from attractor.train.learner import Learner


def penalty_of_run(model: LanguageModel, config: TrainConfig) -> dict[str, Any]:
    if config.regularizer is None:
        return {}
    runtime = Runtime(device=str(model.device))
    learner = Learner(config.replace(compile=False), config.build_task(), runtime)
    penalty = learner.interventions.penalty
    if penalty is None:  # the control of a study attends to all alike, and trains without a penalty
        return {}
    learner.model.train()
    learner.world.seed(config.seed, 0)
    learner.segments.begin(learner.number_of_batch(0))
    with torch.enable_grad():
        for micro_batch, share in learner.world.parts(learner.batch_of(0), config.accumulation):
            learner.gradients(micro_batch, share)
        learner.scaler.unscale_(learner.optimizer)
        of_all = _norm(parameter.grad for parameter in learner.model.parameters())
        penalised = [weight for weights in penalty.regularizer.layers.values() for weight in weights.values()]
        of_penalised = _norm(weight.grad for weight in penalised)
        learner.optimizer.zero_grad(set_to_none=True)
        penalty.add_gradients()
    gradient = _norm(weight.grad for weight in penalised)
    measured = {"weight": penalty.weight, "gradient": gradient}
    return {"penalty": measured | {"ratio": gradient / of_penalised, "ratio_to_all": gradient / of_all}}


def _norm(gradients: Iterable[Tensor | None]) -> float:
    return sum(float(gradient.double().square().sum()) for gradient in gradients if gradient is not None) ** 0.5
