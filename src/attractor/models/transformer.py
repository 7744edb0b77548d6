"""The Transformer of CoupledQK: pre-norm blocks of attention and a gated MLP over tied embeddings.

    h = E[tokens] (+ P[positions]);   h <- h + Attention(norm(h));   h <- h + MLP(norm(h));   logits = E norm(h)

RMSNorm, SwiGLU, learned positions, no biases (CoupledQK, appendix B); the other choices serve other families. Read top
down: config, model, block, MLP, and the sizes by name.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attractor.attention import Attention, AttentionConfig, Cache, Rope, Rotation
from attractor.attention.mask import lower_triangle
from attractor.attention.position import LearnedPositions
from attractor.attention.presets import preset
from attractor.attention.stage import require
from attractor.errors import InputError, unknown
from attractor.fields import later, stored_fields
from attractor.kernels.cross_entropy import linear_cross_entropy, position_losses
from attractor.models.generate import generate
from attractor.models.initialize import initialize
from attractor.tap import listening

POSITIONS = ("learned", "rope")
POOLS = ("last", "mean")


@dataclass(frozen=True)
class TransformerConfig:
    vocab_size: int = 50257
    d_model: int = 512
    n_heads: int = 8
    n_kv_heads: int | None = None  # None: as the attention preset says
    n_layers: int = 8
    d_ff: int = 2048
    max_seq_len: int = 2048
    positions: str = "learned"
    attention: str | AttentionConfig = "standard"
    head_dim: int | None = None  # None: d_model / n_heads
    mlp: str = "swiglu"
    tied_embeddings: bool = True
    norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    qkv_bias: bool = False
    qk_norm: bool = later(False)  # this and the next three: interventions on attention's logits (docs/control.md)
    softcap: float | None = later(None)
    sigma_reparam: bool = later(False)
    z_loss: float = later(0.0)
    norms_per_block: int = 2  # 4: each branch is normalised on its way out, too
    dropout: float = 0.0  # on attention weights and on both branches
    causal: bool = True  # False: every position sees all others, and nothing can be generated
    n_classes: int | None = None  # a label for each sequence instead of one for each position; 1: a number
    pool: str = "last"  # what such a label is read from: the last real position, or the mean over the real ones

    def __post_init__(self) -> None:
        for field in ("vocab_size", "d_model", "n_heads", "n_layers", "d_ff", "max_seq_len"):
            value = getattr(self, field)
            require(isinstance(value, int) and value >= 1, field, "an integer of at least 1", value)
        if self.head_dim is None:
            rule = f"divisible by n_heads={self.n_heads}"
            require(self.d_model % self.n_heads == 0, "d_model", rule, self.d_model, "or give head_dim")
        require(self.positions in POSITIONS, "positions", f"one of {', '.join(POSITIONS)}", self.positions)
        require(self.norms_per_block in (2, 4), "norms_per_block", "2 or 4", self.norms_per_block)
        require(0 <= self.dropout < 1, "dropout", "at least 0 and below 1", self.dropout)
        require(self.n_classes is None or self.n_classes >= 1, "n_classes", "at least 1 or None", self.n_classes)
        require(self.pool in POOLS, "pool", f"one of {', '.join(POOLS)}", self.pool)
        require(self.norm_eps > 0, "norm_eps", "positive", self.norm_eps)
        if self.mlp not in MLPS:
            raise unknown("mlp", self.mlp, MLPS)
        with torch.device("meta"):  # whatever else cannot be built is refused here and now, at no cost
            self.attention_layer(0)

    @property
    def attention_config(self) -> AttentionConfig:
        config = preset(self.attention) if isinstance(self.attention, str) else self.attention
        changes: dict[str, Any] = {}
        if self.n_kv_heads is not None:
            changes["n_kv_heads"] = self.n_kv_heads
        for name in ("qkv_bias", "qk_norm", "softcap", "sigma_reparam", "z_loss", "dropout"):
            if getattr(self, name) != getattr(type(self), name):
                changes[name] = getattr(self, name)
        return config.replace(**changes)

    def attention_layer(self, layer_index: int) -> Attention:
        return Attention(self.attention_config, self.d_model, self.n_heads, layer_index, self.head_dim)

    def replace(self, **changes: Any) -> Self:
        known = [f.name for f in fields(self)]
        for key in changes:
            if key not in known:
                raise unknown("model field", key, known)
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        attention = self.attention if isinstance(self.attention, str) else self.attention.to_dict()
        return stored_fields(self) | {"attention": attention}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Self:
        values = dict(stored)
        if isinstance(values.get("attention"), dict):
            values["attention"] = AttentionConfig.from_dict(values["attention"])
        known = [f.name for f in fields(cls)]
        for key in values:
            if key not in known:
                raise unknown("model field", key, known)
        return cls(**values)

    def build(self, seed: int | None = None) -> "Transformer":
        """The model; with a seed, every parameter is drawn from (seed, its name), so models that differ in their
        attention share all weights that both have. Without one, torch's global seed decides."""
        with torch.device("meta"):
            model = Transformer(self)
        device = torch.get_default_device()
        if device.type == "meta":
            return model
        # Always drawn on the CPU, so that a seed means the same weights on every device.
        model.to_empty(device="cpu")
        initialize(model, int(torch.randint(2**31, (), device="cpu")) if seed is None else seed)
        return model.to(device)


