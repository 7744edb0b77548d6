"""Separate projections of queries, keys and values: multi-head, grouped-query and multi-query attention.

    q = W_q x  in H heads,   k, v = W_k x, W_v x  in n_kv_heads heads                                       (1)

Query head h reads key head h // (H / n_kv_heads). MHA has one key head per query head, MQA a single key head. With
`orthogonal_values`, W_v is the orthogonal matrix (1 + A)^-1 (1 - A) of the antisymmetric part A of a free matrix, so
that heads read directions that are orthogonal to one another. The layer makes W_O orthogonal in the same way.

Vaswani et al., Attention is all you need, 2017, arXiv 1706.03762; Ainslie et al., GQA, 2023, arXiv 2305.13245.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attractor.attention.sigma_reparam import linear
from attractor.attention.stage import HeadLayout, Projection, Shape
from attractor.errors import require
from attractor.fields import later
from attractor.kernels.precision import without_autocast


def split_heads(x: Float[Tensor, "B T HK"], n_heads: int = -1, width: int = -1) -> Float[Tensor, "B H T K"]:
    """Split into `n_heads` heads, or into heads of width `width`, which also fits if x holds only some of the heads."""
    return x.unflatten(-1, (n_heads, width)).transpose(1, 2)


def count_kv_heads(n_heads: int, n_kv_heads: int | None, heads_per_kv: int) -> int:
    """Return the number of key heads, which is given directly or as a ratio."""
    if n_kv_heads is None:
        require(
            heads_per_kv >= 1 and n_heads % heads_per_kv == 0,
            "heads_per_kv",
            f"a divisor of n_heads={n_heads}",
            heads_per_kv,
            "choose n_heads to fit, or give n_kv_heads",
        )
        return n_heads // heads_per_kv
    require(n_kv_heads >= 1 and n_heads % n_kv_heads == 0, "n_kv_heads", f"a divisor of n_heads={n_heads}", n_kv_heads)
    return n_kv_heads


@dataclass(frozen=True)
class Heads(Projection):
    n_kv_heads: int | None = None  # None: n_heads / heads_per_kv
    heads_per_kv: int = 1
    qkv_bias: bool = False
    orthogonal_values: bool = later(False)

    def build(self, shape: Shape) -> nn.Module:
        return HeadProjection(self, shape)


class HeadProjection(nn.Module):
    def __init__(self, config: Heads, shape: Shape) -> None:
        super().__init__()
        width, n_queries = shape.head_dim, shape.n_queries
        n_kv_heads = count_kv_heads(shape.n_heads, config.n_kv_heads, config.heads_per_kv)
        self.layout = HeadLayout(shape.n_heads, n_queries, n_kv_heads, free=width, value=width)
        self.query = linear(shape.d_model, n_queries * width, config.qkv_bias, config.sigma_reparam)
        self.key = linear(shape.d_model, n_kv_heads * width, config.qkv_bias, config.sigma_reparam)
        kind = nn.Linear
        if config.orthogonal_values:
            rule = f"False unless heads have d_model={shape.d_model} values together"
            require(n_kv_heads * width == shape.d_model, "orthogonal_values", rule, True)
            kind = OrthogonalLinear
        self.value = kind(shape.d_model, n_kv_heads * width, bias=config.qkv_bias)

    def forward(self, x: Float[Tensor, "B T D"]) -> tuple[Tensor, Tensor, Tensor]:
        q = split_heads(self.query(x), width=self.layout.free)  # (1)
        k = split_heads(self.key(x), width=self.layout.free)
        v = split_heads(self.value(x), width=self.layout.value)
        return q, k, v


class OrthogonalLinear(nn.Linear):
    """A linear map by the orthogonal matrix `cayley(weight)`, whatever the square `weight` is."""

    def reset_parameters(self) -> None:
        """Draw the weight so that the angles of the orthogonal matrix are spread over most of the circle."""
        super().reset_parameters()
        if not self.weight.is_meta:
            nn.init.normal_(self.weight, std=(2 / len(self.weight)) ** 0.5)

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        with without_autocast(self.weight):
            matrix = cayley(self.weight)
        return F.linear(x, matrix, self.bias)


def cayley(free: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """Return the orthogonal matrix (1 + A)^-1 (1 - A) of the antisymmetric part A of a free matrix.

    1 + A is never singular, since A has imaginary eigenvalues."""
    wide = free.to(torch.promote_types(free.dtype, torch.float32))  # the solver takes no half precision
    antisymmetric = (wide - wide.mT) / 2
    identity = torch.eye(len(wide), dtype=wide.dtype, device=wide.device)
    return torch.linalg.solve(identity + antisymmetric, identity - antisymmetric).to(free.dtype)
