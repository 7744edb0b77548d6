"""Softmax with a sink: a further key without a value, so that a head may attend to nothing.

    A_ts = exp L_ts / (exp b_h + sum_r exp L_tr) = softmax_s(L_t) sigmoid(logsumexp(L_t) - b_h)             (1)

b is learned, one number for each query head that starts at 0, or it is 0 (softmax off by one). Rows of A sum to less
than one, so the logits have an absolute size: adding a constant to all of them changes the result. The taps show L and
A; entropies of A are those of what is left after the sink. Without a soft-cap the sink is a key for torch's fused
attention, before all others: keys get one more coordinate, 1 in the sink and 0 elsewhere, and queries b / scale.
Limits: b = -inf is softmax attention; b = inf returns 0.
Off by one: Miller, Attention is off by one, a blog post, 2023; learned: the gpt-oss models of OpenAI, 2025.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attractor.attention.hooks import listening, tap
from attractor.attention.mask import Mask
from attractor.attention.score.softmax import (
    Softmax,
    attend,
    attention_logits,
    attention_weights,
    fused_attention,
    logsumexp,
)
from attractor.attention.score.window import in_blocks
from attractor.attention.stage import HeadLayout, Shape


@dataclass(frozen=True)
class Sinks(Softmax):
    normalised: ClassVar[bool] = False

    learned: bool = True  # False: b = 0

    def build(self, shape: Shape, layout: HeadLayout, scale: float, dropout: float) -> nn.Module:
        return SinkScore(self, layout, scale, dropout)


class SinkScore(nn.Module):
    def __init__(self, config: Sinks, layout: HeadLayout, scale: float, dropout: float) -> None:
        super().__init__()
        self.scale, self.softcap, self.dropout, self.n_queries = scale, config.softcap, dropout, layout.n_queries
        self.sink = nn.Parameter(torch.empty(layout.n_queries)) if config.learned else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.sink is not None:
            nn.init.zeros_(self.sink)

    @property
    def sinks(self) -> Tensor:
        """b of each query head, under the name that it has in models of transformers, where measures look for it."""
        return torch.zeros(self.n_queries) if self.sink is None else self.sink

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor) -> Tensor:
        sink = self.sinks.to(q.device)
        dropout = self.dropout if self.training else 0.0
        if listening("logits", "weights"):
            logits = tap("logits", attention_logits(q, k, self.scale))
            tap("weights", attention_weights(logits, mask, self.softcap) * self.kept(q, k, mask, sink))
        if self.softcap is None:
            return attend_beside_sink(q, k, v, mask, sink, self.scale, dropout)
        kept = self.kept(q, k, mask, sink)
        return attend(q, k, v, mask, self.scale, self.softcap, dropout) * kept.to(v.dtype)  # (1)

    def kept(self, q: Tensor, k: Tensor, mask: Mask, sink: Tensor) -> Tensor:
        """Return the share of each row that the sink leaves, B H T 1."""
        above = logsumexp(q, k, mask, self.scale, self.softcap)
        return (above - sink.to(above.dtype).view(-1, 1)).sigmoid().unsqueeze(-1)


def attend_beside_sink(
    q: Tensor, k: Tensor, v: Tensor, mask: Mask, sink: Tensor, scale: float, dropout: float
) -> Tensor:
    """Return the contexts of (1) by one call of fused attention, where the sink is the first key."""
    if mask.window is not None:
        return in_blocks(partial(attend_beside_sink, sink=sink, scale=scale, dropout=dropout), q, k, v, mask.window)
    q = torch.cat([q, (sink / scale).to(q.dtype).view(-1, 1, 1).expand(*q.shape[:3], 1)], dim=-1)
    k = torch.cat([F.pad(torch.zeros_like(k[:, :, :1]), (0, 1), value=1.0), F.pad(k, (0, 1))], dim=2)
    v = F.pad(v, (0, 0, 1, 0))
    if mask.causal:  # a first query, which sees the sink alone, keeps the mask square
        return fused_attention(F.pad(q, (0, 0, 1, 0)), k, v, mask, scale, dropout)[:, :, 1:]
    if mask.allowed is not None:
        mask = Mask(allowed=F.pad(mask.allowed, (1, 0), value=True))
    return fused_attention(q, k, v, mask, scale, dropout)
