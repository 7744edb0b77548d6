"""Projection for decayed attention: queries, keys and values, and for each position the decay of the past.

    z = w_j . x + b_j,   a = sigmoid(z),   log a = -log(1 + exp(-z))        for each key head j               (1)
    v = [W_v x, log a]                                                                                      (2)

z is the logarithm of a length: at constant z, a head holds 1 / (1 - a) = 1 + exp(z) positions, so z = 0 is two tokens.
Training starts at w = 0 and b = log(initial_memory - 1), where every head holds `initial_memory` positions.

There is one state for each key head, so the queries of a group share its decay. The decay is passed on as the last
coordinate of the value, because values are cached unchanged, whereas keys may still be normalised and rotated. The
score splits it off again. It is passed as log a, which keeps its precision in bf16: bf16 has no a between 1 - 1/256
and 1, but any log a to 0.4%.

Mamba-2 has one decay per head: Dao and Gu, Transformers are SSMs, 2024, arXiv 2405.21060. Gated linear attention has
one for each coordinate of the key, with a 16th root that keeps it close to 1: Yang et al., 2024, arXiv 2312.06635.
"""

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attractor.attention.acting_weight import NEARLY_ZERO
from attractor.attention.hooks import tap
from attractor.attention.project.heads import HeadProjection, Heads
from attractor.attention.stage import Shape
from attractor.errors import require
from attractor.kernels.precision import without_autocast


@dataclass(frozen=True)
class DecayedHeads(Heads):
    initial_memory: float = 256.0  # positions that each head holds before training

    def __post_init__(self) -> None:
        super().__post_init__()
        require(1 < self.initial_memory < math.inf, "initial_memory", "above 1 and finite", self.initial_memory)

    def build(self, shape: Shape) -> nn.Module:
        return DecayedProjection(self, shape)


class DecayedProjection(HeadProjection):
    def __init__(self, config: DecayedHeads, shape: Shape) -> None:
        super().__init__(config, shape)
        self.layout = replace(self.layout, extra=1)
        self.decay = DecayLogits(shape.d_model, self.layout.n_kv_heads, config.initial_memory)

    def forward(self, x: Float[Tensor, "B T D"]) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().forward(x)
        log_decay = tap("log_decay", F.logsigmoid(self.decay(x)).transpose(1, 2))  # (1)
        return q, k, torch.cat([v, log_decay.unsqueeze(-1).to(v.dtype)], dim=-1)  # (2)


class WideLinear(nn.Linear):
    """A linear map in fp32 or wider, for what decides how fast a memory fades."""

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T J"]:
        wide = torch.promote_types(x.dtype, torch.float32)
        with without_autocast(x):
            return F.linear(x.to(wide), self.weight.to(wide), None if self.bias is None else self.bias.to(wide))


class DecayLogits(WideLinear):
    """z of (1). Rounding it to bf16 could change the length by 3%."""

    def __init__(self, d_model: int, n_kv_heads: int, initial_memory: float) -> None:
        self.initial_memory = initial_memory  # set first, since nn.Linear calls reset_parameters
        super().__init__(d_model, n_kv_heads)

    def reset_parameters(self) -> None:
        nn.init.constant_(self.weight, NEARLY_ZERO)
        nn.init.constant_(self.bias, math.log(self.initial_memory - 1))
