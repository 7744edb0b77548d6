"""What a run's config asks for on its attention logits, checked before anything runs and attached to its optimizer.

    quack, quack_norm    rates of each head's query and key weights by the norms of their partners
    qk_rate              one smaller rate for all of them: what QuacK is compared with
    qk_clip              weights of a head whose largest logit has passed a threshold, scaled down after the step

A model that scores nothing, as the control of a study, has nothing that they could act on, and trains without them.
What changes the model itself (QK-norm, soft-cap, sigmaReparam, the penalty on logits) is a field of the model.
"""

import math
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn
from torch.optim import Optimizer

from attractor.attention.stage import require
from attractor.errors import InputError, unknown
from attractor.models.config import ModelConfig

if TYPE_CHECKING:
    from attractor.control import HeadRates, QKClip

OPTIMIZERS = ("adamw", "muon")


class Asked(Protocol):
    """The fields of a run's config that matter here."""

    @property
    def model(self) -> ModelConfig: ...
    @property
    def optimizer(self) -> str: ...
    @property
    def quack(self) -> float | None: ...
    @property
    def quack_norm(self) -> str: ...
    @property
    def qk_rate(self) -> float | None: ...
    @property
    def qk_clip(self) -> float | None: ...


def check(config: Asked) -> None:
    if config.optimizer not in OPTIMIZERS:
        raise unknown("optimizer", config.optimizer, OPTIMIZERS)
    for name in ("quack", "qk_rate", "qk_clip"):
        value = getattr(config, name)
        require(value is None or 0 < value < math.inf, name, "positive and finite, or None", value)
    asked = [name for name in ("quack", "qk_rate", "qk_clip") if getattr(config, name) is not None]
    if not asked:
        return
    from attractor.control import NORMS
    from attractor.control.heads import heads_found
    from attractor.control.qk_clip import refuse_obstacle
    from attractor.train.parts import without_data

    if config.quack_norm not in NORMS:
        raise unknown("norm of QuacK", config.quack_norm, NORMS)
    if config.quack is not None and config.qk_rate is not None:
        raise InputError(
            f"qk_rate must be None with quack, whose tau sets the same rates at the start, got {config.qk_rate:g}; "
            f"leave one of the two out, or give quack={config.quack * config.qk_rate:g}"
        )
    if config.model.attention_config.project.sigma_reparam:
        raise InputError(
            f"sigma_reparam must be off with {asked[0]}, since its matrices are divided by their own norm before they "
            f"act; leave one of the two out"
        )
    if config.qk_clip is not None:
        for view in heads_found(without_data(config.model)):
            refuse_obstacle(view)


class Interventions:
    """What is attached to a run's optimizer, in the order in which it acts on a step."""

    def __init__(self, config: Asked, model: nn.Module, optimizer: Optimizer) -> None:
        self.rates: HeadRates | None = None
        self.clip: QKClip | None = None
        if config.quack is None and config.qk_rate is None and config.qk_clip is None:
            return
        from attractor import control
        from attractor.control.heads import heads_found

        if not heads_found(model):
            return

        if config.quack is not None:
            self.rates = control.QuacK(model, optimizer, config.quack, config.quack_norm)
        elif config.qk_rate is not None:
            self.rates = control.FixedRates(model, optimizer, config.qk_rate)
        if config.qk_clip is not None:
            self.clip = control.QKClip(model, optimizer, config.qk_clip)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.rates is None else {"rates": self.rates.state_dict()}

    def load_state_dict(self, stored: dict[str, Any]) -> None:
        if self.rates is not None:
            self.rates.load_state_dict(stored["rates"])
