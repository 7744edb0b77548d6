"""How far back attention reaches: from the decay of a state, and from any attention map.

    length of a decay        1 / (1 - a_t) = sum_n a_t^n                                                    (1)
    effective memory         m_t = 1 + a_t m_(t-1),  m_0 = 1:   sum_s prod_r a_r,   r = s + 1, ..., t       (2)
    mean distance            sum_s w_ts |t - s|                                                             (3)
    distance that holds p    the least n with   sum of w_ts over |t - s| <= n   >=   p sum_s w_ts           (4)

(1) and (2) are in tokens: one token is no memory of the past. (1) is what a head would hold if a_t stayed as it is, (2)
what it does hold of the sequence so far, each position counted by what is left of it. With a constant a, (2) is
(1 - a^(t+1)) / (1 - a), which tends to (1). (3) and (4) are in steps back, for rows that sum to one; where w falls by a
constant a, (3) tends to (1) - 1. (3) follows a thin tail far back, (4) does not: report both.

Limits: a = 0 gives 1 for (1) and (2); a = 1 gives infinity for (1) and t + 1 for (2); attention to oneself gives 0 for
(3) and (4), uniform causal attention t / 2 for (3) and, with p = 1/2, ceil((t + 1) / 2) - 1 for (4).
The queries of a map are the last of its positions, as with a cache. The collapse to two tokens that (1) is to detect:
FastSlow, section 4.2.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from attractor.errors import InputError


def decay_length(log_decay: Float[Tensor, "*batch T"]) -> Float[Tensor, "*batch T"]:
    """(1), position by position, from log a."""
    return 1 / torch.expm1(_wide(log_decay)).abs()


def effective_memory(log_decay: Float[Tensor, "*batch T"]) -> Float[Tensor, "*batch T"]:
    """(2), position by position, from log a."""
    held: list[Tensor] = []
    for kept in _wide(log_decay).exp().unbind(-1):
        held.append(1 + kept * held[-1] if held else torch.ones_like(kept))
    return torch.stack(held, dim=-1)


def mean_distance(weights: Float[Tensor, "*batch T S"]) -> Float[Tensor, "*batch T"]:
    """(3), row by row."""
    return (_wide(weights) * distances(weights)).sum(-1)


def distance_holding(weights: Float[Tensor, "*batch T S"], share: float = 0.5) -> Float[Tensor, "*batch T"]:
    """(4), row by row: whole steps, as floating-point numbers so that they can be averaged."""
    if not 0 < share <= 1:
        raise InputError(f"share must be above 0 and at most 1, got {share!r}; 0.5 and 0.9 are usual")
    wide = _wide(weights)
    at = distances(weights).long().expand(wide.shape)
    within = torch.zeros_like(wide).scatter_add(-1, at, wide).cumsum(-1)
    # Ties are common (half of a uniform row): a sum may fall short by its rounding, which must not cost a step.
    enough = share * within[..., -1:] * (1 - wide.shape[-1] * torch.finfo(wide.dtype).eps)
    return (within < enough).sum(-1).to(wide.dtype)


def distances(weights: Float[Tensor, "*batch T S"]) -> Float[Tensor, "T S"]:
    """|t - s|, the queries being the last of the positions."""
    n_queries, n_keys = weights.shape[-2:]
    position = torch.arange(n_keys, device=weights.device)
    return (position[n_keys - n_queries :, None] - position).abs().to(_wide(weights).dtype)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))
