"""Evaluate any causal model, ours or not: likelihoods of texts, measures of what happens inside, answers on boards."""

from importlib import import_module
from types import ModuleType

__all__ = ["boards", "measures", "texts"]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return import_module(f"attractor.evaluate.{name}")
    raise AttributeError(f"module 'attractor.evaluate' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
