"""Linear attention with a learned decay: what is held of a position shrinks at each later one, by a factor it chooses.

    A_ts = scale (q_t . k_s) prod_r a_r,   r = s + 1, ..., t                                                (1)
    c_t = norm(sum_s A_ts v_s),   norm(c) = c / sqrt(1 + mean c^2), head by head, without weight            (2)

The causal sum is the linear recurrence of a state of K x V numbers:

    S_t = a_t S_(t-1) + k_t v_t',   sum_s A_ts v_s = scale S_t' q_t                                         (3)

(1) computed as written, T x S, is the reference. log a_r is summed over the positions between the two and exponentiated
last, so that nothing overflows, and added up from the query on, so that no difference of large sums is taken. Where
attention is causal over a whole sequence, `kernels/decay.py` computes the same in time that is linear in its length.
The cache holds keys and values like any other here, not the state; so masks mean what they mean everywhere:

A position that t may not attend to is as if it were absent for t: it brings no value and takes no time. Where attention
is not causal, later keys decay by r = t + 1, ..., s (ours; the sources are causal).

The sum grows with what is held, and (2) bounds it. Usual norms have 1e-5 or less in place of the 1; but the products of
a query with few keys may be close to 0, and what magnifies them has gradients without bound: in a small model their
norm was 8 at times where it is 0.9 otherwise, and with the 1 it never passed 1.4.

The weights have signs and do not sum to one. The tap `weights` shows |A_ts| / sum_s |A_ts|:
the shares of the positions in the sum, which measures of distributions take. There are no logits under a softmax to
observe or control.

Limits: a = 1 is linear attention without decay; a = 0 leaves v_t alone, up to sign and scale. Decay with a fixed a per
head: RetNet, Sun et al. 2023, arXiv 2307.08621; for learned ones see `project/decayed.py`.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attractor.attention.mask import Mask
from attractor.attention.norm import RMSNorm
from attractor.attention.project.decayed import DecayedLayout
from attractor.attention.score.softmax import attention_logits, weigh
from attractor.attention.stage import HeadLayout, Scoring, Shape
from attractor.errors import InputError
from attractor.kernels.decay import decayed_attention, sums_behind
from attractor.taps import listening, tap


@dataclass(frozen=True)
class Decayed(Scoring):
    @property
    def over_pairs(self) -> bool:
        return False  # but within pieces, all of which it computes

    def build(self, shape: Shape, layout: HeadLayout, scale: float, dropout: float) -> nn.Module:
        if not isinstance(layout, DecayedLayout):
            raise InputError(
                "project must bring a decay for score Decayed, got one that brings none; choose project=DecayedHeads()"
            )
        return DecayedScore(layout, scale, dropout)


class DecayedScore(nn.Module):
    def __init__(self, layout: HeadLayout, scale: float, dropout: float) -> None:
        super().__init__()
        self.scale, self.dropout = scale, dropout
        self.norm = RMSNorm(layout.value, eps=1.0, elementwise_affine=False)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor) -> Tensor:
        v, log_decay = v[..., :-1], v[..., -1]
        if listening("weights"):
            tap("weights", shares(decayed_weights(q, k, log_decay, mask, self.scale)))
        if mask.causal and not (self.training and self.dropout):
            context = decayed_attention(q, k, v, log_decay, self.scale)
        else:
            weights = decayed_weights(q, k, log_decay, mask, self.scale)
            context = weigh(F.dropout(weights, self.dropout, self.training), v)
        return self.norm(context)  # (2)


def decayed_weights(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B J S K"],
    log_decay: Float[Tensor, "B J S"],
    mask: Mask,
    scale: float,
) -> Float[Tensor, "B H T S"]:
    """(1), in fp32 or wider; 0 where the mask forbids."""
    logits = attention_logits(q, k, scale)
    kept = log_survival(log_decay.to(logits.dtype), q.shape[2], mask).exp()
    weights = (logits.unflatten(1, (k.shape[1], -1)) * kept.unsqueeze(2)).flatten(1, 2)
    allowed = mask.spelled_out(q.shape[2], k.shape[2], q.device)
    return weights if allowed is None else weights.masked_fill(~allowed, 0.0)


def log_survival(log_decay: Float[Tensor, "B J S"], n_queries: int, mask: Mask) -> Float[Tensor, "B J T S"]:
    """log prod_r a_r over the positions r between query and key that the query may attend to. The queries are the last
    of the positions."""
    n_keys, device = log_decay.shape[-1], log_decay.device
    position = torch.arange(n_keys, device=device)
    query = position[n_keys - n_queries :].unsqueeze(-1)
    allowed = mask.spelled_out(n_queries, n_keys, device)
    steps = log_decay.unsqueeze(2)
    if allowed is not None:
        steps = steps.masked_fill(~allowed, 0.0)
    since = sums_behind(steps.masked_fill(position > query, 0.0))  # over r = s + 1, ..., t
    if mask.causal:
        return since
    return since + steps.masked_fill(position <= query, 0.0).cumsum(-1)  # over r = t + 1, ..., s


def shares(weights: Float[Tensor, "B H T S"]) -> Float[Tensor, "B H T S"]:
    size = weights.abs()
    return size / size.sum(-1, keepdim=True).clamp(min=torch.finfo(size.dtype).tiny)
