"""Recursive models: one small network updates a fast reasoning state z and a slow answer y in turn.

    z <- net(z + y + c),  n_inner times;   y <- net(y + z)                      one iteration               (1)
    net:  for each layer   h <- norm(h + Attention(h)),   h <- norm(h + MLP(h))                             (2)
    state [y z];   logits = W y;   halting logit = v . mean(y) + b                                          (3)

c is the embedded input, and norm is RMSNorm without weights, after the branches. So both latents are points of spheres
of radius sqrt(D) at each position, and -[y z].f([y z]) is, up to a constant, half the squared distance of the state to
its next one: the energy of the state, which is least at fixed points.

Deep supervision: an evaluation of n_iterations is trained as n_segments segments. Each is one training step with a loss
of its own. It starts from the state after the segment before, as a constant, and gradients pass through its last
iteration alone (`full_gradient`: through the whole segment). So a step needs the memory of one iteration.

With `mixer='mlp'`, an MLP over the positions replaces attention in (2), and its norm is over the positions, too. Stable
softmax replaces exp(x) by 1 + x, or by 1 / (1 - x) where x is negative. This is the softmax of the logits

    log(1 + x)  where x >= 0,   -log(1 - x)  elsewhere                                                      (4)

The halting head learns whether all scored positions of a sequence are right. Neither training nor evaluation stops
early; `halt_logits` says where one could.
Jolicoeur-Martineau, Less is more: recursive reasoning with tiny networks, 2025, arXiv 2510.04871 (TRM); (4): Prieto et
al., Grokking at the edge of numerical stability, 2025, arXiv 2501.04697. Written from the equations of the papers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attractor.attention import build
from attractor.errors import require, require_known
from attractor.kernels.cross_entropy import NOT_SCORED
from attractor.models.config import ROTATIONS
from attractor.models.itrsa import NEVER_LESS
from attractor.models.mlp import MLPS
from attractor.models.recurrent import IterationInputs, RecurrentConfig, RecurrentModel, standing_noise

MIXERS = ("attention", "mlp")
HALTING_WEIGHT = 0.5  # of the halting head's loss, as published
NEVER_HALTS = -5.0  # initial halting logit, as published


@dataclass(frozen=True)
class RecursiveConfig(RecurrentConfig["Recursive"]):
    family: ClassVar[str] = "recursive"

    d_ff: int = 1536
    n_iterations: int = 48
    n_layers: int = 2
    n_inner: int = 6
    """updates of a recursive model's fast state per update of its answer"""
    n_segments: int = 16
    """training steps that share a batch, each with its own loss"""
    full_gradient: bool = False
    """differentiate all iterations of a segment, not the last alone"""
    mixer: str = "attention"
    """what connects positions in a recursive model: attention or mlp"""
    d_mix: int = 512
    """hidden width of the MLP over positions"""
    stable_softmax: bool = False
    """replace exp in the readout's softmax by 1 + x (or 1 / (1 - x))"""
    halting: bool = False
    """learn a head that says whether the answer is right"""

    def __post_init__(self) -> None:
        for field in ("n_layers", "n_inner", "n_segments", "d_mix"):
            self.require_count(field)
        require_known("mixer", self.mixer, MIXERS)
        super().__post_init__()
        self.require_unchanged("its norms have no choices", "norms_per_block", "norm_eps")
        rule = f"a multiple of n_segments={self.n_segments}"
        require(self.n_iterations % self.n_segments == 0, "n_iterations", rule, self.n_iterations)
        rule, why = "None for a recursive model", "its loss is that of every position"
        require(self.n_classes is None, "n_classes", rule, self.n_classes, why)
        if self.mixer == "mlp":
            require(not self.causal, "causal", "False under mixer='mlp'", self.causal)
            self.require_plain_attention("mixer='mlp'", "an MLP mixes the positions")
            rule = "learned or grid under mixer='mlp', which has no queries and keys to rotate"
            require(self.positions not in ROTATIONS, "positions", rule, self.positions)

    def require_length(self, seq_len: int) -> None:
        super().require_length(seq_len)
        if self.mixer == "mlp":
            rule = f"{seq_len}, the sequence's length, under mixer='mlp'"
            require(seq_len == self.max_seq_len, "max_seq_len", rule, self.max_seq_len)

    @property
    def attention_modules(self) -> tuple[str, ...]:
        return tuple(f"blocks.{index}.attention" for index in range(self.n_layers))

    @property
    def iterations_of_segment(self) -> int:
        return self.n_iterations // self.n_segments

    @property
    def steps_of_batch(self) -> int:
        return self.n_segments

    @property
    def shares_of_training(self) -> tuple[float, float]:
        backward = self.iterations_of_segment if self.full_gradient else 1
        return 1 / self.n_segments, backward / self.n_iterations

    @property
    def depth(self) -> str:
        return f"{self.n_iterations} x {(self.n_inner + 1) * self.n_layers}"

    @property
    def layer_equivalents(self) -> float:
        return float(self.n_iterations * (self.n_inner + 1) * self.n_layers) if self.mixer == "attention" else 0.0

    def build_uninitialised(self) -> "Recursive":
        return Recursive(self)


