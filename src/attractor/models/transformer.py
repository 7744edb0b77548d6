"""The Transformer of CoupledQK: pre-norm blocks of attention and a gated MLP, with tied embeddings.

    core: h <- block_L( ... block_1(h))

A hybrid has another mechanism in the layers that `global_layers` names, each layer with its own cache.
The defaults are RMSNorm, SwiGLU, learned positions and no biases. CoupledQK, appendix B: Gahtan and Bronstein, Coupled
Query-Key Dynamics for Attention, 2026, arXiv 2604.01683.
"""

from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from attractor.attention import AttentionConfig, Cache, Rotation, build
from attractor.attention.named import Mechanism, label_of
from attractor.attention.surroundings import FirstValues
from attractor.errors import InputError, require
from attractor.fields import later
from attractor.models.block import Block
from attractor.models.config import TRANSFORMER, ModelConfig, grows_with_square, mixes_first_values
from attractor.models.fast_decoding import decode_step, plain_block_modules
from attractor.models.language_model import LanguageModel, ModelCache, TokenPlacement
from attractor.models.shapes_only import shapes_only


@dataclass(frozen=True)
class TransformerConfig(ModelConfig["Transformer"]):
    family: ClassVar[str] = TRANSFORMER

    n_layers: int = 8
    """number of layers"""
    global_layers: str | None = later(None)
    """layers with no window: every:N, first:N, or indices such as 5,11"""
    attention_global: str | Mechanism | None = later(None)  # noqa: RUF009
    """mechanism of the layers of global_layers; by default as the others"""

    def __post_init__(self) -> None:
        self.require_count("n_layers")
        super().__post_init__()
        if self.attention_global is not None:
            rule = "given with attention_global, such as every:4"
            require(self.global_layers is not None, "global_layers", rule, None)
            self._require_alike()
        if self.global_layers is not None:
            window = self.attention_config.window
            has_use = window is not None or self.attention_global is not None
            next_step = "or attention_global, or leave global_layers out"
            require(has_use, "window", "given with global_layers", window, next_step)
            layer_indices(self.global_layers, self.n_layers)

    def _require_alike(self) -> None:
        """Refuse a hybrid whose layers cannot share what the model gives to all of them."""
        with shapes_only():
            of_layers = [build(x, self.d_model, self.n_heads, 0, self.head_dim) for x in self.mechanisms]
        widths = {layer.rope_width for layer in of_layers} - {0}
        rule = "of a mechanism whose heads rotate as many coordinates as the others"
        require(self.positions != "rope" or len(widths) < 2, "attention_global", rule, self.attention_global)
        first = mixes_first_values(self.layer_mechanism(0))
        has_values = first or not any(map(mixes_first_values, self.mechanisms))
        rule = "one that mixes the values of the first layer only where that layer does, too"
        require(has_values, "attention_global", rule, self.attention_global)

    def layer_mechanism(self, index: int) -> Mechanism:
        """Return the mechanism of a layer; global layers have no window."""
        is_global = self.global_layers is not None and index in layer_indices(self.global_layers, self.n_layers)
        if is_global and self.attention_global is not None:
            return self.mechanism(self.attention_global, with_window=False)
        return self.attention_config.replace(window=None) if is_global else self.attention_config

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        of_global = self.attention_global
        return (self.attention_config, *([] if of_global is None else [self.mechanism(of_global, with_window=False)]))

    @property
    def staged_attention(self) -> AttentionConfig:
        if self.attention_global is not None:
            raise InputError(
                f"attention_global must be None here, got '{label_of(self.attention_global)}': the model must have one "
                "mechanism; export it with attractor's own code, which has both"
            )
        return super().staged_attention

    @property
    def label(self) -> str:
        of_global = self.attention_global
        return super().label if of_global is None else f"{super().label} + {label_of(of_global)} {self.global_layers}"

    @property
    def depth(self) -> str:
        return str(self.n_layers)

    @property
    def layer_equivalents(self) -> float:
        n_global = len(layer_indices(self.global_layers, self.n_layers)) if self.global_layers else 0
        of_global = self.mechanism(self.attention_global or self.attention, with_window=False)
        n_local = (self.n_layers - n_global) * grows_with_square(self.attention_config)
        return float(n_local + n_global * grows_with_square(of_global))

    @property
    def gates(self) -> tuple[str, ...]:
        """The gates of coupling with `zero_start`."""
        return tuple(
            gate
            for i in range(self.n_layers)
            for gate in self.gates_of_coupling(self.layer_mechanism(i), [f"blocks.{i}.attention"])
        )

    def build_uninitialised(self) -> "Transformer":
        return Transformer(self)


def layer_indices(layers: str, n_layers: int) -> frozenset[int]:
    """Return the indices of layers that `every:N` (the last of every N), `first:N` or a list of indices names."""
    kind, colon, number = layers.partition(":")
    numbers = [int(text) if text.strip().isdecimal() else -1 for text in (number if colon else layers).split(",")]
    is_rule = colon and kind in ("every", "first") and len(numbers) == 1 and numbers[0] >= 1
    is_list = not colon and all(0 <= index < n_layers for index in numbers)
    rule = f"every:N, first:N, or indices below n_layers={n_layers} such as 0,5"
    require(bool(is_rule or is_list), "global_layers", rule, layers)
    if kind == "every":
        return frozenset(range(numbers[0] - 1, n_layers, numbers[0]))
    return frozenset(range(min(numbers[0], n_layers)) if colon else numbers)


class TransformerCache(ModelCache):
    """The caches of a Transformer, one for each layer."""

    def __init__(self, layers: list[Cache]) -> None:
        super().__init__()
        self.layers = layers


class Transformer(LanguageModel):
    kind_of_block: ClassVar[type[Block]] = Block
    config: TransformerConfig

    def build_core(self) -> None:
        config, kind = self.config, self.kind_of_block
        self.blocks = nn.ModuleList(kind(config, config.layer_mechanism(i), i) for i in range(config.n_layers))
        self.mixes_first_values = any(map(mixes_first_values, config.mechanisms))

    @property
    def layers(self) -> list[Block]:
        return cast(list[Block], list(self.blocks))

    @property
    def rope_width(self) -> int:
        return max(layer.attention.rope_width for layer in self.layers)

    def rotations(self, placement: TokenPlacement) -> list[Rotation | None]:
        """Return the rotation of each block."""
        return [placement.rotation] * len(self.blocks)

    def through(self, x: Tensor, placement: TokenPlacement, cache: ModelCache | None) -> tuple[Tensor, Tensor]:
        aux_loss = torch.zeros((), device=x.device)
        caches = cast(TransformerCache, cache).layers if cache is not None else [None] * len(self.blocks)
        rotations = self.rotations(placement)
        if cache is not None and x.shape[1] == 1 and (parts := plain_block_modules(self.blocks)) is not None:
            return decode_step(parts, x, placement.mask, rotations, cast(TransformerCache, cache).layers), aux_loss
        carried = [FirstValues()] * self.mixes_first_values
        for block, rotation, its_cache in zip(self.layers, rotations, caches, strict=True):
            x, aux = self.run(block, x, placement.mask, rotation, its_cache, *carried)
            aux_loss = aux_loss + aux
        return x, aux_loss

    def empty_cache(self) -> TransformerCache:
        return TransformerCache([block.attention.new_cache() for block in self.layers])
