"""Attention that descends an energy for any weights, and measures of energy.

    E(X) = -sum_h sum_ij exp(beta x_i' A_h x_j),   A_h symmetric                                            (1)
    u_i^h = sum_j softmax_j(beta x_i' A_h x_j) A_h x_j,   dX = sum_h u^h                                    (2)
    dE/dx_i = -2 beta sum_h Z_i^h u_i^h,   Z_i^h = sum_j exp(beta x_i' A_h x_j)                             (3)

    single   one head, A = (W_Q W_K' + W_K W_Q') / 2                                                        (4)
    multi    A_h = U_h S_h U_h',  S_h symmetric,  [U_1 ... U_H] = (1 + K)^-1 (1 - K) with K' = -K           (5)

(3) needs equal halves of the gradient, so A must be symmetric and all positions must attend to all: neither a causal
mask nor a rotation is allowed. The heads of (5) have orthogonal ranges, so (2) descends (1) in all of them:

    <dE/dX, dX> = -2 beta sum_h sum_i Z_i^h |u_i^h|^2 <= 0                                                  (6)

The constraint holds by construction, not by a penalty: values and output use the matrices of the logits. K and S_h are
the antisymmetric and symmetric parts of free matrices; beta is attention's scale, 1 / sqrt(head width). With
W_V = sym(A) and an asymmetric A, (6) need not hold.
Jacobians, propositions 4.1 and 4.2, which claim (1) for asymmetric A too: Tomihari and Karakida, Recurrent
Self-Attention Dynamics, 2025, arXiv 2505.19458.
"""

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attractor.attention import Cache, Rope, Rotation
from attractor.attention.acting_weight import acting_weight
from attractor.attention.hooks import tap
from attractor.attention.mask import resolve_mask
from attractor.attention.project.heads import cayley, split_heads
from attractor.attention.score.softmax import SoftmaxScore, attention_logits
from attractor.errors import require
from attractor.kernels.precision import without_autocast


class Maps(NamedTuple):
    """The matrices of q = x Q and k = x U, split by heads. Values are q, and the output is multiplied by U'.

    U is None if it is the identity.
    """

    query: Float[Tensor, "D D"]
    basis: Float[Tensor, "D D"] | None


class EnergyAttention(nn.Module, ABC):
    """Attention with an energy, called like `Attention`. Several calls may share their `maps`."""

    rope_width = 0  # rotations are not supported

    def __init__(self, d_model: int, n_heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        require(d_model % n_heads == 0, "d_model", f"divisible by n_heads={n_heads}", d_model)
        self.n_heads, self.head_dim = n_heads, d_model // n_heads
        self.scale = self.head_dim**-0.5
        self.score = SoftmaxScore(self.scale, None, dropout)

    @abstractmethod
    def maps(self) -> Maps: ...

    @abstractmethod
    def scale_logits(self, factor: float) -> None:
        """Multiply the weights so that logits become `factor` times as large, and values with them."""

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        causal_mask: bool | Tensor = False,
        rope: Rope | Rotation | None = None,
        cache: Cache | None = None,
        maps: Maps | None = None,
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, ""]]:
        require(rope is None, "rope", "None for attention with an energy", rope, "a rotation has no energy")
        require(cache is None, "cache", "None for attention with an energy", cache, "all positions see one another")
        maps = self.maps() if maps is None else maps
        q, k = self._scored(x, maps)
        mask = resolve_mask(causal_mask, x.shape[0], x.shape[1], x.shape[1], x.device)
        context = self.score(tap("q_coupled", q), tap("k_coupled", k), q, mask, x).transpose(1, 2).flatten(2)  # (2)
        out = context if maps.basis is None else context @ maps.basis.mT.to(context.dtype)
        return out, torch.zeros((), device=x.device)

    def energy(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B"]:
        """Return (1) for each sequence."""
        return -attention_logits(*self._scored(x, self.maps()), self.scale).exp().sum((1, 2, 3))

    def _scored(self, x: Tensor, maps: Maps) -> tuple[Tensor, Tensor]:
        k = x if maps.basis is None else x @ maps.basis
        return split_heads(x @ maps.query, self.n_heads), split_heads(k, self.n_heads).to(maps.query.dtype)


class SingleHeadEnergy(EnergyAttention):
    def __init__(self, d_model: int, n_heads: int, dropout: float = 0.0) -> None:
        require(n_heads == 1, "n_heads", "1 under the energy of a single head", n_heads, "or choose energy='multi'")
        super().__init__(d_model, n_heads, dropout)
        self.query = nn.Linear(d_model, d_model, bias=False)
        self.key = nn.Linear(d_model, d_model, bias=False)

    def maps(self) -> Maps:
        query, key = acting_weight(self.query), acting_weight(self.key)
        with without_autocast(query):
            return Maps(symmetric(query.mT @ key), None)  # (4)

    def scale_logits(self, factor: float) -> None:
        for linear in (self.query, self.key):
            linear.weight.mul_(factor**0.5)


class MultiHeadEnergy(EnergyAttention):
    def __init__(self, d_model: int, n_heads: int, dropout: float = 0.0) -> None:
        super().__init__(d_model, n_heads, dropout)
        self.turn = nn.Parameter(torch.empty(d_model, d_model))
        self.strength = nn.Parameter(torch.empty(n_heads, self.head_dim, self.head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw U with angles spread over most of the circle, and S as large as products of `nn.Linear` matrices.

        Thus heads start with different mixtures of coordinates.
        """
        nn.init.normal_(self.turn, std=math.sqrt(2 / len(self.turn)))
        nn.init.uniform_(self.strength, -self.scale, self.scale)

    def maps(self) -> Maps:
        with without_autocast(self.turn):
            basis = cayley(self.turn)
            heads = basis.unflatten(1, (self.n_heads, -1)).transpose(0, 1)
            return Maps((heads @ symmetric(self.strength)).transpose(0, 1).flatten(1), basis)

    def scale_logits(self, factor: float) -> None:
        self.strength.mul_(factor)


ENERGIES: dict[str, type[EnergyAttention]] = {"single": SingleHeadEnergy, "multi": MultiHeadEnergy}


def symmetric(matrix: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    return (matrix + matrix.mT) / 2


def pseudo_energy(
    state: Float[Tensor, "B T D"], response: Float[Tensor, "B T D"], real: Bool[Tensor, "B T"] | None = None
) -> Float[Tensor, "B"]:
    """Return -Tr(X'Y) over the positions that are not padding."""
    agreement = (state * response).sum(-1)
    return -(agreement if real is None else agreement * real).sum(-1)
