"""ItrSA: iterated self-attention on states of unit length, with the input injected at every step.

    Y = C + MSA(X),   X <- Norm(X + eta Y)                                                                  (1)
    Norm(x) = gamma x / |x|   (unit),   gamma sqrt(D) x / |x|   (rms),   x   (none)                         (2)

gamma is trainable with D coordinates, and starts at 1. There is no MLP and no residual stream of free length. Logits
are a linear map of the last state's RMSNorm, as in all models here, or with `readout_width` of AKOrN's readout, the
lengths of mixtures of so many channels. With `inject=False`, C is left out of (1) and is
only the initial state. MSA may be any mechanism; `energy` replaces it by attention that descends an energy exactly
(`energy.py`).
Jacobians, section 5, whose "RMSNorm" is `unit`: Tomihari and Karakida, Recurrent Self-Attention Dynamics, 2025,
arXiv 2505.19458. The ItrSA of the authors of AKOrN is another model: `itrsa_prenorm.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attractor.attention import build
from attractor.attention.project.heads import HeadProjection
from attractor.attention.project.latent import LatentProjection
from attractor.attention.sigma_reparam import SigmaLinear
from attractor.errors import require, require_known
from attractor.fields import later
from attractor.models.akorn import Lengths
from attractor.models.config import ROTATIONS
from attractor.models.energy import ENERGIES, EnergyAttention, Maps
from attractor.models.recurrent import IterationInputs, RecurrentConfig, RecurrentModel

NEVER_LESS = 1e-24  # added to a mean square, so that only a state of zeros is affected


class UnitNorm(nn.Module):
    """The norm gamma x / |x|, computed by torch's fused RMSNorm with gamma / sqrt(D)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        width = len(self.weight)
        return F.rms_norm(x, (width,), self.weight * width**-0.5, NEVER_LESS)


STATE_NORMS: dict[str, Callable[[int], nn.Module]] = {
    "unit": UnitNorm,
    "rms": partial(nn.RMSNorm, eps=NEVER_LESS),
    "none": nn.Identity,
}


@dataclass(frozen=True)
class ItrSAConfig(RecurrentConfig["ItrSA"]):
    family: ClassVar[str] = "itrsa"

    eta: float = 1.0
    """step size of ItrSA"""
    norm: str = "unit"
    """norm of ItrSA's state: unit, rms or none"""
    inject: bool = True
    """add the input at every iteration"""
    energy: str | None = None
    """attention that descends an energy: single or multi; by default off"""
    readout_width: int | None = later(None)
    """channels of each mixture of AKOrN's readout; by default a linear map"""

    def __post_init__(self) -> None:
        require(0 < self.eta < float("inf"), "eta", "positive and finite", self.eta)
        require_known("norm", self.norm, STATE_NORMS)
        if not self.inject:
            self.require_stimulus_at_the_start()
        if self.readout_width is not None:
            self.require_count("readout_width")
        super().__post_init__()
        self.require_unchanged("it has one norm, of states", "norms_per_block")
        if self.energy is not None:
            self._require_an_energy(self.energy)

    def _require_an_energy(self, energy: str) -> None:
        require_known("energy", energy, ENERGIES)
        require(energy != "single" or self.n_heads == 1, "n_heads", "1 under energy='single'", self.n_heads)
        self.require_plain_attention("energy", "attention with an energy has projections of its own")
        for field, value in (("causal", False), ("head_dim", None)):
            given = getattr(self, field)
            require(given == value, field, f"{value!r} under energy, which is symmetric in the positions", given)
        rule = "learned or grid under energy, which a rotation would break"
        require(self.positions not in ROTATIONS, "positions", rule, self.positions)

    @property
    def label(self) -> str:
        return super().label + ("" if self.energy is None else f" energy-{self.energy}")

    def build_uninitialised(self) -> "ItrSA":
        return ItrSA(self)


class ItrSA(RecurrentModel):
    part_of_module = RecurrentModel.part_of_module | {"lengths": "readout"}
    config: ItrSAConfig

    def __init__(self, config: ItrSAConfig) -> None:
        super().__init__(config)
        if self.lengths is not None:
            self.norm = nn.Identity()  # as in AKOrN, whose readout has norms of its own

    def build_core(self) -> None:
        config = self.config
        self.attention = (
            build(config.attention_config, config.d_model, config.n_heads, head_dim=config.head_dim)
            if config.energy is None
            else ENERGIES[config.energy](config.d_model, config.n_heads, config.dropout)
        )
        self.state_norm = STATE_NORMS[config.norm](config.d_model)
        self.lengths = None if config.readout_width is None else Lengths(config, config.readout_width)

    def response(self, state: Tensor, stimulus: Tensor, inputs: IterationInputs) -> tuple[Tensor, Tensor]:
        attended, aux_loss = self.attention(state, inputs.mask, inputs.rotation, None, *inputs.weights)
        attended = self.dropout(attended)
        return stimulus + attended if self.config.inject else attended, aux_loss

    def moved(self, state: Tensor, response: Tensor, inputs: IterationInputs) -> Tensor:
        return self.state_norm(torch.add(state, response, alpha=self.config.eta))  # (1)

    def finished(self, state: Tensor) -> Tensor:
        return state if self.lengths is None else self.lengths(state)

    def normalised(self, x: Tensor) -> Tensor:
        """Return x with the length of initial states, which under `none` is that of `unit`."""
        return F.normalize(x, dim=-1) * (self.state_size * self.config.d_model**0.5)

    @property
    def state_size(self) -> float:
        return 1.0 if self.config.norm == "rms" else self.config.d_model**-0.5

    def scale_to_states(self) -> None:
        """Scale up the initial matrices of the logits for states of length 1.

        The usual initial matrices are meant for states of length sqrt(D). With length 1, logits would be D times
        smaller, and attention would be a mean until the matrices have grown. (Without a norm the states grow instead.)
        """
        super().scale_to_states()
        if isinstance(self.attention, EnergyAttention) and self.config.norm == "unit":
            self.attention.scale_logits(self.config.d_model)
        if self.config.norm == "unit" and not self.config.qk_norm:
            for linear in _of_logits(getattr(self.attention, "project", None)):
                # sigmaReparam divides the size of a weight out, and has a gain in its place.
                size = linear.sigma.gain if isinstance(linear, SigmaLinear) else linear.weight
                size.mul_(self.config.d_model**0.5)

    def weights(self) -> tuple[Maps, ...]:
        return (self.attention.maps(),) if isinstance(self.attention, EnergyAttention) else ()


def _of_logits(project: nn.Module | None) -> list[nn.Linear]:
    """Return the linear maps that make queries and keys whose length is proportional to that of the state."""
    if isinstance(project, HeadProjection):
        return [project.query, project.key]
    if isinstance(project, LatentProjection):
        if isinstance(project.norm, nn.Identity):
            return [project.query_up, project.query_rope, project.key_up, project.key_rope]
        return [project.key_rope]  # the norms of the latents make the others independent of the state's length
    return []
