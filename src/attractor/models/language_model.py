"""The base class of all model families: embedding, a core of blocks, readout, losses and labels.

    h = E[tokens] (+ P[positions]);   h <- core(h);   logits = E norm(h)

Unless embeddings are tied, the readout has a matrix of its own instead of E. A family defines the core: `through` maps
the embedded tokens to the hidden states before the last norm.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from attractor.attention import Rope, Rotation
from attractor.attention.acting_weight import acting_weight
from attractor.attention.hooks import listening
from attractor.attention.mask import lower_triangle
from attractor.attention.position import GridMatrices, GridPositions, GridRope, LearnedPositions
from attractor.errors import InputError, require
from attractor.kernels.cross_entropy import linear_cross_entropy, position_losses, soft_capped
from attractor.kernels.fallback import functorch_active
from attractor.models.block import Block
from attractor.models.config import ROTATIONS, ModelConfig
from attractor.models.generate import generate


class ModelCache:
    """The cache of a model during decoding; a family adds what its core needs."""

    def __init__(self) -> None:
        self.length = 0  # cached positions, including padding
        self.real: Tensor | None = None  # B S, False at padding


class TokenPlacement(NamedTuple):
    """The positions of the current tokens in their sequences, and what they may attend to."""

    mask: bool | Tensor
    rotation: Rotation | None
    positions: Tensor  # T, or B T if sequences are padded
    real: Tensor | None  # B S, including cached positions, False at padding; None: no padding
    tokens: Tensor | None = None  # B T; None where a state is given instead of tokens


class LanguageModel(nn.Module, ABC):
    part_of_module: ClassVar[dict[str, str]] = {"embedding": "embedding", "positions": "positions", "head": "readout"}
    takes_packed_rows: ClassVar[bool] = True  # several sequences in a row of the batch, one after another
    config: ModelConfig

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.logit_softcap: float | None = None  # bound c on the logits, which become c tanh(logit / c)
        self.penalises_logits = config.penalises_logits
        self.activation_checkpointing = False
        # Operations whose results activation checkpointing keeps; None keeps nothing of a block.
        self.saved_ops: Callable[..., CheckpointPolicy] | None = None
        self.embedding = Embedding(config.vocab_size, config.d_model)
        rotated = config.positions in ROTATIONS
        table = GridPositions if config.positions == "grid" else LearnedPositions
        self.positions = None if rotated else table(config.max_seq_len, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.build_core()
        self.norm = config.build_norm()
        n_outputs = config.n_classes or config.vocab_size
        tied = config.tied_embeddings and config.n_classes is None
        self.head = None if tied else nn.Linear(config.d_model, n_outputs, bias=False)
        self.rope = self.rotations_of_heads() if rotated and self.rope_width else None

    @abstractmethod
    def build_core(self) -> None: ...

    @property
    @abstractmethod
    def layers(self) -> list[Block]:
        """All blocks with weights of their own, in the order of their first use. FSDP shards the weights by block."""

    @abstractmethod
    def through(
        self, x: Float[Tensor, "B T D"], placement: TokenPlacement, cache: ModelCache | None
    ) -> tuple[Tensor, Tensor]:
        """Run the core; return hidden states and auxiliary loss."""

    @abstractmethod
    def empty_cache(self) -> ModelCache: ...

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        cache: ModelCache | None = None,
        real: Bool[Tensor, "B T"] | None = None,
    ) -> tuple[Float[Tensor, "B T C"], Float[Tensor, ""]]:
        """Return logits and auxiliary loss. `real` is False at padding, which has no position and no attention."""
        hidden, aux_loss = self.hidden(tokens, cache, real)
        return self.logits(self.read(hidden, real)), aux_loss

    def next_logits(
        self, tokens: Int[Tensor, "B T"], cache: ModelCache | None = None, real: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B C"]:
        """Return the logits of the token after the last one, without those of other positions."""
        hidden, _ = self.hidden(tokens, cache, real)
        return self.logits(hidden[:, -1])

    def loss(
        self, tokens: Int[Tensor, "B T"], targets: Tensor, real: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the mean cross-entropy over targets other than -100, and the auxiliary loss.

        All logits are never held at once. With one class, targets are numbers, and the loss is the mean squared error.
        """
        hidden, aux_loss = self.hidden(tokens, real=real)
        read = self.read(hidden, real).flatten(0, -2)
        if self.config.n_classes == 1:
            return F.mse_loss(F.linear(read, self.readout).flatten().float(), targets.flatten().float()), aux_loss
        return linear_cross_entropy(read, self.readout, targets.flatten(), self.logit_softcap), aux_loss

    @property
    def loss_of_step(self) -> Callable[..., tuple[Tensor, ...]]:
        """The loss that a training step differentiates. Under deep supervision it takes and returns a state, too."""
        return self.loss

    @torch.no_grad()
    def judge(
        self, tokens: Int[Tensor, "B T"], targets: Tensor, real: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of every target (0 if not scored), and the prediction: the likeliest class, or the number."""
        read = self.read(self.hidden(tokens, real=real)[0], real).flatten(0, -2)
        if self.config.n_classes == 1:
            numbers = F.linear(read, self.readout).flatten().float()
            losses = (numbers - targets.flatten().float()).square()
            return losses.view_as(targets), numbers.view_as(targets)
        losses, likeliest = position_losses(read, self.readout, targets.flatten(), self.logit_softcap)
        return losses.view_as(targets), likeliest.view_as(targets)

    def read(self, hidden: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"] | None = None) -> Tensor:
        """Return the input of the readout: all positions, or under `n_classes` one vector for each sequence."""
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
        self,
        tokens: Int[Tensor, "B T"] | Float[Tensor, "B T D"],
        cache: ModelCache | None = None,
        real: Bool[Tensor, "B T"] | None = None,
        positions: Int[Tensor, "B T"] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the normalised output of the core, and the auxiliary loss.

        Vectors in place of tokens are taken as their embeddings. Positions that start anew within a row start another
        sequence, which does not attend to the one before it."""
        placement = self.placement(tokens, cache, real, positions)
        x, aux_loss = self.through(self.embedded(tokens, placement), placement, cache)
        if cache is not None:
            cache.length += tokens.shape[1]
        return self.normed(x), aux_loss

    def embedded(
        self, tokens: Int[Tensor, "B T"] | Float[Tensor, "B T D"], placement: TokenPlacement
    ) -> Float[Tensor, "B T D"]:
        x = tokens if tokens.is_floating_point() else self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions(placement.positions)
        return self.dropout(x)

    def normed(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Return what the readout reads of the core's output."""
        return self.norm(x)

    def run(self, block: Callable[..., tuple[Tensor, Tensor]], x: Tensor, *how: Any) -> tuple[Tensor, Tensor]:
        """Run one block, with activation checkpointing if it is on."""
        # A captured tap inside a checkpointed block would be passed twice, and change what the block saves.
        if self.activation_checkpointing and self.training and not listening():
            if self.saved_ops is None:
                return checkpoint(block, x, *how, use_reentrant=False)
            contexts = partial(create_selective_checkpoint_contexts, self.saved_ops)
            return checkpoint(block, x, *how, use_reentrant=False, context_fn=contexts)
        return block(x, *how)

    def placement(
        self, tokens: Tensor, cache: ModelCache | None, real: Tensor | None, given: Tensor | None = None
    ) -> TokenPlacement:
        """Return the mask and the positions of these tokens. Without `given` positions they follow those of the
        cache."""
        batch, length = tokens.shape[:2]
        past = 0 if cache is None else cache.length
        if real is not None and (real.dtype != torch.bool or real.shape != (batch, length)):
            rule, value = (
                f"boolean and of shape {(batch, length)}, as the tokens",
                f"{real.dtype} of {tuple(real.shape)}",
            )
            require(False, "real", rule, value, "give attention_mask.bool()")
        if self.max_length is not None and not (given is not None and torch.compiler.is_compiling()):
            longest = past + length if given is None else int(given.max()) + 1
            if longest > self.max_length:
                raise InputError(
                    f"max_seq_len must be at least the sequence's length, got {self.max_length} for "
                    f"{longest} tokens; shorten the sequence or build with a larger max_seq_len or positions='rope'"
                )
        if cache is not None and (real is not None or cache.real is not None):
            seen = tokens.new_ones(batch, past, dtype=torch.bool) if cache.real is None else cache.real
            now = seen.new_ones(batch, length) if real is None else real
            cache.real = real = torch.cat([seen, now], dim=1)
        mask: bool | Tensor = self.config.causal
        positions = torch.arange(past, past + length, device=tokens.device)
        if real is not None:
            positions = (real.cumsum(1) - 1).clamp(min=0)[:, past:]
            counts_rows = self.training and self.penalises_logits
            if counts_rows or not (self.config.causal and cache is None and padded_on_the_right(real)):
                mask = real[:, None, None, :].expand(-1, 1, length, -1)
                if self.config.causal:
                    mask = mask & lower_triangle(length, past + length, tokens.device)
                if counts_rows:  # a row that may attend to nothing has no penalty
                    mask = mask & real[:, None, past:, None]
        if given is not None:
            positions = given.expand(batch, -1)
            if cache is None and real is None:
                mask = self.packed_mask(positions)
        ids = None if tokens.is_floating_point() else tokens
        if self.rope is not None:
            self.rope.refuse_other_rotation(past, positions)
        return TokenPlacement(mask, None if self.rope is None else self.rope.at(positions), positions, real, ids)

    def packed_mask(self, positions: Int[Tensor, "B T"]) -> bool | Tensor:
        """Return the mask that separates the sequences of a row, each of which has consecutive positions."""
        starts = F.pad(positions.diff() != 1, (1, 0))
        # A compiler cannot look at values, so a compiled model always has the mask.
        if not torch.compiler.is_compiling() and not starts.any():
            return self.config.causal
        require(self.takes_packed_rows, "position_ids", f"consecutive for {type(self).__name__}", "several sequences")
        sequence = starts.cumsum(1)
        mask = (sequence.unsqueeze(2) == sequence.unsqueeze(1)).unsqueeze(1)
        return mask & lower_triangle(mask.shape[-1], mask.shape[-1], mask.device) if self.config.causal else mask

    @property
    def rope_width(self) -> int:
        """The width that RoPE rotates; 0 if attention has no queries and keys to rotate."""
        return self.layers[0].attention.rope_width

    def rotations_of_heads(self) -> Rope | GridMatrices:
        config, width = self.config, self.rope_width
        if config.positions == "grid-rope":
            return GridRope(width, config.max_seq_len, config.rope_theta)
        return Rope(width, config.rope_theta, config.rope_scaling)

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def max_length(self) -> int | None:
        """The longest sequence; None under RoPE, which has no limit."""
        return None if self.config.positions == "rope" else self.config.max_seq_len

    @property
    def readout(self) -> Tensor:
        return self.readout_weight()

    def readout_weight(self) -> Tensor:
        if self.head is None:
            return acting_weight(self.embedding, self.config.vocab_size)
        return acting_weight(self.head)

    def logits(self, read: Float[Tensor, "... D"]) -> Float[Tensor, "... C"]:
        """Return the logits of the readout, soft-capped where there is a `logit_softcap`."""
        return soft_capped(F.linear(read, self.readout), self.logit_softcap)

    def residual_outputs(self) -> list[Tensor]:
        """Return the 2 L matrices that write into the residual stream."""
        outputs = [module for block in self.layers for module in (*block.attention.outputs, block.mlp.down)]
        return [cast(nn.Linear, output).weight for output in outputs]

    def new_cache(self) -> ModelCache:
        require(self.config.causal, "causal", "True to generate", False)
        require(self.config.n_classes is None, "n_classes", "None to generate", self.config.n_classes)
        return self.empty_cache()

    generate = generate


def padded_on_the_right(real: Bool[Tensor, "B T"]) -> bool:
    """Return whether all padding follows the real positions, which then never see it under a causal mask.

    A GPU's host waits for the answer once; a mask of T x T would take memory, and a slower kernel in each layer. A
    compiler cannot look at values."""
    if torch.compiler.is_compiling() or functorch_active() or real.is_meta:
        return False
    return not bool((real[:, 1:] & ~real[:, :-1]).any())


class Embedding(nn.Embedding):
    """An embedding that may be tied to the readout, and is drawn small for it.

    With unit variance the initial logits would have a standard deviation of sqrt(D).
    """

    bias = None  # as a readout: tools that read a readout's weight read its bias, too

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:  # drawing on meta would make torch import 76 MB, which takes seconds
            nn.init.normal_(self.weight, std=0.02)