class Layer(nn.Module):
    """A layer of (2). It returns its result before the last norm."""

    def __init__(self, config: RecursiveConfig, layer_index: int) -> None:
        super().__init__()
        self.config = config
        sizes = (config.attention_config, config.d_model, config.n_heads, layer_index, config.head_dim)
        self.attention = build(*sizes) if config.mixer == "attention" else None
        self.mixing = None if self.attention else MLPS[config.mlp](config.max_seq_len, config.d_mix)
        self.mlp = MLPS[config.mlp](config.d_model, config.d_ff)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, h: Float[Tensor, "B T D"], inputs: IterationInputs) -> tuple[Tensor, Tensor]:
        if self.attention is not None:
            attended, aux_loss = self.attention(h, inputs.mask, inputs.rotation)
            h = normalised(h + self.dropout(attended))
        else:
            assert self.mixing is not None
            self.config.require_length(h.shape[1])
            if inputs.real is not None:
                h = h * inputs.real.unsqueeze(-1)  # padding has no influence
            channels, aux_loss = h.mT, torch.zeros((), device=h.device)
            h = normalised(channels + self.dropout(self.mixing(channels))).mT
        return h + self.dropout(self.mlp(h)), aux_loss


class Recursive(RecurrentModel):
    part_of_module = RecurrentModel.part_of_module | {"halting": "readout", "blocks": "couple"}
    config: RecursiveConfig

    def __init__(self, config: RecursiveConfig) -> None:
        super().__init__(config)
        self.norm = nn.Identity()  # y is normalised
        self.halting = HaltingHead(config.d_model) if config.halting else None

    def build_core(self) -> None:
        self.blocks = nn.ModuleList(Layer(self.config, index) for index in range(self.config.n_layers))
        self.first = standing_noise(1, self.state_width)[0]  # drawn here, as `standing` is

    def before_norm(
        self, state: Float[Tensor, "B T 2*D"], stimulus: Float[Tensor, "B T D"], inputs: IterationInputs
    ) -> tuple[Float[Tensor, "B T 2*D"], Tensor]:
        """Return the next state (1) before its norms, and the auxiliary loss."""
        y, z = state.chunk(2, dim=-1)
        losses = []
        for _ in range(self.config.n_inner):
            fast, aux_loss = self.run(self._net, z + y + stimulus, inputs)
            z = normalised(fast)
            losses.append(aux_loss)
        slow, aux_loss = self.run(self._net, y + z, inputs)
        return torch.cat([slow, fast], dim=-1), torch.stack([*losses, aux_loss]).sum()

    def _net(self, h: Tensor, inputs: IterationInputs) -> tuple[Tensor, Tensor]:
        """Return (2) before its last norm."""
        losses = []
        for number, layer in enumerate(self.blocks):
            h, aux_loss = layer(normalised(h) if number else h, inputs)
            losses.append(aux_loss)
        return h, torch.stack(losses).sum()

    def response(self, state: Tensor, stimulus: Tensor, inputs: IterationInputs) -> tuple[Tensor, Tensor]:
        latents, aux_loss = self.before_norm(state, stimulus, inputs)
        return self.normalised(latents), aux_loss

    def moved(self, state: Tensor, response: Tensor, inputs: IterationInputs) -> Tensor:
        return response

    def normalised(self, x: Float[Tensor, "*batch 2*D"]) -> Float[Tensor, "*batch 2*D"]:
        return normalised(x.unflatten(-1, (2, -1))).flatten(-2)

    @property
    def state_width(self) -> int:
        return 2 * self.config.d_model

    def initial(self, stimulus: Tensor) -> Tensor:
        """Return the vector from which every cell without noise starts: the same for all cells, models and seeds."""
        return self.first.to(stimulus).expand(*stimulus.shape[:-1], -1)

    def finished(self, state: Tensor) -> Tensor:
        return state[..., : self.config.d_model]

    def logits(self, read: Float[Tensor, "... D"]) -> Float[Tensor, "... C"]:
        logits = super().logits(read)
        return stable_logits(logits) if self.config.stable_softmax else logits

    def read_out(self, state: Float[Tensor, "B T 2*D"], real: Bool[Tensor, "B T"] | None = None) -> Tensor:
        return self.logits(self.finished(state))

    def halt_logits(
        self, state: Float[Tensor, "B T 2*D"], real: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, " B"]:
        """Return the halting logit (3), which is positive where the model takes its answer to be right."""
        require(self.halting is not None, "halting", "True for a model with a halting head", False)
        assert self.halting is not None
        y = self.finished(state)
        weights = torch.ones_like(y[..., :1]) if real is None else real.unsqueeze(-1).to(y.dtype)
        return self.halting((y * weights).sum(1) / weights.sum(1).clamp(min=1)).squeeze(-1)

    def loss(
        self, tokens: Int[Tensor, "B T"], targets: Tensor, real: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of the first segment and the auxiliary loss."""
        return self.segment_loss(tokens, targets, real)[:2]

    @property
    def loss_of_step(self) -> Callable[..., tuple[Tensor, ...]]:
        return self.segment_loss

    def segment_loss(
        self,
        tokens: Int[Tensor, "B T"],
        targets: Int[Tensor, "B T"],
        real: Bool[Tensor, "B T"] | None = None,
        carried: Float[Tensor, "B T 2*D"] | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss of a segment, its auxiliary loss, and its last state as a constant.

        A segment starts from the state that was `carried` from the one before, and the first one from x_0.
        """
        placement = self.placement(tokens, None, real)
        stimulus, inputs = self.injected(self.embedded(tokens, placement)), self.iteration_inputs(placement)
        state = self._start(stimulus, placement) if carried is None else carried.detach()
        aux_loss: Tensor | None = None
        for _ in range(self.config.iterations_of_segment):
            state, of_iteration = self.iteration(
                state if self.config.full_gradient else state.detach(), stimulus, inputs
            )
            # Without the full gradient only the last iteration has one, and nothing keeps the graphs of the others.
            aux_loss = of_iteration if aux_loss is None or not self.config.full_gradient else aux_loss + of_iteration
        assert aux_loss is not None
        logits = self.read_out(state)
        if self.halting is not None:
            right = ((logits.argmax(-1) == targets) | (targets == NOT_SCORED)).all(-1)
            halting_loss = F.binary_cross_entropy_with_logits(self.halt_logits(state, real).float(), right.float())
            aux_loss = aux_loss + HALTING_WEIGHT * halting_loss
        return self._position_losses(logits, targets, "mean"), aux_loss, state.detach()

    @torch.no_grad()
    def judge(
        self, tokens: Int[Tensor, "B T"], targets: Tensor, real: Bool[Tensor, "B T"] | None = None
    ) -> tuple[Tensor, Tensor]:
        logits = self(tokens, real=real)[0]
        return self._position_losses(logits, targets, "none").view_as(targets), logits.argmax(-1)

    def _position_losses(self, logits: Tensor, targets: Tensor, reduction: str) -> Tensor:
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(wide.flatten(0, -2), targets.flatten(), reduction=reduction)


class HaltingHead(nn.Linear):
    """The halting logit, which starts as a constant at which nothing halts."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model, 1)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.constant_(self.bias, NEVER_HALTS)


def normalised(x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
    return F.rms_norm(x, x.shape[-1:], None, NEVER_LESS)


def stable_logits(logits: Float[Tensor, "*batch C"]) -> Float[Tensor, "*batch C"]:
    """Return (4), whose softmax is the stable softmax of the logits."""
    return logits.clamp(min=0).log1p() - F.relu(-logits).log1p()
