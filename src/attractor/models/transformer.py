"""The Transformer of CoupledQK: pre-norm blocks of attention and a gated MLP, with tied embeddings.

    core: h <- block_L( ... block_1(h))

The defaults are RMSNorm, SwiGLU, learned positions and no biases. CoupledQK, appendix B: Gahtan and Bronstein, Coupled
Query-Key Dynamics for Attention, 2026, arXiv 2604.01683.
"""

from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from attractor.attention import Cache, Rotation
from attractor.attention.couple.dynamics import Dynamics
from attractor.models.block import Block, ParallelBlock
from attractor.models.config import TRANSFORMER, ModelConfig
from attractor.models.fast_decoding import decode_step, plain_block_modules
from attractor.models.language_model import LanguageModel, ModelCache, TokenPlacement


@dataclass(frozen=True)
class TransformerConfig(ModelConfig["Transformer"]):
    family: ClassVar[str] = TRANSFORMER

    n_layers: int = 8

    def __post_init__(self) -> None:
        self.require_count("n_layers")
        super().__post_init__()

    @property
    def depth(self) -> str:
        return str(self.n_layers)

    @property
    def layer_equivalents(self) -> float:
        return float(self.n_layers)

    @property
    def gates(self) -> tuple[str, ...]:
        """The gates of coupling with `zero_start`."""
        couple = self.attention_config.couple
        gated = isinstance(couple, Dynamics) and couple.zero_start
        return tuple(f"blocks.{index}.attention.couple.gate" for index in range(self.n_layers)) if gated else ()

    def build_uninitialised(self) -> "Transformer":
        return Transformer(self)


class TransformerCache(ModelCache):
    """The caches of a Transformer, one for each layer."""

    def __init__(self, n_layers: int) -> None:
        super().__init__()
        self.layers = [Cache() for _ in range(n_layers)]


class Transformer(LanguageModel):
    config: TransformerConfig

    def build_core(self) -> None:
        mechanism = self.config.attention_config
        kind = ParallelBlock if self.config.parallel_branches else Block
        self.blocks = nn.ModuleList(kind(self.config, mechanism, index) for index in range(self.config.n_layers))

    @property
    def layers(self) -> list[Block]:
        return cast(list[Block], list(self.blocks))

    def rotations(self, placement: TokenPlacement) -> list[Rotation | None]:
        """Return the rotation of each block, which is None in layers without RoPE."""
        skipped = self.config.no_rope_every
        numbers = range(1, len(self.blocks) + 1)
        return [placement.rotation if skipped is None or number % skipped else None for number in numbers]

    def through(self, x: Tensor, placement: TokenPlacement, cache: ModelCache | None) -> tuple[Tensor, Tensor]:
        aux_loss = torch.zeros((), device=x.device)
        caches = cast(TransformerCache, cache).layers if cache is not None else [None] * len(self.blocks)
        rotations = self.rotations(placement)
        if cache is not None and x.shape[1] == 1 and (parts := plain_block_modules(self.blocks)) is not None:
            return decode_step(parts, x, placement.mask, rotations, cast(TransformerCache, cache).layers), aux_loss
        for block, rotation, its_cache in zip(self.layers, rotations, caches, strict=True):
            x, aux = self.run(block, x, placement.mask, rotation, its_cache)
            aux_loss = aux_loss + aux
        return x, aux_loss

    def empty_cache(self) -> TransformerCache:
        return TransformerCache(self.config.n_layers)
