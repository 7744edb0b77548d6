"""Models: a Transformer whose attention is any mechanism, FastSlow, which has two timescales, and recurrent ones."""

from attractor.models.akorn import AKOrN, AKOrNConfig
from attractor.models.families import FAMILIES, SIZES
from attractor.models.fast_slow import FastSlow, FastSlowConfig
from attractor.models.imported import ImportedConfig, ImportedTransformer
from attractor.models.itrsa import ItrSA, ItrSAConfig
from attractor.models.itrsa_prenorm import PreNormItrSA, PreNormItrSAConfig
from attractor.models.recursive import Recursive, RecursiveConfig
from attractor.models.transformer import Transformer, TransformerConfig

__all__ = [
    "FAMILIES",
    "SIZES",
    "AKOrN",
    "AKOrNConfig",
    "FastSlow",
    "FastSlowConfig",
    "ImportedConfig",
    "ImportedTransformer",
    "ItrSA",
    "ItrSAConfig",
    "PreNormItrSA",
    "PreNormItrSAConfig",
    "Recursive",
    "RecursiveConfig",
    "Transformer",
    "TransformerConfig",
]


def __dir__() -> list[str]:
    return __all__
