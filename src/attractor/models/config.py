"""The configuration that model families share: sizes, positions, attention mechanism and readout."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import nn

from attractor.attention import Attention, AttentionConfig, build
from attractor.attention.couple.dynamics import Dynamics
from attractor.attention.named import Mechanism, label_of, mechanism_from_dict
from attractor.attention.position import board_side, parse_scaling
from attractor.attention.presets import preset
from attractor.attention.project.convolved import ConvolvedHeads
from attractor.attention.project.delta import DeltaHeads
from attractor.attention.project.residual import ResidualHeads
from attractor.attention.stage import Projection
from attractor.attention.whole import Whole, WholeLayer
from attractor.errors import InputError, require, require_count, require_known, require_seed
from attractor.fields import PrintsChanges, later, require_types, stored_fields
from attractor.models.initialize import initialize
from attractor.models.mlp import MLPS
from attractor.models.shapes_only import allocate, shapes_only

Model = TypeVar("Model", bound=nn.Module, covariant=True)

TRANSFORMER = "transformer"
BOARD_POSITIONS = ("grid", "grid-rope")  # positions in a square board of max_seq_len cells
ROTATIONS = ("rope", "grid-rope")
POSITIONS = ("learned", "rope", *BOARD_POSITIONS)
POOLS = ("last", "mean")
LARGEST = 2**28  # bound of any size, so that the bytes of a matrix of two such sizes fit 64 bits
SIZES_OF = ("vocab_size", "d_model", "n_heads", "d_ff", "max_seq_len")
OF_ATTENTION = (  # fields that change the attention preset
    *("qkv_bias", "out_bias", "qk_norm", "softcap", "sigma_reparam", "orthogonal_values", "z_loss", "window"),
    *("zero_start", "dropout"),
)


@dataclass(frozen=True)
class ModelConfig(PrintsChanges, ABC, Generic[Model]):
    family: ClassVar[str]  # the name under which the family is stored

    vocab_size: int = 50257
    """number of tokens in the vocabulary; by default from the data"""
    d_model: int = 512
    """width of the model"""
    n_heads: int = 8
    """attention heads per layer"""
    n_kv_heads: int | None = None
    """key and value heads; by default as the mechanism has"""
    d_ff: int = 2048
    """hidden width of the MLP"""
    max_seq_len: int = 2048
    """longest sequence that learned positions allow"""
    positions: str = "learned"
    """position encoding: learned, rope, or for boards grid (row, column, box) or grid-rope (rotations)"""
    attention: str | Mechanism = "standard"
    """the mechanism; 'attractor list' shows all, and one of your own is FILE.py:NAME"""
    head_dim: int | None = None
    """width of a head; by default d_model / n_heads"""
    mlp: str = "swiglu"
    """kind of MLP: swiglu, geglu, geglu-tanh, gelu, gelu-tanh or relu2"""
    tied_embeddings: bool = True
    """use one matrix for the embedding and the readout"""
    norm_eps: float = 1e-6
    """number added under the root of a norm"""
    rope_theta: float = 10000.0
    """base of the rotary frequencies"""
    rope_scaling: str | None = later(None)
    """linear:FACTOR, or another scaling of the frequencies (attention/position.py has them all)"""
    qkv_bias: bool = False
    """biases in the query, key and value projections"""
    out_bias: bool = later(False)
    """bias of attention's output"""
    qk_norm: bool = later(False)
    """normalise queries and keys (QK-norm)"""
    softcap: float | None = later(None)
    """bound c on logits, which become c tanh(logit / c); by default off"""
    sigma_reparam: bool = later(False)
    """divide query and key matrices by their spectral norm"""
    orthogonal_values: bool = later(False)
    """keep the matrices of values and of the output orthogonal, by construction"""
    z_loss: float = later(0.0)
    """weight of a penalty on attention's logsumexp"""
    window: int | None = later(None)
    """keys that a position sees, itself and those before; by default the whole past"""
    zero_start: bool = later(False)
    """start coupling behind closed gates, for pretrained models"""
    norms_per_block: int = 2
    """2: normalise each branch's input; 4: its output as well"""
    dropout: float = 0.0
    """dropout rate of attention weights and both branches"""
    causal: bool = True
    """each position sees only earlier ones and itself; False: all, and it cannot generate; by default from the task"""
    n_classes: int | None = None
    """classes of a sequence's label; 1: the label is a number; by default from the task"""
    pool: str = "last"
    """where a sequence's label is read: last (real position) or mean (of the real positions)"""

    def __post_init__(self) -> None:
        require_types(self)
        for field in SIZES_OF:
            self.require_count(field)
        if self.head_dim is None:
            rule = f"divisible by n_heads={self.n_heads}"
            require(self.d_model % self.n_heads == 0, "d_model", rule, self.d_model, "or give head_dim")
        require(self.positions in POSITIONS, "positions", f"one of {', '.join(POSITIONS)}", self.positions)
        if self.positions in BOARD_POSITIONS:
            board_side(self.max_seq_len)
        self._require_norms()
        require(0 < self.norm_eps < math.inf, "norm_eps", "positive and finite", self.norm_eps)
        if self.rope_scaling is not None:
            require(self.positions == "rope", "rope_scaling", "None without positions='rope'", self.rope_scaling)
            depends_on_length = parse_scaling(self.rope_scaling).length < math.inf
            rule = f"none that depends on the sequence's length for a model of family '{self.family}'"
            require(self.family == TRANSFORMER or not depends_on_length, "rope_scaling", rule, self.rope_scaling)
        require(0 <= self.dropout < 1, "dropout", "at least 0 and below 1", self.dropout)
        for field in ("n_classes", "head_dim"):
            if getattr(self, field) is not None:
                self.require_count(field)
        require(self.pool in POOLS, "pool", f"one of {', '.join(POOLS)}", self.pool)
        require_known("mlp", self.mlp, MLPS)
        with shapes_only():  # building without data refuses any other invalid mechanism
            for attention in self.mechanisms:
                layer = build(attention, self.d_model, self.n_heads, 0, self.head_dim)
                if self.positions == "rope":
                    rule, next_step = "even under positions='rope', which turns pairs", "choose another head_dim"
                    require(layer.rope_width % 2 == 0, "head width", rule, layer.rope_width, next_step)
                if self.positions == "grid-rope":
                    self._require_grid_rotation(layer)
        for attention in self.mechanisms:
            self._require_window(attention.window)
            if mixes_first_values(attention):
                rule = "one that does not mix the values of the first layer for a model that is no Transformer"
                require(self.family == TRANSFORMER, "attention", rule, attention.stages[0])
            if isinstance(attention, Whole):
                attention.require_suited(self.d_model, self.n_heads, self.causal)

    def _require_norms(self) -> None:
        require(self.norms_per_block in (2, 4), "norms_per_block", "2 or 4", self.norms_per_block)

    def _require_window(self, window: int | None) -> None:
        if window is None:
            return
        require(self.causal, "causal", f"True under window={window}", self.causal, "or leave window out")
        rule, next_step = f"at most max_seq_len={self.max_seq_len}", "leave window out to see the whole past"
        require(window <= self.max_seq_len, "window", rule, window, next_step)

    def _require_grid_rotation(self, layer: Attention | WholeLayer) -> None:
        require(not self.causal, "causal", "False under positions='grid-rope'", True, "a board has no past")
        if isinstance(layer, WholeLayer):
            raise InputError(
                f"positions must be learned, rope or grid for {layer.config.name}, which takes no rotations, got "
                "'grid-rope'; choose positions='grid'"
            )
        width, of_values = layer.rope_width, layer.layout.value
        fits = width == 0 or (width % 4 == 0 and of_values % width == 0)
        if layer.layout.extra:
            rule = "learned, rope or grid for attention whose values hold a decay and are not rotated"
            raise InputError(f"positions must be {rule}, got '{self.positions}'; choose positions='grid'")
        rule = "one that rotates a multiple of 4 coordinates of a head, which divides the width of its values"
        require(fits, "positions", f"learned, rope or grid unless attention is {rule}", self.positions)

    def require_length(self, seq_len: int) -> None:
        """Refuse a sequence length on which the model cannot be trained."""
        if self.positions in BOARD_POSITIONS:
            rule = f"max_seq_len={self.max_seq_len} under positions='{self.positions}'"
            next_step = "give the number of cells, or positions='rope' for what is no board"
            require(seq_len == self.max_seq_len, "seq_len", rule, seq_len, next_step)
        if self.positions == "learned":
            rule = f"at most max_seq_len={self.max_seq_len}"
            require(seq_len <= self.max_seq_len, "seq_len", rule, seq_len, "or raise max_seq_len")
        for stage in (stage for mechanism in self.mechanisms for stage in mechanism.stages):
            width = stage.width if isinstance(stage, ConvolvedHeads | DeltaHeads) else 0
            rule = f"at least {width}, the positions of the convolution of attention"
            require(seq_len >= width, "seq_len", rule, seq_len, "or give a smaller width")

    def require_count(self, field: str, least: int = 1) -> None:
        value = getattr(self, field)
        require_count(field, value, least)
        require(value <= LARGEST, field, f"at most {LARGEST:,}", value, "no machine holds such a model")

    @property
    def attention_config(self) -> Mechanism:
        return self.mechanism(self.attention)

    @property
    def staged_attention(self) -> AttentionConfig:
        """The mechanism, for what looks at its stages."""
        mechanism = self.attention_config
        if isinstance(mechanism, Whole):
            raise InputError(
                f"attention must be a mechanism in stages here, and {mechanism.name} joined whole; its run folder "
                "can be copied and loaded with its file"
            )
        return mechanism

    @property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """The configs of all attention mechanisms in the model."""
        return (self.attention_config,)

    @property
    def penalises_logits(self) -> bool:
        """Whether the loss contains the z_loss of a mechanism."""
        return any(getattr(stage, "z_loss", 0.0) for mechanism in self.mechanisms for stage in mechanism.stages)

    @property
    def own_code(self) -> list[Any]:
        """The classes and functions of the mechanisms that attractor does not define."""
        return [code for mechanism in self.mechanisms for code in mechanism.own_code]

    def mechanism(self, attention: str | Mechanism, with_window: bool = True) -> Mechanism:
        """Return a preset or mechanism, changed by the fields of this config that apply to attention."""
        config = preset(attention) if isinstance(attention, str) else attention
        changes: dict[str, Any] = {
            name: getattr(self, name)
            for name in OF_ATTENTION
            if getattr(self, name) != getattr(ModelConfig, name) and (with_window or name != "window")
        }
        n_kv_heads = self.kv_heads(config.project) if isinstance(config, AttentionConfig) else self.n_kv_heads
        if n_kv_heads is not None:
            changes["n_kv_heads"] = n_kv_heads
        return config.replace(**changes)

    def build_norm(self) -> nn.Module:
        return nn.RMSNorm(self.d_model, eps=self.norm_eps)

    def kv_heads(self, project: Projection) -> int | None:
        """Return the number of key heads for a projection, or None to leave it to the projection's config."""
        return self.n_kv_heads

    @property
    def label(self) -> str:
        """The model's name in a comparison, which is that of its mechanism."""
        return label_of(self.attention)

    @property
    @abstractmethod
    def depth(self) -> str:
        """The numbers of blocks, as tables show them."""

    @property
    @abstractmethod
    def layer_equivalents(self) -> float:
        """The cost that grows with the square of the length, in units of one layer over all positions."""

    def slow_length(self, seq_len: int) -> int:
        """Return the number of positions of the slow path; 0 without one."""
        return 0

    @property
    def steps_of_batch(self) -> int:
        """The number of training steps that a batch stays for: more than one under deep supervision."""
        return 1

    @property
    def shares_of_training(self) -> tuple[float, float]:
        """The share of a full forward pass that a training step computes, and the share that it differentiates."""
        return 1.0, 1.0

    @property
    def gates(self) -> tuple[str, ...]:
        """The names of gate parameters, whose tanh scales a part of the model and starts at 0."""
        return ()

    @property
    def own_rate(self) -> tuple[str, ...]:
        """The parameters that may learn at a rate of their own (`gate_lr`)."""
        return self.gates

    @staticmethod
    def gates_of_coupling(mechanism: Mechanism, modules: Iterable[str]) -> tuple[str, ...]:
        """Return the names of the gates that `zero_start` adds to the coupling of these attention modules."""
        gated = any(isinstance(stage, Dynamics) and stage.zero_start for stage in mechanism.stages)
        return tuple(f"{module}.couple.gate" for module in modules) if gated else ()

    def replace(self, **changes: Any) -> Self:
        self._refuse_unknown(changes)
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        stored = stored_fields(self) | ({} if self.family == TRANSFORMER else {"family": self.family})
        return stored | {name: x.to_dict() for name, x in stored.items() if isinstance(x, Mechanism)}

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Self:
        cls._refuse_unknown(stored)
        mechanisms = {name: mechanism_from_dict(x) for name, x in stored.items() if isinstance(x, dict)}
        return cls(**stored | mechanisms)

    @classmethod
    def _refuse_unknown(cls, names: dict[str, Any]) -> None:
        known = [f.name for f in fields(cls)]
        for name in names:
            require_known("model field", name, known)

    @abstractmethod
    def build_uninitialised(self) -> Model:
        """Return the model without initial weights."""

    def build(self, seed: int | None = None) -> Model:
        """Return the model with initial weights drawn from (seed, parameter name).

        Models that differ only in their attention thus share all other weights. Without a seed, one is drawn from
        torch's global generator.
        """
        with shapes_only():
            model = self.build_uninitialised()
        device = torch.get_default_device()
        if device.type == "meta":
            return model
        if seed is None:
            seed = int(torch.randint(2**31, (), device="cpu"))
        require_seed(seed)
        allocate(model, "cpu")  # where they are drawn, so that a seed gives the same weights on every device
        initialize(model, int(seed))
        return model.to(device)


def grows_with_square(mechanism: Mechanism) -> bool:
    """Return whether the cost of a layer grows with the square of the length."""
    return mechanism.window is None and (not isinstance(mechanism, AttentionConfig) or mechanism.score.over_pairs)


def mixes_first_values(mechanism: Mechanism) -> bool:
    return any(isinstance(stage, ResidualHeads) for stage in mechanism.stages)
