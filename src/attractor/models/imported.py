"""Transformers with the choices of other architectures, which `attractor import` reads from Hugging Face.

    h = s E[tokens] (+ P[positions]);   h <- block_L( ... block_1(h));   logits = c tanh(E (s' norm(h)) / c)

s is `embedding_scale`, s' is `logit_scale` and c is `logit_softcap`. Parallel branches read the same stream:

    h <- h + Attention(norm(h)) + MLP(norm'(h))                                                             (1)

With one norm per block, norm' is norm (Cohere); with two, they differ (GPT-NeoX). An imported model that makes none of
these choices, such as Llama, is a plain `Transformer`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Self

from torch import Tensor, nn

from attractor.attention import Rope, Rotation
from attractor.attention.named import Mechanism
from attractor.attention.norm import LayerNorm
from attractor.errors import require
from attractor.fields import later
from attractor.models.block import Attend, Block
from attractor.models.language_model import TokenPlacement
from attractor.models.mlp import MLPS
from attractor.models.transformer import Transformer, TransformerConfig

NORMS: dict[str, Callable[..., nn.Module]] = {
    "rmsnorm": nn.RMSNorm,
    "layernorm": LayerNorm,
    "layernorm-no-bias": partial(LayerNorm, bias=False),
}
OF_IMPORTED_ATTENTION = ("attention_scale", "rope_fraction", "qk_norm_across", "qk_norm_eps")


@dataclass(frozen=True)
class ImportedConfig(TransformerConfig):
    """A TransformerConfig with the fields of imported architectures; parallel branches may share one norm per block."""

    rope_fraction: float = later(1.0)
    """leading part of each head that RoPE rotates (GPT-NeoX)"""
    local_rope_theta: float | None = later(None)
    """rope_theta of layers with a window, unscaled; by default as the others"""
    no_rope_every: int | None = later(None)
    """of every so many layers, the last has no RoPE (SmolLM3)"""
    embedding_scale: float = later(1.0)
    """factor on token embeddings at the input, not on the readout (Gemma)"""
    branch_scale: float = later(1.0)
    """factor on what each branch adds to the stream (Granite)"""
    logit_scale: float = later(1.0)
    """factor on the logits of the readout (Cohere)"""
    logit_softcap: float | None = later(None)
    """bound c on the logits of the next token: c tanh(logit / c) (Gemma 2); by default off"""
    attention_scale: float | None = later(None)
    """factor of attention's logits; by default K ** -0.5"""
    mlp_bias: bool = later(False)
    """biases in the MLP"""
    qk_norm_across: bool = later(False)
    """QK-norm over all heads together, not over each (OLMo 2)"""
    qk_norm_eps: float = later(1e-6)
    """number added under the root of QK-norm"""
    stream_norm: str = later("rmsnorm")
    """norm of the stream: rmsnorm, layernorm or layernorm-no-bias"""
    post_norm: bool = later(False)
    """normalise each branch's output and not its input (OLMo 2)"""
    parallel_branches: bool = later(False)
    """both branches of a block read the same stream (GPT-NeoX, Cohere)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.stream_norm in NORMS, "stream_norm", f"one of {', '.join(NORMS)}", self.stream_norm)
        for field in ("embedding_scale", "branch_scale", "logit_scale", "logit_softcap", "local_rope_theta"):
            default, value = getattr(ImportedConfig, field), getattr(self, field)
            rule = "positive and finite" + (", or None" if default is None else "")
            require(value == default or 0 < value < math.inf, field, rule, value)
        if self.no_rope_every is not None:
            self.require_count("no_rope_every")
        for field in ("no_rope_every", "rope_fraction", "local_rope_theta"):
            default, value = getattr(ImportedConfig, field), getattr(self, field)
            rule = f"{default} without positions='rope'"
            require(self.positions == "rope" or value == default, field, rule, value)
        has_window = self.local_rope_theta is None or self.attention_config.window is not None
        require(has_window, "window", "given with local_rope_theta", None, "or leave it out")

    def _require_norms(self) -> None:
        if self.parallel_branches:
            require(not self.post_norm, "parallel_branches", "False with post_norm", True)
            rule = "1 or 2 with parallel branches"
            require(self.norms_per_block in (1, 2), "norms_per_block", rule, self.norms_per_block)
        else:
            super()._require_norms()
            require(self.norms_per_block == 2 or not self.post_norm, "norms_per_block", "2 with post_norm", 4)

    def mechanism(self, attention: str | Mechanism, with_window: bool = True) -> Mechanism:
        values = {name: getattr(self, name) for name in OF_IMPORTED_ATTENTION}
        changes = {name: value for name, value in values.items() if value != getattr(ImportedConfig, name)}
        return super().mechanism(attention, with_window).replace(**changes)

    def build_norm(self) -> nn.Module:
        return NORMS[self.stream_norm](self.d_model, eps=self.norm_eps)

    @classmethod
    def of(cls, config: TransformerConfig) -> Self:
        """Return the same config with all fields of imported architectures."""
        return cls(**{f.name: getattr(config, f.name) for f in fields(config)})

    def build_uninitialised(self) -> "ImportedTransformer":
        return ImportedTransformer(self)


def transformer_config(stored: Mapping[str, Any]) -> TransformerConfig:
    """Return the config with these fields, an `ImportedConfig` only if a TransformerConfig cannot hold them."""
    defaults = {f.name: f.default for f in set(fields(ImportedConfig)) - set(fields(TransformerConfig))}
    needed = {name: value for name, value in stored.items() if name not in defaults or value != defaults[name]}
    return (ImportedConfig if needed.keys() & defaults.keys() else TransformerConfig).from_dict(needed)


class ImportedBlock(Block):
    def __init__(self, config: ImportedConfig, attention: Mechanism, layer_index: int) -> None:
        super().__init__(config, attention, layer_index)
        if config.post_norm:
            self.attention_norm, self.attention_post_norm = self.attention_post_norm, self.attention_norm
            self.mlp_norm, self.mlp_post_norm = self.mlp_post_norm, self.mlp_norm
        if config.norms_per_block == 1:
            self.mlp_norm = nn.Identity()
        self.mlp = MLPS[config.mlp](config.d_model, config.d_ff, bias=config.mlp_bias)
        self.branch_scale, self.is_parallel = config.branch_scale, config.parallel_branches
        self.is_plain = self.branch_scale == 1 and not self.is_parallel

    def joined(self, x: Tensor, attend: Attend) -> tuple[Tensor, Tensor]:
        if not self.is_parallel:
            return super().joined(x, attend)
        attended, aux_loss = attend(x)
        is_shared = isinstance(self.mlp_norm, nn.Identity)
        return x + attended + self.transform(self.attention_norm(x) if is_shared else x), aux_loss  # (1)

    def added(self, branch: Tensor) -> Tensor:
        return scaled(super().added(branch), self.branch_scale)


class ImportedTransformer(Transformer):
    kind_of_block = ImportedBlock
    config: ImportedConfig

    def build_core(self) -> None:
        super().build_core()
        theta, of_tokens = self.config.local_rope_theta, self.config.n_classes is None
        self.local_rope = None if theta is None else Rope(self.rope_width, theta)
        self.logit_softcap = self.config.logit_softcap if of_tokens else None  # logits of classes have no bound

    def rotations(self, placement: TokenPlacement) -> list[Rotation | None]:
        """Return the rotation of each block, which is None in layers without RoPE."""
        skipped = self.config.no_rope_every
        local = placement.rotation if self.local_rope is None else self.local_rope.at(placement.positions)
        rotations = [placement.rotation if layer.attention.window is None else local for layer in self.layers]
        return [x if skipped is None or number % skipped else None for number, x in enumerate(rotations, 1)]

    def embedded(self, tokens: Tensor, placement: TokenPlacement) -> Tensor:
        x = tokens if tokens.is_floating_point() else self.embedding(tokens)
        return super().embedded(scaled(x, self.config.embedding_scale), placement)

    def normed(self, x: Tensor) -> Tensor:
        return scaled(super().normed(x), self.config.logit_scale)


def scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor
