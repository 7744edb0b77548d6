"""Initial weights as a function of (seed, parameter name), so that models that differ in one part share all others."""

import hashlib
from collections.abc import Callable
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from attractor.attention.whole import WholeLayer


class HasResidualOutputs(Protocol):
    def residual_outputs(self) -> list[Tensor]: ...


def initialize(model: nn.Module, seed: int) -> None:
    """Draw every module's parameters by its `reset_parameters`, seeded by (seed, name of the module).

    Matrices that write into the residual stream are divided by sqrt(their number), as in GPT-2, so that the initial
    size of the stream does not depend on the depth. A layer that joined whole draws all of its weights at once.
    """
    draw(model, seed)
    outputs = cast(HasResidualOutputs, model).residual_outputs()
    with torch.no_grad():
        for weight in outputs:
            weight.mul_(len(outputs) ** -0.5)


def draw(model: nn.Module, seed: int, prefix: str = "") -> None:
    """Draw the parameters of every module; the prefix precedes the names."""
    with torch.random.fork_rng(devices=[]):
        whole = ""
        for name, module in list(model.named_modules()):
            if whole and name.startswith(whole):
                continue
            draws_all = isinstance(module, WholeLayer)
            if not draws_all and next(module.parameters(recurse=False), None) is None:
                continue
            digest = hashlib.sha256(f"{seed}/{prefix}{name}".encode()).digest()
            torch.manual_seed(int.from_bytes(digest[:7]))
            if draws_all:
                whole = f"{name}."
                module.draw_weights()
            else:
                cast(Callable[[], None], module.reset_parameters)()
