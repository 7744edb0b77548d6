"""Models: a Transformer whose attention is any mechanism."""

from attractor.models.transformer import SIZES, Transformer, TransformerConfig

__all__ = ["SIZES", "Transformer", "TransformerConfig"]
