"""The probes `penalty` and `trained-penalty` measure whether a penalty on weights could have acted.

Both compare its gradient with that of the loss on one batch:

    ratio          |w dP/dW| / |dL/dW|       over the weights W that the penalty P takes                    (1)
    ratio_to_all   |w dP/dW| / |dL/dtheta|   over all parameters of the model                               (2)
    reach          ratio * sum of the learning rates of all steps                                           (3)

w is the penalty's weight, and L the loss. Adam divides the gradient of each weight by the usual size of the loss's
gradient there, so (3) is how far a penalty of constant direction moves a weight during training. Where it is far below
the size of weights, about 0.1, the loss alone puts them where they are, and the accuracy of the model says nothing
about the penalty. A penalty may be near its minimum at a run's first weights and act on the weights that training would
give: the spectral norms that `spectral` holds at 1 grow to 5 and more without it. So `penalty` measures the first step
of a run, which needs its configuration alone, and `trained-penalty` the step after its last one, at its best weights.

`probes.penalty` and `probes.trained_penalty` of runs with a penalty: `weight`, `gradient` (the numerator), `ratio`,
`ratio_to_all`, `reach`.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from attractor.models.language_model import LanguageModel
from attractor.study.study import Probe
from attractor.train.config import Runtime, TrainConfig
from attractor.train.trainer import Trainer


def penalty_of_run(model: LanguageModel, config: TrainConfig) -> dict[str, Any]:
    return _beside_the_loss("penalty", model, config, step=0)


def trained_penalty_of_run(model: LanguageModel, config: TrainConfig) -> dict[str, Any]:
    return _beside_the_loss("trained_penalty", model, config, step=config.n_steps)


def _beside_the_loss(name: str, model: LanguageModel, config: TrainConfig, step: int) -> dict[str, Any]:
    """Return (1), (2) and (3) at the weights of the model, on the batch of a step."""
    if config.regularizer is None:
        return {}
    runtime = Runtime(device=str(model.device))
    trainer = Trainer(config.replace(compile=False), config.build_task(), runtime)
    penalty = trainer.interventions.penalty
    if penalty is None:  # the control of a study attends to all alike, and trains without a penalty
        return {}
    trainer.model.load_state_dict(model.state_dict())
    trainer.model.train()
    trainer.world.seed(config.seed, step)
    trainer.segments.begin(trainer.number_of_batch(step))
    with torch.enable_grad():
        for micro_batch, share in trainer.world.parts(trainer.batch_of(step), config.accumulation):
            trainer.gradients(micro_batch, share)
        trainer.scaler.unscale_(trainer.optimizer)
        of_all = _norm(parameter.grad for parameter in trainer.model.parameters())
        penalised = [weight for weights in penalty.regularizer.layers.values() for weight in weights.values()]
        of_penalised = _norm(weight.grad for weight in penalised)
        trainer.optimizer.zero_grad(set_to_none=True)
        penalty.add_gradients()
    gradient = _norm(weight.grad for weight in penalised)
    ratio, rates = gradient / of_penalised, sum(map(config.learning_rate, range(config.n_steps)))
    measured = {"weight": penalty.weight, "gradient": gradient, "ratio": ratio, "ratio_to_all": gradient / of_all}
    return {name: measured | {"reach": ratio * rates}}


def _norm(gradients: Iterable[Tensor | None]) -> float:
    return sum(float(gradient.double().square().sum()) for gradient in gradients if gradient is not None) ** 0.5


PENALTY_PROBE = Probe("penalty", penalty_of_run, weights="first")


TRAINED_PENALTY_PROBE = Probe("trained-penalty", trained_penalty_of_run)
