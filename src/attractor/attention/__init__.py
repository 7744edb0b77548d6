"""Attention in four stages: project, couple, score, output. A mechanism is one choice at each stage."""

from attractor.attention.cache import Cache
from attractor.attention.config import AttentionConfig
from attractor.attention.layer import Attention, build
from attractor.attention.named import defined_by, mechanism
from attractor.attention.position import Rope, Rotation
from attractor.attention.presets import PRESETS
from attractor.attention.whole import Whole

__all__ = [
    "PRESETS",
    "Attention",
    "AttentionConfig",
    "Cache",
    "Rope",
    "Rotation",
    "Whole",
    "build",
    "defined_by",
    "mechanism",
]


def __dir__() -> list[str]:
    return __all__