class TransformerCache:
    """What decoding remembers: a cache per layer, and which past positions were padding."""

    def __init__(self, n_layers: int) -> None:
        self.layers = [Cache() for _ in range(n_layers)]
        self.real: Tensor | None = None  # B S, False where the sequence was padded

    @property
    def length(self) -> int:
        return self.layers[0].length


class Transformer(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.activation_checkpointing = False
        self.embedding = Embedding(config.vocab_size, config.d_model)
        learned = config.positions == "learned"
        self.positions = LearnedPositions(config.max_seq_len, config.d_model) if learned else None
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, index) for index in range(config.n_layers))
        self.norm = nn.RMSNorm(config.d_model, eps=config.norm_eps)
        n_outputs = config.n_classes or config.vocab_size
        tied = config.tied_embeddings and config.n_classes is None
        self.head = None if tied else nn.Linear(config.d_model, n_outputs, bias=False)
        width = self.layers[0].attention.rope_width
        self.rope = Rope(width, config.rope_theta) if not learned and width else None

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        cache: TransformerCache | None = None,
        real: Bool[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, "B T C"], Float[Tensor, ""]]:
        """Logits and auxiliary loss. `real` is False at padding, which nothing attends to and no position counts."""
        hidden, aux_loss = self.hidden(tokens, cache, real)
        return F.linear(self.read(hidden, real), self.readout), aux_loss

    def loss(
        self, tokens: Int[Tensor, "B T"], targets: Tensor, real: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mean cross-entropy over targets that are not -100, and auxiliary loss, without holding all logits. With one
        class, targets are numbers, and it is the mean squared error."""
        hidden, aux_loss = self.hidden(tokens, real=real)
        read = self.read(hidden, real).flatten(0, -2)
        if self.config.n_classes == 1:
            return F.mse_loss(F.linear(read, self.readout).flatten().float(), targets.float()), aux_loss
        return linear_cross_entropy(read, self.readout, targets.flatten()), aux_loss

    @torch.no_grad()
    def judge(
        self, tokens: Int[Tensor, "B T"], targets: Tensor, real: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The loss of every target (0 where not scored), and the prediction: the likeliest class, or the number."""
        read = self.read(self.hidden(tokens, real=real)[0], real).flatten(0, -2)
        if self.config.n_classes == 1:
            numbers = F.linear(read, self.readout).flatten().float()
            return (numbers - targets.float()).square(), numbers
        losses, likeliest = position_losses(read, self.readout, targets.flatten())
        return losses.view_as(targets), likeliest.view_as(targets)

    def read(self, hidden: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"] | None = None) -> Tensor:
        """What the readout sees: every position, or under `n_classes` one vector for each sequence."""
        if self.config.n_classes is None:
            return hidden
        if self.config.pool == "mean":
            if real is None:
                return hidden.mean(1)
            weights = real.unsqueeze(-1).to(hidden.dtype)
            return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)
        if real is None:
            return hidden[:, -1]
        last = torch.where(real, torch.arange(real.shape[1], device=real.device), 0).amax(1)
        return hidden[torch.arange(len(last), device=last.device), last]

    def hidden(
        self, tokens: Tensor, cache: TransformerCache | None = None, real: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The last block's output, normalised."""
        mask, positions = self._place(tokens, cache, real)
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions(positions)
        rotation = None if self.rope is None else self.rope.at(positions)
        x = self.dropout(x)
        # A tap inside a checkpointed block would be passed twice, and change what the block saves.
        recompute = self.activation_checkpointing and self.training and not listening()
        aux_loss = torch.zeros((), device=x.device)
        for index, block in enumerate(self.layers):
            if recompute:
                x, aux = checkpoint(block, x, mask, rotation, use_reentrant=False)
            else:
                x, aux = block(x, mask, rotation, None if cache is None else cache.layers[index])
            aux_loss = aux_loss + aux
        return self.norm(x), aux_loss

    def _place(
        self, tokens: Tensor, cache: TransformerCache | None, real: Tensor | None
    ) -> tuple[bool | Tensor, Tensor]:
        """The mask and the positions of these tokens, counted after what the cache holds."""
        batch, length = tokens.shape
        past = 0 if cache is None else cache.length
        if self.max_length is not None and past + length > self.max_length:
            raise InputError(
                f"max_seq_len must be at least the sequence's length, got {self.max_length} for "
                f"{past + length} tokens; shorten the sequence or build with a larger max_seq_len or positions='rope'"
            )
        if cache is not None and (real is not None or cache.real is not None):
            seen = tokens.new_ones(batch, past, dtype=torch.bool) if cache.real is None else cache.real
            now = torch.ones_like(tokens, dtype=torch.bool) if real is None else real
            cache.real = real = torch.cat([seen, now], dim=1)
        causal = self.config.causal
        if real is None:
            return causal, torch.arange(past, past + length, device=tokens.device)
        mask = real[:, None, None, :].expand(-1, 1, length, -1)
        if causal:
            mask = mask & lower_triangle(length, past + length, tokens.device)
        return mask, (real.cumsum(1) - 1).clamp(min=0)[:, past:]

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def max_length(self) -> int | None:
        """The longest sequence that has positions; None under RoPE, which has no end."""
        return None if self.positions is None else self.config.max_seq_len

    @property
    def layers(self) -> list["Block"]:
        return cast(list[Block], list(self.blocks))

    @property
    def readout(self) -> Tensor:
        return self.embedding.weight if self.head is None else self.head.weight

    def residual_outputs(self) -> list[Tensor]:
        """The matrices that write into the residual stream; there are 2 L of them."""
        outputs = [module for block in self.layers for module in (block.attention.output.out, block.mlp.down)]
        return [cast(nn.Linear, output).weight for output in outputs]

    def new_cache(self) -> TransformerCache:
        require(self.config.causal, "causal", "True to generate", False)
        require(self.config.n_classes is None, "n_classes", "None to generate", self.config.n_classes)
        return TransformerCache(self.config.n_layers)

    generate = generate


class Block(nn.Module):
    def __init__(self, config: TransformerConfig, layer_index: int) -> None:
        super().__init__()

        def norm() -> nn.Module:
            return nn.RMSNorm(config.d_model, eps=config.norm_eps)

        post = config.norms_per_block == 4
        self.attention_norm = norm()
        self.attention = config.attention_layer(layer_index)
        self.attention_post_norm = norm() if post else nn.Identity()
        self.mlp_norm = norm()
        self.mlp = MLPS[config.mlp](config.d_model, config.d_ff)
        self.mlp_post_norm = norm() if post else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Tensor, mask: bool | Tensor = True, rotation: Rotation | None = None, cache: Cache | None = None
    ) -> tuple[Tensor, Tensor]:
        attended, aux_loss = self.attention(self.attention_norm(x), mask, rotation, cache)
        x = x + self.dropout(self.attention_post_norm(attended))
        return x + self.dropout(self.mlp_post_norm(self.mlp(self.mlp_norm(x)))), aux_loss


class GatedMLP(nn.Module):
    """down(act(gate x) * up x), three matrices."""

    def __init__(self, activation: Callable[[Tensor], Tensor], d_model: int, d_ff: int) -> None:
        super().__init__()
        self.activation = activation
        self.gate = nn.Linear(d_model, d_ff, bias=False)
        self.up = nn.Linear(d_model, d_ff, bias=False)
        self.down = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.gate(x)) * self.up(x))


