"""AKOrN: groups of N channels are oscillators on spheres, which attention or a convolution couples.

    y = Coupling(x) + c                                                                                     (1)
    dx = Omega x + (y - <x, y> x),   x <- (x + gamma dx) / |x + gamma dx|,   group by group                 (2)
    read   m = |W x| + b, of D vectors of N channels;   m + MLP(m);   ReLU                                  (3)
    E = -sum x.y                                                                                            (4)

Each group has its own antisymmetric Omega, which for N = 2 rotates x by arctan(gamma |omega|). The bracket is the part
of y that is tangent to the sphere. (4) decreases for a symmetric linear coupling, Omega = 0 and small gamma. The
stimulus c is a linear map of the embedded input. With `rms_norm`, coordinates have trainable scales after (2), and the
bracket uses x / |x|.

With `as_published`, the model is that of the authors' code. All pairs of channels rotate at the same fixed frequency,
gamma is trained, and c is the embedded input itself. All linear maps have biases, and the blank token has no logit:

    read   h = m + W3 relu(W2 relu(m)),   relu(W4 relu(h))                                                  (5)

Under positions "grid-rope" the rotations are trained. The noise from which blanks start in evaluation is stored with
the weights; the authors' code has an unused parameter of that shape. At D = 512 both have 2,982,412 parameters.

A convolution has 3 x 3 kernels on the board, which is a square or has `grid_width` columns. W in (3) has D N rows: 1M
weights at D = 512 and N = 4, but 134M at N = 512.
Miyato et al., Artificial Kuramoto oscillatory neurons, 2024, arXiv 2410.13821; written from the equations of the paper.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attractor.attention import Rope, build
from attractor.attention.acting_weight import acting_weight
from attractor.attention.position import GridMatrices
from attractor.errors import InputError, require, require_known
from attractor.fields import later
from attractor.models.config import ROTATIONS
from attractor.models.mlp import MLPS
from attractor.models.recurrent import IterationInputs, RecurrentConfig, RecurrentModel

COUPLINGS = ("attention", "conv")
NEVER = -1e4  # a logit whose probability is 0 in fp32
FIRST_TURN = 0.1  # about how many radians Omega rotates a group in the first step


@dataclass(frozen=True)
class AKOrNConfig(RecurrentConfig["AKOrN"]):
    family: ClassVar[str] = "akorn"

    oscillator_width: int = 4
    """channels of one oscillator of AKOrN (N)"""
    gamma: float = 1.0
    """step size of AKOrN"""
    coupling: str = "attention"
    """what couples AKOrN's oscillators: attention or conv"""
    grid_width: int | None = None
    """columns of the board that conv sees; by default a square"""
    rms_norm: bool = False
    """learn a scale for each channel of AKOrN's state"""
    as_published: bool = later(False)
    """AKOrN's frequencies, gamma, biases and readout as in its code"""

    def __post_init__(self) -> None:
        self.require_count("oscillator_width")
        rule = f"a divisor of d_model={self.d_model}, of at least 2"
        fits = self.oscillator_width >= 2 and self.d_model % self.oscillator_width == 0
        require(fits, "oscillator_width", rule, self.oscillator_width)
        require(0 < self.gamma < float("inf"), "gamma", "positive and finite", self.gamma)
        require_known("coupling", self.coupling, COUPLINGS)
        by_convolution = self.coupling == "conv"
        require(not (by_convolution and self.causal), "causal", "False under coupling='conv'", self.causal)
        if self.grid_width is not None:
            require(by_convolution, "grid_width", "None under coupling='attention'", self.grid_width)
            self.require_count("grid_width")
        super().__post_init__()
        self.require_unchanged("oscillators are normalised instead", "norms_per_block", "norm_eps")
        if by_convolution:
            self.require_plain_attention("coupling='conv'", "a convolution couples the oscillators")
            rule = "learned or grid under coupling='conv', which has no queries and keys to rotate"
            require(self.positions not in ROTATIONS, "positions", rule, self.positions)
        if self.as_published:
            self._require_published()

    def _require_published(self) -> None:
        rule = "under as_published, as in the code of AKOrN's authors"
        require(self.oscillator_width % 2 == 0, "oscillator_width", f"even {rule}", self.oscillator_width)
        needed = {"coupling": "attention", "mlp": type(self).mlp, "tied_embeddings": False, "n_classes": None}
        for field, value in needed.items():
            require(getattr(self, field) == value, field, f"{value!r} {rule}", getattr(self, field))
        require(self.blank is not None, "blank", f"a token {rule}", None, "the authors' blanks start from noise")

    def require_length(self, seq_len: int) -> None:
        super().require_length(seq_len)
        if self.as_published and seq_len > self.max_seq_len:  # under RoPE, too
            raise InputError(
                f"seq_len must be at most max_seq_len={self.max_seq_len} under as_published, which stores the start of "
                f"every cell, got {seq_len}; raise max_seq_len"
            )
        if self.coupling == "conv":
            self.grid(seq_len)

    def grid(self, seq_len: int) -> tuple[int, int]:
        """Return the numbers of rows and columns of a board with `seq_len` cells."""
        width = math.isqrt(seq_len) if self.grid_width is None else self.grid_width
        if width == 0 or seq_len % width or (self.grid_width is None and width**2 != seq_len):
            rule = "a square number" if self.grid_width is None else f"a multiple of grid_width={self.grid_width}"
            raise InputError(
                f"seq_len must be {rule} under coupling='conv', got {seq_len}; give a grid_width that fits"
            )
        return seq_len // width, width

    @property
    def layer_equivalents(self) -> float:
        return super().layer_equivalents if self.coupling == "attention" else 0.0  # a convolution's cost is linear

    def build_uninitialised(self) -> "AKOrN":
        return AKOrN(self)


