"""The entropy of attention rows, in nats, and as a share of its largest value.

    H_t = - sum_s a_ts log a_ts,   0 log 0 = 0                                                              (1)
    mean of H_t / log n_t   over the rows t that may attend to n_t > 1 positions                            (2)

Limits: log S for a uniform row over S positions, 0 for a row on one position. Row 0 of a causal map sees one position
only, so its entropy is always 0. Leave it out (`rows[..., 1:]`) where a mean is compared with other work.
For differential attention, measure each softmax map, never their signed difference.
(2) is 1 where attention is uniform. A Jacobian measured there is that of averaging, whatever the mechanism.
CoupledQK: Gahtan and Bronstein, Coupled Query-Key Dynamics for Attention, 2026, arXiv 2604.01683, appendix D.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attractor.errors import require


def attention_entropy(weights: Float[Tensor, "*batch T S"]) -> Float[Tensor, "*batch T"]:
    """Return the entropy of every row. `[..., 1:]` leaves out the first row of a causal map."""
    return torch.special.entr(weights.to(torch.promote_types(weights.dtype, torch.float32))).sum(-1)  # (1)


def normalised_entropy(
    weights: Float[Tensor, "*batch T S"], allowed: Bool[Tensor, "*allowed T S"] | None = None
) -> Float[Tensor, "*batch"]:
    """Return (2) of every map; None allows all positions. A map in which no row has a choice gives NaN."""
    entropy = attention_entropy(weights)
    if allowed is None:
        allowed = torch.ones(weights.shape[-2:], dtype=torch.bool, device=weights.device)
    require(allowed.dtype == torch.bool, "allowed", "boolean", allowed.dtype, "give mask == 0 of a mask of 0 and -inf")
    rule = f"of two dimensions or {weights.ndim}, as the weights"
    next_step = "give allowed[:, None] for a mask B T S"
    require(allowed.ndim in (2, weights.ndim), "allowed", rule, tuple(allowed.shape), next_step)
    n_allowed = allowed.sum(-1).expand(entropy.shape)
    has_choice = n_allowed > 1
    shares = torch.where(has_choice, entropy / n_allowed.clamp(min=2).to(entropy.dtype).log(), 0.0)
    return shares.sum(-1) / has_choice.sum(-1)  # (2)
