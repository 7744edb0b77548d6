"""Differential attention: the difference of two softmax maps, in three published forms.

    c = (1 - lambda_init) RMSNorm(A_1 v - lambda A_2 v),   lambda_init = 0.8 - 0.6 exp(-0.3 l), l from 0    (1)
    scalar    one lambda per head and layer, starting at lambda_init; norm without weight                   (2)
    vectors   lambda = exp(a_1 . b_1) - exp(a_2 . b_2) + lambda_init, four vectors of the sub-head's width,
              shared by the heads; norm with weight                                                         (3)
    token     c = A_1 v - sigmoid(w_h . x) A_2 v, no norm; twice the query heads, of full width             (4)

Under (2) and (3) each head is two sub-heads of half its width: maps h and H + h belong to head h. Under (4) query heads
2h and 2h + 1 read the same key head. The taps of logits and weights show all A_1 before all A_2 in each form. Under (4)
those of queries, and measures of logits by head, have the two of a head side by side.
Limits: lambda = 0 gives the norm of A_1 v; rows of the signed difference sum to 1 - lambda, not 1.
(2) CoupledQK, appendix B, where it adds 64 parameters: Gahtan and Bronstein, Coupled Query-Key Dynamics for Attention,
2026, arXiv 2604.01683; (3) Ye et al., Differential Transformer, 2024, arXiv 2410.05258; (4) its second
version, a blog post of Microsoft, 2026.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attractor.attention.hooks import listening
from attractor.attention.mask import Mask
from attractor.attention.norm import RMSNorm
from attractor.attention.score.softmax import attend, observe, require_scoring
from attractor.attention.stage import HeadLayout, Scoring, Shape
from attractor.errors import require_known
from attractor.fields import later
from attractor.kernels.differential import (
    differential_attention,
    differential_attention_of_pairs,
    maps_of_pairs,
)

FORMS = ("scalar", "vectors", "token")


@dataclass(frozen=True)
class Differential(Scoring):
    form: str = "scalar"
    softcap: float | None = None
    z_loss: float = later(0.0)  # applies to the logits of both maps
    attention_scale: float | None = later(None)  # factor of the logits; None: the scored width ** -0.5
    window: int | None = later(None)  # keys that a query sees in both maps; None: the whole past

    def __post_init__(self) -> None:
        super().__post_init__()
        require_known("form of differential attention", self.form, FORMS)
        require_scoring(self.softcap, self.z_loss, self.attention_scale, self.window)

    @property
    def halves(self) -> bool:
        return self.form != "token"

    @property
    def query_maps(self) -> int:
        return 2 if self.form == "token" else 1

    def build(self, shape: Shape, layout: HeadLayout, scale: float, dropout: float) -> nn.Module:
        if self.form == "token":
            return TokenDifferential(shape, scale, self.softcap, dropout)
        return HalvesDifferential(self.form == "vectors", shape, layout, scale, self.softcap, dropout)


class HalvesDifferential(nn.Module):
    def __init__(
        self, vectors: bool, shape: Shape, layout: HeadLayout, scale: float, softcap: float | None, dropout: float
    ) -> None:
        super().__init__()
        self.scale, self.softcap, self.dropout = scale, softcap, dropout
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * shape.layer_index)
        self.vectors = nn.Parameter(torch.empty(4, (layout.free + layout.rotary) // 2)) if vectors else None
        self.scalar = None if vectors else nn.Parameter(torch.empty(shape.n_heads))
        self.norm = RMSNorm(layout.value, eps=1e-5, elementwise_affine=vectors)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.vectors is not None:
            nn.init.normal_(self.vectors, std=0.1)
        if self.scalar is not None:
            nn.init.constant_(self.scalar, self.lambda_init)

    def subtraction(self) -> Tensor:
        """Return lambda, broadcastable to B H T V."""
        if self.scalar is not None:
            return self.scalar.view(-1, 1, 1)  # (2)
        assert self.vectors is not None
        a1, b1, a2, b2 = self.vectors.unbind()
        # Sums of products keep their precision under autocast, which would round inner products.
        return (a1 * b1).sum().exp() - (a2 * b2).sum().exp() + self.lambda_init  # (3)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor) -> Tensor:
        observe(q, k, mask, self.scale, self.softcap)
        dropout = self.dropout if self.training else 0.0
        difference = attention_difference(q, k, v, self.subtraction(), mask, self.scale, self.softcap, dropout)
        return (1 - self.lambda_init) * self.norm(difference)  # (1)


class TokenDifferential(nn.Module):
    def __init__(self, shape: Shape, scale: float, softcap: float | None, dropout: float) -> None:
        super().__init__()
        self.scale, self.softcap, self.dropout = scale, softcap, dropout
        self.subtraction = nn.Linear(shape.d_model, shape.n_heads, bias=False)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        by = self.subtraction(x).sigmoid().mT.unsqueeze(-1)
        if listening("logits", "weights"):
            observe(*maps_of_pairs(q, k), mask, self.scale, self.softcap)
        if plainly_causal(mask, self.softcap, dropout):
            return differential_attention_of_pairs(q, k, v, by, self.scale)  # (4)
        return attention_difference(*maps_of_pairs(q, k), v, by, mask, self.scale, self.softcap, dropout)


def plainly_causal(mask: Mask, softcap: float | None, dropout: float) -> bool:
    return mask.causal and softcap is None and not dropout


def attention_difference(
    q: Tensor, k: Tensor, v: Tensor, by: Tensor, mask: Mask, scale: float, softcap: float | None, dropout: float
) -> Tensor:
    """Return A_1 v - lambda A_2 v (`by` is lambda). The heads of q and k are all first maps, then all second maps."""
    if plainly_causal(mask, softcap, dropout):
        return differential_attention(q, k, v, by, scale)
    first, second = (
        attend(q_i, k_i, v, mask, scale, softcap, dropout)
        for q_i, k_i in zip(q.chunk(2, dim=1), k.chunk(2, dim=1), strict=True)
    )
    return first - by.to(first.dtype) * second
