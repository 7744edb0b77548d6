"""Shared-latent projection: queries, keys and values are computed from one widened latent vector.

    Z = LayerNorm(W_z x + b_z),   width `latent`, 4 D by default                                            (1)
    q, r, h = linear(Z),   each of head width latent / H                                                    (2)

The paper's r and h are the keys and values. The linear maps have biases: with them, a layer of the paper's baseline
has the published size. PsiQRH, "Latent projection and normalization" and "Derived projections": Phase-Activated
Attention with Latent Coupling, research proposal.
"""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from attractor.attention.norm import LayerNorm
from attractor.attention.project.heads import count_kv_heads, split_heads
from attractor.attention.sigma_reparam import linear
from attractor.attention.stage import HeadLayout, Projection, Shape
from attractor.errors import require


@dataclass(frozen=True)
class Shared(Projection):
    latent: int | None = None  # width of Z; None: 4 d_model
    n_kv_heads: int | None = None
    heads_per_kv: int = 1
    qkv_bias: bool = True

    def build(self, shape: Shape) -> nn.Module:
        return SharedProjection(self, shape)


class SharedProjection(nn.Module):
    def __init__(self, config: Shared, shape: Shape) -> None:
        super().__init__()
        latent = 4 * shape.d_model if config.latent is None else config.latent
        require(latent > 0 and latent % shape.n_heads == 0, "latent", f"a multiple of n_heads={shape.n_heads}", latent)
        width = latent // shape.n_heads
        n_kv_heads = count_kv_heads(shape.n_heads, config.n_kv_heads, config.heads_per_kv)
        self.layout = HeadLayout(shape.n_heads, shape.n_queries, n_kv_heads, free=width, value=width)
        self.latent = nn.Linear(shape.d_model, latent, bias=config.qkv_bias)
        self.norm = LayerNorm(latent)
        self.query = linear(latent, shape.n_queries * width, config.qkv_bias, config.sigma_reparam)
        self.key = linear(latent, n_kv_heads * width, config.qkv_bias, config.sigma_reparam)
        self.value = nn.Linear(latent, n_kv_heads * width, bias=config.qkv_bias)

    def forward(self, x: Float[Tensor, "B T D"]) -> tuple[Tensor, Tensor, Tensor]:
        z = self.norm(self.latent(x))  # (1)
        q = split_heads(self.query(z), self.layout.n_queries)  # (2)
        k = split_heads(self.key(z), self.layout.n_kv_heads)
        v = split_heads(self.value(z), self.layout.n_kv_heads)
        return q, k, v
