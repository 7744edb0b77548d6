"""Projection for the gated delta rule: convolved queries, keys and values, a decay and a rate of writing.

    q, k, v = SiLU(conv(W_q x)), SiLU(conv(W_k x)), SiLU(conv(W_v x))                                        (1)
    log a = -exp(A) softplus(w . x + d),   b = sigmoid(u . x)                for each head                   (2)

conv is the short causal convolution of `convolved.py` without the input itself, so its cache holds the last width - 1
inputs. log a and b are the last two coordinates of each value, from which the score splits them off.
At first exp(A) is uniform below 16, and softplus(d) lies between .001 and .1, evenly by its logarithm, so heads start
with memories of less than one position to thousands.
Yang, Kautz and Hatamizadeh, Gated delta networks, 2024, arXiv 2412.06464, whose heads have values twice as wide as
keys; here both have the width of the layer's heads.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attractor.attention.hooks import tap
from attractor.attention.project.convolved import ShortConvolution
from attractor.attention.project.decayed import WideLinear
from attractor.attention.project.heads import split_heads
from attractor.attention.sigma_reparam import linear
from attractor.attention.stage import HeadLayout, Projection, Shape
from attractor.attention.surroundings import ALONE, Surroundings
from attractor.errors import require


@dataclass(frozen=True)
class DeltaHeads(Projection):
    reads_more = True

    width: int = 4  # positions of the convolutions, the own one included

    def __post_init__(self) -> None:
        super().__post_init__()
        require(2 <= self.width <= 4, "width", "from 2 to 4", self.width)

    def build(self, shape: Shape) -> nn.Module:
        return DeltaProjection(self, shape)


class DeltaProjection(nn.Module):
    def __init__(self, config: DeltaHeads, shape: Shape) -> None:
        super().__init__()
        n_heads, width = shape.n_heads, shape.head_dim
        self.layout = HeadLayout(n_heads, n_heads, n_heads, free=width, value=width, extra=2)
        self.query = linear(shape.d_model, n_heads * width, False, config.sigma_reparam)
        self.key = linear(shape.d_model, n_heads * width, False, config.sigma_reparam)
        self.value = nn.Linear(shape.d_model, n_heads * width, bias=False)
        self.convolution = ShortConvolution(3 * n_heads * width, config.width)
        self.decay = DecaySteps(shape.d_model, n_heads)
        self.log_size = nn.Parameter(torch.empty(n_heads))  # A
        self.rate = WideLinear(shape.d_model, n_heads, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.log_size.uniform_(0, 16).clamp_(min=1e-4).log_()

    def forward(self, x: Float[Tensor, "B T D"], around: Surroundings = ALONE) -> tuple[Tensor, Tensor, Tensor]:
        projected = torch.cat([self.query(x), self.key(x), self.value(x)], dim=-1)
        convolved = F.silu(self.convolution(projected, around))  # (1)
        q, k, v = (split_heads(part, width=self.layout.free) for part in convolved.chunk(3, dim=-1))
        log_decay = self.log_size.exp() * F.logsigmoid(-self.decay(x))  # (2), since softplus(z) = -log sigmoid(-z)
        of_heads = torch.stack(
            [tap("log_decay", log_decay.transpose(1, 2)), self.rate(x).sigmoid().transpose(1, 2)], -1
        )
        return q, k, torch.cat([v, of_heads.to(v.dtype)], dim=-1)


class DecaySteps(WideLinear):
    """w . x + d of (2)."""

    def reset_parameters(self) -> None:
        super().reset_parameters()
        with torch.no_grad():
            steps = self.bias.uniform_(math.log(0.001), math.log(0.1)).exp_()
            self.bias.copy_(steps + torch.log(-torch.expm1(-steps)))  # the inverse of softplus
