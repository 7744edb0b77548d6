"""Interventions on attention that the configuration of a run asks for, checked first and then attached to its steps.

    quack, quack_norm    learning rates of each head's query and key weights, by the norms of their partners
    qk_rate              one smaller learning rate for all of them: the baseline of QuacK
    qk_clip              after a step, scale down the weights of a head whose largest logit passed a threshold
    regularizer          a penalty on attention's weights, times regularizer_weight, is added to the loss

The control of a study scores nothing, so interventions have nothing to act on there, and it trains without them.
Whatever changes the model itself (QK-norm, soft-cap, sigmaReparam, the penalty on logits) is a field of the model.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from attractor.attention import Attention
from attractor.attention.project.values import ValueProjection
from attractor.errors import InputError, require, require_known

if TYPE_CHECKING:
    from attractor.control import HeadRates, QKClip, Regularizer

Config = Any  # a TrainConfig, which imports this module to check its fields
SPECTRAL_OF_OSCILLATORS = 1e-5  # Jacobians' weight of the spectral penalty on AKOrN


def check(config: Config) -> None:
    """Refuse interventions that the model cannot have, or that contradict one another."""
    check_regularizer(config)
    if config.quack is None:
        rule, next_step = "'frobenius' without quack", "give quack, too"
        require(config.quack_norm == "frobenius", "quack_norm", rule, config.quack_norm, next_step)
    active = [name for name in ("quack", "qk_rate", "qk_clip") if getattr(config, name) is not None]
    if not active:
        return
    from attractor.control import NORMS
    from attractor.control.heads import known_heads
    from attractor.control.qk_clip import refuse_obstacle
    from attractor.train.parts import without_data

    require_known("norm of QuacK", config.quack_norm, NORMS)
    if config.quack is not None and config.qk_rate is not None:
        raise InputError(
            f"qk_rate must be None with quack, whose tau sets the same rates at the start, got {config.qk_rate:g}; "
            f"leave one of the two out, or give quack={config.quack * config.qk_rate:g}"
        )
    if any(getattr(stage, "sigma_reparam", False) for stage in config.model.attention_config.stages):
        raise InputError(
            f"sigma_reparam must be off with {active[0]}, since its matrices are divided by their own norm before they "
            f"act; leave one of the two out"
        )
    views = known_heads(model := without_data(config.model))
    if not views and not is_control(model):
        rule = f"None where no layer is known to have logits, as in '{config.model.label}'"
        require(False, active[0], rule, getattr(config, active[0]), "leave it out")
    if config.qk_clip is not None:
        for view in views:
            refuse_obstacle(view)


def check_regularizer(config: Config) -> None:
    name, weight = config.regularizer, config.regularizer_weight
    if name is None:
        rule, next_step = "None without a regularizer", "name one, or leave it out"
        require(weight is None, "regularizer_weight", rule, weight, next_step)
        return
    from attractor.control.regularize import REGULARIZERS
    from attractor.models.energy import EnergyAttention
    from attractor.train.parts import without_data

    require_known("regularizer", name, REGULARIZERS)
    is_weight = weight is None or 0 <= weight < math.inf
    next_step = "0 computes the penalty and changes nothing"
    require(is_weight, "regularizer_weight", "at least 0 and finite, or None", weight, next_step)
    modules = list((model := without_data(config.model)).modules())
    built_in = any(isinstance(module, EnergyAttention) for module in modules)
    require(not built_in, "regularizer", "None where attention has an energy by construction", name, "leave it out")
    attends = any(isinstance(module, Attention) for module in modules)
    require(attends, "regularizer", "None for a model without attention", name, "leave it out")
    if not is_control(model):
        REGULARIZERS[name](model)


def is_control(model: nn.Module) -> bool:
    """Return whether the model is the control of a study, which has no queries, since it attends to all alike."""
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    return bool(layers) and all(isinstance(layer.project, ValueProjection) for layer in layers)


class Penalty:
    """Adds the gradient of a regularizer to that of the loss, once a step.

    The penalty depends on weights alone, which all processes share. So each process computes it, and nothing is
    averaged. Sharded weights are gathered layer by layer, and each process keeps its shard of the gradient.
    """

    def __init__(self, regularizer: "Regularizer", weight: float) -> None:
        self.regularizer, self.weight = regularizer, weight

    def add_gradients(self) -> Tensor:
        """Add the gradients, unless the weight is 0, and return the penalty without its weight."""
        layers = self.regularizer.layers
        return torch.stack([self._add_for_layer(layer, parameters) for layer, parameters in layers.items()]).sum()

    def _add_for_layer(self, layer: str, parameters: Mapping[str, nn.Parameter]) -> Tensor:
        from attractor.train.distributed import placed_as, whole

        weights = {name: whole(p.detach()).requires_grad_(p.requires_grad) for name, p in parameters.items()}
        value = self.regularizer.of(layer, weights)
        trained = [name for name, weight in weights.items() if weight.requires_grad]
        if self.weight and trained:
            gradients = torch.autograd.grad(value, [weights[name] for name in trained])
            for name, gradient in zip(trained, gradients, strict=True):
                parameter, added = parameters[name], placed_as(gradient * self.weight, parameters[name])
                parameter.grad = added if parameter.grad is None else parameter.grad.add_(added)
        return value.detach()


class Interventions:
    """The interventions on a run: a penalty on its gradients, and rates and clipping around its optimizer.

    `process_group` is that of the processes that carry out the run, or () for one process."""

    def __init__(self, config: Config, model: nn.Module, optimizer: Optimizer, process_group: Any = ()) -> None:
        self.penalty: Penalty | None = None
        self.rates: HeadRates | None = None
        self.clip: QKClip | None = None
        if config.regularizer is not None and not is_control(model):
            from attractor.control.regularize import REGULARIZERS

            self.penalty = Penalty(REGULARIZERS[config.regularizer](model), regularizer_weight(config))
        if config.quack is None and config.qk_rate is None and config.qk_clip is None:
            return
        from attractor import control
        from attractor.control.heads import known_heads

        if not known_heads(model):
            return
        if config.quack is not None:
            self.rates = control.QuacK(model, optimizer, config.quack, config.quack_norm)
        elif config.qk_rate is not None:
            self.rates = control.FixedRates(model, optimizer, config.qk_rate)
        if config.qk_clip is not None:
            self.clip = control.QKClip(model, optimizer, config.qk_clip, process_group)

    def state_dict(self) -> dict[str, Any]:
        regularizer = {} if self.penalty is None else {"regularizer": self.penalty.regularizer.state_dict()}
        clip = {} if self.clip is None else {"clips": self.clip.n_clipped}
        return regularizer | clip | ({} if self.rates is None else {"rates": self.rates.state_dict()})

    def load_state_dict(self, stored: dict[str, Any]) -> None:
        if self.penalty is not None:
            self.penalty.regularizer.load_state_dict(stored["regularizer"])
        if self.rates is not None:
            self.rates.load_state_dict(stored["rates"])
        if self.clip is not None:
            self.clip.count_from(stored.get("clips", 0))  # older checkpoints hold none


def regularizer_weight(config: Config) -> float:
    """Return the weight that the configuration gives, or the default of its kind."""
    from attractor.control.regularize import REGULARIZERS

    if config.regularizer_weight is not None:
        return float(config.regularizer_weight)
    if config.regularizer == "spectral" and config.model.family == "akorn":
        return SPECTRAL_OF_OSCILLATORS
    return REGULARIZERS[config.regularizer].usual_weight
