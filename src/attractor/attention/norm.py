"""RMSNorm inside attention: torch's, with the weight in the input's precision.

Under autocast the input is bf16 and the weight fp32; torch leaves its fused kernel then, warns, and returns fp32.
"""

import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        weight = None if self.weight is None else self.weight.to(x.dtype)
        return F.rms_norm(x, self.normalized_shape, weight, self.eps)
