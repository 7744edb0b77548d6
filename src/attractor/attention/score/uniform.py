"""Uniform attention: the mean of all values that a position may attend to. It is the control of every comparison.

    c_t = mean of v_s over the positions s that t may attend to                                             (1)

A setting in which this control does as well as the baseline cannot tell attention mechanisms apart. With a causal mask
it is a running mean, whose cost is linear in the length.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attractor.attention.hooks import listening, tap
from attractor.attention.mask import Mask
from attractor.attention.score.softmax import weigh
from attractor.attention.stage import HeadLayout, Scoring, Shape


@dataclass(frozen=True)
class Uniform(Scoring):
    def build(self, shape: Shape, layout: HeadLayout, scale: float, dropout: float) -> nn.Module:
        return UniformScore(dropout)


class UniformScore(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        if listening("weights"):
            tap("weights", uniform_weights(q, k, mask))
        if mask.causal and not dropout:
            return running_mean(v).repeat_interleave(q.shape[1] // v.shape[1], dim=1)
        return weigh(F.dropout(uniform_weights(q, k, mask), dropout), v)  # (1)


def uniform_weights(q: Tensor, k: Tensor, mask: Mask) -> Tensor:
    batch, n_heads, n_queries, n_keys = *q.shape[:3], k.shape[2]
    allowed = mask.spelled_out(n_queries, n_keys, q.device)
    if allowed is None:
        allowed = torch.ones(n_queries, n_keys, dtype=torch.bool, device=q.device)
    weights = allowed.to(torch.promote_types(q.dtype, torch.float32))
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1)
    return weights.expand(batch, n_heads, -1, -1)


def running_mean(v: Tensor) -> Tensor:
    wide = torch.promote_types(v.dtype, torch.float32)
    count = torch.arange(1, v.shape[2] + 1, device=v.device, dtype=wide).unsqueeze(-1)
    return (v.to(wide).cumsum(2) / count).to(v.dtype)
