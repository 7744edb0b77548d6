"""Norms with the precision that half precision needs, and RMSNorm over all heads of a position together.

Under autocast the input is bf16 and the weight fp32. torch's RMSNorm would then leave its fused kernel, warn, and
return fp32, so the weight is cast to the input's precision. On a CPU torch sums the gradients of LayerNorm's weight and
bias in half precision: over 8,192 positions they were wrong by 12% and 16% (LOG.md, 2026-11-26). There the norm is
computed in fp32.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attractor.kernels.precision import HALF_PRECISIONS


class LayerNorm(nn.LayerNorm):
    """torch's LayerNorm, in fp32 where the input is in half precision on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or x.dtype not in HALF_PRECISIONS.values():
            return super().forward(x)
        weight, bias = (part if part is None else part.float() for part in (self.weight, self.bias))
        return F.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps).to(x.dtype)


class RMSNorm(nn.RMSNorm):
    """torch's RMSNorm with its weight cast to the input's precision."""

    def forward(self, x: Tensor) -> Tensor:
        weight = None if self.weight is None else self.weight.to(x.dtype)
        return F.rms_norm(x, self.normalized_shape, weight, self.eps)


class RMSNormAcross(RMSNorm):
    """RMSNorm over all heads of a position together, as in OLMo 2; the weight covers the coordinates of all heads."""

    def __init__(self, n_heads: int, width: int, eps: float) -> None:
        super().__init__(n_heads * width, eps=eps)
        self.n_heads = n_heads

    def forward(self, x: Float[Tensor, "B H T W"]) -> Float[Tensor, "B H T W"]:
        return super().forward(x.transpose(1, 2).flatten(2)).unflatten(2, (self.n_heads, -1)).transpose(1, 2)
