"""Starting weights that depend on (seed, name) alone, so that models which differ in one part share all the others."""

import hashlib
from collections.abc import Callable
from typing import Protocol, cast

import torch
from torch import Tensor, nn


class HasResidualOutputs(Protocol):
    def residual_outputs(self) -> list[Tensor]: ...


def initialize(model: nn.Module, seed: int) -> None:
    """Draw every module's parameters by its own `reset_parameters`, from a seed of its own.

    Matrices that write into the residual stream start smaller by sqrt(their number), as GPT-2's do, so that the size of
    the stream at the start does not depend on the depth.
    """
    with torch.random.fork_rng(devices=[]):
        for name, module in model.named_modules():
            if next(module.parameters(recurse=False), None) is None:
                continue
            digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
            torch.manual_seed(int.from_bytes(digest[:7]))
            cast(Callable[[], None], module.reset_parameters)()
    outputs = cast(HasResidualOutputs, model).residual_outputs()
    with torch.no_grad():
        for weight in outputs:
            weight.mul_(len(outputs) ** -0.5)
