"""Models: a Transformer whose attention is any mechanism, and FastSlow, which has two timescales."""

from attractor.models.families import FAMILIES, SIZES
from attractor.models.fast_slow import FastSlow, FastSlowConfig
from attractor.models.transformer import Transformer, TransformerConfig

__all__ = ["FAMILIES", "SIZES", "FastSlow", "FastSlowConfig", "Transformer", "TransformerConfig"]
