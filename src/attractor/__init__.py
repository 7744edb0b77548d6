"""attractor: attention as a dynamical system.

    attractor.attention.build("coupled-euler", d_model=512, n_heads=8)      one layer, for a model of your own
    attractor.models.SIZES["small"].replace(attention="gated").build()      a language model on any mechanism
    with attractor.capture("weights") as seen: ...                          what happens inside

Rooms that need more than torch are imported when they are first named.
"""

from importlib import import_module
from importlib.metadata import version
from types import ModuleType

from attractor import analysis, attention, models
from attractor.observe import attention_maps
from attractor.tap import capture, tap

__all__ = ["analysis", "attention", "attention_maps", "capture", "models", "tap"]
__version__ = version("attractor")

_ON_DEMAND = ("control", "equilibrium", "evidence", "hf", "report", "scoring", "solving", "study", "tasks", "train")


def __getattr__(name: str) -> ModuleType:
    if name in _ON_DEMAND:
        return import_module(f"attractor.{name}")
    raise AttributeError(f"module 'attractor' has no attribute '{name}'")