class PlainMLP(nn.Module):
    """down(gelu(up x)), two matrices."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, d_ff, bias=False)
        self.down = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


MLPS: dict[str, Callable[[int, int], nn.Module]] = {
    "swiglu": partial(GatedMLP, F.silu),
    "geglu": partial(GatedMLP, F.gelu),
    "gelu": PlainMLP,
}


class Embedding(nn.Embedding):
    """Tied to the readout, so drawn small: unit variance would start with logits of standard deviation sqrt(D)."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)


def _qwen(**shape: int) -> TransformerConfig:
    return TransformerConfig(**shape, d_ff=4 * shape["d_model"], positions="rope", rope_theta=1e6)  # type: ignore[arg-type]


# CoupledQK, table 8. `large` is the model as specified there; its "~350M" needs the narrower MLP of `large-354m`.
SIZES: dict[str, TransformerConfig] = {
    "tiny": TransformerConfig(vocab_size=64, d_model=256, n_heads=4, n_layers=6, d_ff=1024, max_seq_len=512),
    "small": TransformerConfig(d_model=512, n_heads=8, n_layers=8, d_ff=2048, max_seq_len=2048),
    "medium": TransformerConfig(d_model=768, n_heads=12, n_layers=12, d_ff=3072, max_seq_len=512),
    "large": TransformerConfig(d_model=1024, n_heads=16, n_layers=24, d_ff=4096, max_seq_len=512),
    "large-354m": TransformerConfig(d_model=1024, n_heads=16, n_layers=24, d_ff=2730, max_seq_len=512),
    # QuacK, section 4: shaped as Qwen3, ff four times the width, 64 to a head, tied, 1,040.2M parameters. Its siblings
    # have its proportions at other widths and depths; the smallest has narrower heads, so as to have several.
    "1b": _qwen(vocab_size=49_152, d_model=2048, n_heads=32, n_layers=14, max_seq_len=2048),
    "1b-100m": _qwen(vocab_size=32_768, d_model=768, n_heads=12, n_layers=8, max_seq_len=1024),
    "1b-20m": _qwen(vocab_size=8_192, d_model=384, n_heads=6, n_layers=7, max_seq_len=512),
    "1b-2m": _qwen(vocab_size=4_096, d_model=128, n_heads=4, n_layers=6, max_seq_len=256),
}
