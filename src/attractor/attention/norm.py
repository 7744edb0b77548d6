"""RMSNorm inside attention: torch's, with the weight in the input's precision.

Under autocast the input is bf16 and the weight fp32; torch leaves its fused kernel then, warns, and returns fp32.

Over one head, or over all heads of a position together (OLMo 2), whose weight then has a coordinate for each of theirs.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class RMSNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        weight = None if self.weight is None else self.weight.to(x.dtype)
        return F.rms_norm(x, self.normalized_shape, weight, self.eps)


class RMSNormAcross(RMSNorm):
    def __init__(self, n_heads: int, width: int, eps: float) -> None:
        super().__init__(n_heads * width, eps=eps)
        self.n_heads = n_heads

    def forward(self, x: Float[Tensor, "B H T W"]) -> Float[Tensor, "B H T W"]:
        return super().forward(x.transpose(1, 2).flatten(2)).unflatten(2, (self.n_heads, -1)).transpose(1, 2)
