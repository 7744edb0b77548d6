"""Equilibria: fixed points of maps, constraints of their states, and the master equation of Markov chains.

The modules that need scipy are imported when they are first used.
"""

from importlib import import_module
from types import ModuleType

from attractor.equilibrium import fixed_point, manifold

__all__ = ["fixed_point", "manifold"]

_ON_DEMAND = ("master_equation",)


def __getattr__(name: str) -> ModuleType:
    if name in _ON_DEMAND:
        return import_module(f"attractor.equilibrium.{name}")
    raise AttributeError(f"module 'attractor.equilibrium' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, *_ON_DEMAND]
