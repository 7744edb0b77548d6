"""Exclusive attention (XSA): what a position returns has no part along its own value.

    c_t = sum_s A_ts v_s,   z_t = c_t - lambda (c_t . v_t / |v_t|^2) v_t                                    (1)
    lambda = 1, or one number for each head and layer: tanh(a), which starts at a = 0                       (2)

A is the softmax of `softmax.py`, with A_tt among its weights: the own position takes what the others do not need, as a
sink does. (1) acts on the value as it is mixed, whatever made it.
Limits: lambda = 0 is softmax attention; under lambda = 1, z_t . v_t = 0, and the first causal position returns 0.
Zhai, Exclusive self attention, 2026, arXiv 2603.09078; the learned lambda is that of public speed runs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attractor.attention.mask import Mask
from attractor.attention.score.softmax import Softmax, SoftmaxScore
from attractor.attention.stage import HeadLayout, Shape

SMALLEST = 1e-8  # |v|^2 below which nothing is taken away


@dataclass(frozen=True)
class Exclusive(Softmax):
    learned: bool = False  # lambda of each head; False: 1

    def build(self, shape: Shape, layout: HeadLayout, scale: float, dropout: float) -> nn.Module:
        return ExclusiveScore(self, shape, scale, dropout)


class ExclusiveScore(SoftmaxScore):
    def __init__(self, config: Exclusive, shape: Shape, scale: float, dropout: float) -> None:
        super().__init__(scale, config.softcap, dropout)
        self.amount = nn.Parameter(torch.empty(shape.n_heads)) if config.learned else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.amount is not None:
            nn.init.zeros_(self.amount)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor) -> Tensor:
        context = super().forward(q, k, v, mask, x)
        values = v[:, :, v.shape[2] - q.shape[2] :].repeat_interleave(q.shape[1] // v.shape[1], dim=1)
        # Sums of products keep their precision in half precision.
        wide = torch.promote_types(v.dtype, torch.float32)
        along = (context * values).sum(-1, keepdim=True, dtype=wide)
        share = along / values.square().sum(-1, keepdim=True, dtype=wide).clamp(min=SMALLEST)
        if self.amount is not None:
            share = share * self.amount.to(wide).tanh().view(-1, 1, 1)  # (2)
        return context - share.to(v.dtype) * values  # (1)
