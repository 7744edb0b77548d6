"""Softmax with a sink: a further key without a value, so that a head may attend to nothing.

    A_ts = exp L_ts / (exp b_h + sum_r exp L_tr) = softmax_s(L_t) sigmoid(logsumexp(L_t) - b_h)              (1)

b is learned, one number for each query head that starts at 0, or it is 0 (softmax off by one). Rows of A sum to less
than one, so the logits have an absolute size: adding a constant to all of them changes the result. The taps show L and
A; entropies of A are those of what is left after the sink.
Limits: b = -inf is softmax attention; b = inf returns 0.
Off by one: Miller, Attention is off by one, a blog post, 2023; learned: the gpt-oss models of OpenAI, 2025.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from attractor.attention.hooks import listening, tap
from attractor.attention.mask import Mask
from attractor.attention.score.softmax import Softmax, attend, attention_logits, attention_weights, logsumexp
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
        self.scale, self.softcap, self.dropout = scale, config.softcap, dropout
        self.sink = nn.Parameter(torch.empty(layout.n_queries)) if config.learned else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.sink is not None:
            nn.init.zeros_(self.sink)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor) -> Tensor:
        above = logsumexp(q, k, mask, self.scale, self.softcap)
        if self.sink is not None:
            above = above - self.sink.to(above.dtype).view(-1, 1)
        kept = above.sigmoid().unsqueeze(-1)
        if listening("logits", "weights"):
            logits = tap("logits", attention_logits(q, k, self.scale))
            tap("weights", attention_weights(logits, mask, self.softcap) * kept)
        dropout = self.dropout if self.training else 0.0
        return attend(q, k, v, mask, self.scale, self.softcap, dropout) * kept.to(v.dtype)  # (1)