class AKOrN(RecurrentModel):
    part_of_module = RecurrentModel.part_of_module | {
        "stimulation": "embedding",
        "convolution": "couple",
        "oscillators": "couple",
        "lengths": "readout",
        "rope": "positions",
        "standing_start": "embedding",
    }
    config: AKOrNConfig

    def __init__(self, config: AKOrNConfig) -> None:
        super().__init__(config)
        self.norm = nn.Identity()  # the readout has norms of its own
        if config.as_published:
            self.head = nn.Linear(config.d_model, config.vocab_size - 1)

    def build_core(self) -> None:
        config = self.config
        published = config.as_published
        self.stimulation = nn.Identity() if published else nn.Linear(config.d_model, config.d_model, bias=False)
        self.standing_start = StandingStart(config.max_seq_len, config.d_model) if published else None
        self.attention = (
            build(config.attention_config, config.d_model, config.n_heads, head_dim=config.head_dim)
            if config.coupling == "attention"
            else None
        )
        self.convolution = None if self.attention else GridConvolution(config)
        self.oscillators = Oscillators(config)
        self.lengths = PublishedLengths(config) if published else Lengths(config, config.oscillator_width)

    def rotations_of_heads(self) -> Rope | GridMatrices:
        config = self.config
        if config.as_published and config.positions == "grid-rope":
            return GridMatrices(self.rope_width, config.max_seq_len, config.rope_theta)
        return super().rotations_of_heads()

    def injected(self, embedded: Tensor) -> Tensor:
        return self.stimulation(embedded)

    def coupling(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Return Coupling(x) of (1)."""
        return self._coupling(x, self.iteration_inputs(self.placement(x[..., 0], None, None)))[0]

    def _coupling(self, x: Tensor, inputs: IterationInputs) -> tuple[Tensor, Tensor]:
        if self.attention is not None:
            return self.attention(x, inputs.mask, inputs.rotation)
        assert self.convolution is not None
        return self.convolution(x, inputs.real), torch.zeros((), device=x.device)

    def response(self, state: Tensor, stimulus: Tensor, inputs: IterationInputs) -> tuple[Tensor, Tensor]:
        coupled, aux_loss = self._coupling(state, inputs)
        return self.dropout(coupled) + stimulus, aux_loss  # (1)

    def moved(self, state: Tensor, response: Tensor, inputs: IterationInputs) -> Tensor:
        (omega,) = inputs.weights
        return self.oscillators(state, response, omega)

    def normalised(self, x: Tensor) -> Tensor:
        return self.oscillators.normalised(x)

    def weights(self) -> tuple[Tensor, ...]:
        return (self.oscillators.omega(),)

    def finished(self, state: Tensor) -> Tensor:
        """Return the readout's result; `as_published` adds a coordinate of 1, by which logits get their biases."""
        result = self.lengths(state)
        return F.pad(result, (0, 1), value=1.0) if self.config.as_published else result

    def readout_weight(self) -> Tensor:
        if not self.config.as_published:
            return super().readout_weight()
        assert self.head is not None
        rows, blank = torch.cat([acting_weight(self.head), self.head.bias.unsqueeze(1)], dim=1), self.config.blank
        never = F.pad(torch.zeros_like(rows[:1, 1:]), (0, 1), value=NEVER)
        return torch.cat([rows[:blank], never, rows[blank:]])

    @property
    def max_length(self) -> int | None:
        is_unlimited = self.config.positions == "rope" and not self.config.as_published
        return None if is_unlimited else self.config.max_seq_len

    def _noise(self, like: Tensor, positions: Tensor, generator: torch.Generator | None) -> Tensor:
        if self.standing_start is None or generator is not None or self.training:
            return super()._noise(like, positions, generator)
        return self.standing_start(positions).to(like)


class Oscillators(nn.Module):
    """The update (2) of all groups at all positions."""

    def __init__(self, config: AKOrNConfig) -> None:
        super().__init__()
        self.width, self.n_groups = config.oscillator_width, config.d_model // config.oscillator_width
        self.first_gamma, self.is_published = config.gamma, config.as_published
        shape = (2,) if self.is_published else (self.n_groups, self.width, self.width)
        self.frequencies = nn.Parameter(torch.empty(shape), requires_grad=not self.is_published)
        self.gamma = nn.Parameter(torch.empty(1)) if self.is_published else config.gamma
        self.scale = nn.Parameter(torch.empty(config.d_model)) if config.rms_norm else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if isinstance(self.gamma, nn.Parameter):
            nn.init.constant_(self.gamma, self.first_gamma)
            nn.init.constant_(self.frequencies, FIRST_TURN / math.sqrt(2))
        else:
            nn.init.normal_(self.frequencies, std=FIRST_TURN / math.sqrt(2 * (self.width - 1)))
        if self.scale is not None:
            nn.init.ones_(self.scale)

    def omega(self) -> Float[Tensor, "G N N"]:
        if not self.is_published:
            return self.frequencies - self.frequencies.mT
        turn = torch.linalg.vector_norm(self.frequencies) * self.frequencies.new_tensor([[0.0, 1.0], [-1.0, 0.0]])
        return torch.block_diag(*[turn] * (self.width // 2)).expand(self.n_groups, -1, -1)

    def forward(self, x: Tensor, y: Tensor, omega: Tensor) -> Tensor:
        x, y = self.grouped(x), self.grouped(y)
        moved = kuramoto_step(x, y, omega, self.gamma, on_sphere=self.scale is None)
        return self._scaled(moved.flatten(-2))

    def normalised(self, x: Tensor) -> Tensor:
        return self._scaled(F.normalize(self.grouped(x), dim=-1).flatten(-2))

    def grouped(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch G N"]:
        return x.unflatten(-1, (-1, self.width))

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self.scale is None else x * self.scale


def tangent(x: Float[Tensor, "*batch N"], y: Float[Tensor, "*batch N"]) -> Float[Tensor, "*batch N"]:
    """Return the part of y orthogonal to x, which has length 1."""
    return y - (x * y).sum(-1, keepdim=True) * x


def kuramoto_velocity(
    x: Float[Tensor, "*batch G N"],
    y: Float[Tensor, "*batch G N"],
    omega: Float[Tensor, "G N N"],
    on_sphere: bool = True,
) -> Float[Tensor, "*batch G N"]:
    """Return dx of (2); `on_sphere` is False if x may have other lengths than 1."""
    rotated = torch.einsum("gij,...gj->...gi", omega, x)
    return rotated + tangent(x if on_sphere else F.normalize(x, dim=-1), y)


def kuramoto_step(
    x: Float[Tensor, "*batch G N"],
    y: Float[Tensor, "*batch G N"],
    omega: Float[Tensor, "G N N"],
    gamma: float | Tensor,
    on_sphere: bool = True,
) -> Float[Tensor, "*batch G N"]:
    """Take a step (2)."""
    return F.normalize(x + gamma * kuramoto_velocity(x, y, omega, on_sphere), dim=-1)


class GridConvolution(nn.Module):
    """Coupling by a 3 x 3 convolution of the board."""

    def __init__(self, config: AKOrNConfig) -> None:
        super().__init__()
        self.config = config
        self.kernel = nn.Conv2d(config.d_model, config.d_model, kernel_size=3, padding=1, bias=False)

    def forward(self, x: Float[Tensor, "B T D"], real: Tensor | None) -> Float[Tensor, "B T D"]:
        if real is not None:
            x = x * real.unsqueeze(-1)  # padding has no influence
        board = x.unflatten(1, self.config.grid(x.shape[1])).permute(0, 3, 1, 2)
        return self.kernel(board).flatten(2).mT


class Lengths(nn.Module):
    """The readout (3), which depends only on the lengths of mixtures of oscillators, not on their directions."""

    def __init__(self, config: RecurrentConfig, width: int) -> None:
        super().__init__()
        self.width = width
        self.mixture = nn.Linear(config.d_model, config.d_model * width, bias=False)
        self.bias = nn.Parameter(torch.empty(config.d_model))
        self.mlp = MLPS[config.mlp](config.d_model, config.d_ff)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        lengths = torch.linalg.vector_norm(self.mixture(x).unflatten(-1, (-1, self.width)), dim=-1) + self.bias
        return F.relu(lengths + self.mlp(lengths))


class PublishedLengths(nn.Module):
    """The readout (5), with biases in all of its maps."""

    def __init__(self, config: AKOrNConfig) -> None:
        super().__init__()
        width, self.width = config.d_model, config.oscillator_width
        self.mixture = nn.Linear(width, width * self.width)
        self.bias = nn.Parameter(torch.empty(width))
        self.up, self.down = nn.Linear(width, config.d_ff), nn.Linear(config.d_ff, width)
        self.last = nn.Linear(width, width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        lengths = torch.linalg.vector_norm(self.mixture(x).unflatten(-1, (-1, self.width)), dim=-1) + self.bias
        hidden = lengths + self.down(F.relu(self.up(F.relu(lengths))))
        return F.relu(self.last(F.relu(hidden)))


class StandingStart(nn.Embedding):
    """The noise from which blank cells start in evaluation. It is not trained."""

    def __init__(self, n_cells: int, width: int) -> None:
        super().__init__(n_cells, width)
        self.weight.requires_grad_(False)

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            nn.init.normal_(self.weight)
