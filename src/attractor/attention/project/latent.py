"""Multi-head latent attention (MLA): keys and values are computed from one small latent vector per position.

    c_q = W_dq x,   q_h = [W_uq,h c_q ; W_qr,h c_q]                                                         (1)
    c   = W_dkv x,  k_h = [W_uk,h c ; W_kr x],   v_h = W_uv,h c                                             (2)

The second part of q and k carries position, with a key that all heads share. `latent_norm` puts an RMSNorm on c_q and
c.

Decoding needs only c and the rotated W_kr x of past positions:

    q_h . k_h = (W_uk,h' q_nope,h) . c + q_rope,h . k_rope,    sum_s a_s v_h,s = W_uv,h (sum_s a_s c_s)     (3)

so in this absorbed form the layer is multi-query attention over the latents.
DeepSeek-V2, 2024, arXiv 2405.04434, section 2.1. No norm on the latents, the default here, follows the section on MLA
of QuacK: Anson and Aitchison, Controlling changes to attention logits, 2025, arXiv 2511.21377.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attractor.attention.acting_weight import acting_weight
from attractor.attention.norm import RMSNorm
from attractor.attention.project.heads import split_heads
from attractor.attention.sigma_reparam import linear
from attractor.attention.stage import HeadLayout, Projection, Shape
from attractor.errors import require, require_count


@dataclass(frozen=True)
class Latent(Projection):
    q_latent: int | None = None  # None: d_model / 2
    kv_latent: int | None = None  # None: d_model / 4
    nope_dim: int | None = None  # None: the head width
    rope_dim: int | None = None  # None: half the head width, rounded up to even
    v_dim: int | None = None  # None: the head width
    latent_norm: bool = False

    def build(self, shape: Shape) -> nn.Module:
        return LatentProjection(self, shape)


class LatentProjection(nn.Module):
    def __init__(self, config: Latent, shape: Shape) -> None:
        super().__init__()
        q_latent = shape.d_model // 2 if config.q_latent is None else config.q_latent
        kv_latent = shape.d_model // 4 if config.kv_latent is None else config.kv_latent
        nope = shape.head_dim if config.nope_dim is None else config.nope_dim
        rope = 2 * ((shape.head_dim + 3) // 4) if config.rope_dim is None else config.rope_dim
        v_dim = shape.head_dim if config.v_dim is None else config.v_dim
        sizes = {"q_latent": q_latent, "kv_latent": kv_latent, "nope_dim": nope, "rope_dim": rope, "v_dim": v_dim}
        for field, size in sizes.items():
            require_count(field, size)
        require(rope % 2 == 0, "rope_dim", "even", rope, "rotary positions turn pairs of coordinates")
        n_heads = shape.n_heads
        self.kv_latent = kv_latent
        self.layout = HeadLayout(n_heads, shape.n_queries, n_heads, free=nope, value=v_dim, rotary=rope)
        self.query_down = linear(shape.d_model, q_latent, False, config.sigma_reparam)
        self.query_up = linear(q_latent, shape.n_queries * nope, False, config.sigma_reparam)
        self.query_rope = linear(q_latent, shape.n_queries * rope, False, config.sigma_reparam)
        self.down = linear(shape.d_model, kv_latent, False, config.sigma_reparam)
        self.key_up = linear(kv_latent, n_heads * nope, False, config.sigma_reparam)
        self.key_rope = linear(shape.d_model, rope, False, config.sigma_reparam)
        self.value_up = nn.Linear(kv_latent, n_heads * v_dim, bias=False)
        self.query_norm = RMSNorm(q_latent, eps=1e-6) if config.latent_norm else nn.Identity()
        self.norm = RMSNorm(kv_latent, eps=1e-6) if config.latent_norm else nn.Identity()

    def forward(self, x: Float[Tensor, "B T D"]) -> tuple[Tensor, Tensor, Tensor]:
        n_heads = self.layout.n_heads
        q = self._queries(x)
        c = self.norm(self.down(x))
        k_nope = split_heads(self.key_up(c), n_heads)  # (2)
        k_rope = self.key_rope(x).unsqueeze(1).expand(-1, n_heads, -1, -1)
        v = split_heads(self.value_up(c), n_heads)
        return q, torch.cat([k_nope, k_rope], dim=-1), v

    def absorbed(self, x: Float[Tensor, "B T D"]) -> tuple[Tensor, Tensor]:
        """Return the queries and the single key head of (3); the values are its first `kv_latent` coordinates."""
        q_nope, q_rope = self._queries(x).split([self.layout.free, self.layout.rotary], dim=-1)
        up = acting_weight(self.key_up).unflatten(0, (self.layout.n_heads, -1))  # H nope C
        q = torch.cat([torch.einsum("bhtn,hnc->bhtc", q_nope, up), q_rope], dim=-1)
        k = torch.cat([self.norm(self.down(x)), self.key_rope(x)], dim=-1)
        return q, k.unsqueeze(1)

    def unfold(self, context: Float[Tensor, "B H T C"]) -> Float[Tensor, "B H T V"]:
        """Map a mean of latents to the mean of the values that they stand for, by the second part of (3)."""
        up = acting_weight(self.value_up).unflatten(0, (self.layout.n_heads, -1))  # H V C
        return torch.einsum("bhtc,hvc->bhtv", context, up)

    def _queries(self, x: Tensor) -> Tensor:
        n_queries = self.layout.n_queries
        c_q = self.query_norm(self.query_down(x))  # (1)
        parts = [split_heads(self.query_up(c_q), n_queries), split_heads(self.query_rope(c_q), n_queries)]
        return torch.cat(parts, dim=-1)
