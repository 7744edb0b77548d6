"""Linear attention with a learned decay: each position multiplies the weight of all earlier ones by a factor a.

    A_ts = scale (q_t . k_s) prod_r a_r,   r = s + 1, ..., t                                                (1)
    c_t = norm(sum_s A_ts v_s),   norm(c) = c / sqrt(1 + mean c^2), head by head, without weight            (2)

The causal sum is the linear recurrence of a state of K x V numbers:

    S_t = a_t S_(t-1) + k_t v_t',   sum_s A_ts v_s = scale S_t' q_t                                         (3)

The reference computes (1) as written, T x S. It sums log a_r from the query on and exponentiates last, so nothing
overflows and no difference of large sums is taken. For causal attention over a whole sequence, `kernels/decay.py`
computes the same in time that is linear in the length.

The cache holds keys and values rather than the state, so masks work as in other mechanisms. A position that t may not
attend to counts as absent for t: it adds no value and no decay. If attention is not causal, later keys decay by
r = t + 1, ..., s; this is ours, since the sources are causal.

(2) bounds the sum, which grows with the number of positions held. The usual 1e-5 in place of the 1 would magnify the
products of a query with few keys, which may be close to 0, and their gradients: in a small model the gradient norm, 0.9
otherwise, reached 8 with 1e-5 and stayed below 1.4 with 1.

The weights have signs and do not sum to one. The tap `weights` shows the shares |A_ts| / sum_s |A_ts|, which measures
of distributions accept. There are no softmax logits to observe or control.

Limits: a = 1 is linear attention without decay; a = 0 leaves v_t alone, up to sign and scale. A fixed a per head is
RetNet: Sun et al., 2023, arXiv 2307.08621. For learned decays see `project/decayed.py`.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attractor.attention.hooks import listening, tap
from attractor.attention.mask import Mask
from attractor.attention.norm import RMSNorm
from attractor.attention.score.softmax import attention_logits, weigh
from attractor.attention.stage import HeadLayout, Scoring, Shape
from attractor.kernels.decay import decayed_attention, sums_behind
from attractor.kernels.precision import without_autocast


@dataclass(frozen=True)
class Decayed(Scoring):
    extra = 1

    @property
    def over_pairs(self) -> bool:
        return False  # only pairs within a chunk of the sequence, all of which it computes

    def build(self, shape: Shape, layout: HeadLayout, scale: float, dropout: float) -> nn.Module:
        return DecayedScore(layout, scale, dropout)


class DecayedScore(nn.Module):
    def __init__(self, layout: HeadLayout, scale: float, dropout: float) -> None:
        super().__init__()
        self.scale, self.dropout = scale, dropout
        self.norm = RMSNorm(layout.value, eps=1.0, elementwise_affine=False)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, x: Tensor) -> Tensor:
        if v.dtype == torch.float16:  # its largest number is 65,504, which the sum exceeds before (2) bounds it
            with without_autocast(q):
                return self.forward(q.float(), k.float(), v.float(), mask, x).to(v.dtype)
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
    """Return A of (1) in fp32 or wider, with 0 where the mask forbids attention."""
    products = attention_logits(q, k, scale)
    survival = log_survival(log_decay.to(products.dtype), q.shape[2], mask).exp()
    weights = (products.unflatten(1, (k.shape[1], -1)) * survival.unsqueeze(2)).flatten(1, 2)
    allowed = mask.spelled_out(q.shape[2], k.shape[2], q.device)
    return weights if allowed is None else weights.masked_fill(~allowed, 0.0)


def log_survival(log_decay: Float[Tensor, "B J S"], n_queries: int, mask: Mask) -> Float[Tensor, "B J T S"]:
    """Return log prod_r a_r over the positions r between query and key that the query may attend to.

    The queries are the last of the positions.
    """
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
    """Return the absolute weights, normalised to sum to one in each row."""
    size = weights.abs()
    return size / size.sum(-1, keepdim=True).clamp(min=torch.finfo(size.dtype).tiny)
