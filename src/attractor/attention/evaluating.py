"""Put a model into evaluation mode for a while. Each module gets its own mode back, as a frozen one may differ."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, Self, runtime_checkable

from torch import nn


@runtime_checkable
class HasModes(Protocol):
    """What a module offers, so that the protocols of models can ask for it."""

    def modules(self) -> Iterator[nn.Module]: ...

    def eval(self) -> Self: ...


@contextmanager
def evaluating(model: HasModes) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
