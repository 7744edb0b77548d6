"""Equilibria: fixed points of maps, the manifolds they live on, and the master equation behind them.

What needs scipy is imported when it is first named.
"""

from importlib import import_module
from types import ModuleType

from attractor.equilibrium import fixed_point, manifold

__all__ = ["fixed_point", "manifold"]

_ON_DEMAND = ("master_equation", "projector")


def __getattr__(name: str) -> ModuleType:
    if name in _ON_DEMAND:
        return import_module(f"attractor.equilibrium.{name}")
    raise AttributeError(f"module 'attractor.equilibrium' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, *_ON_DEMAND]
