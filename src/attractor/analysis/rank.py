"""How many directions an attention map uses, from its singular values sigma_1 >= sigma_2 >= ...

    effective rank    (sum_i sigma_i)^2 / sum_i sigma_i^2                                                   (1)
    top share         sigma_1 / sum_i sigma_i                                                               (2)
    spectral gap      1 - sigma_2 / sigma_1                                                                 (3)

(1) lies between 1 (one direction) and the dimension (all singular values equal). Elsewhere "effective rank" may mean
the exponential of the spectrum's entropy, which is another number. The SVD is taken in fp32 or wider.
CoupledQK: Gahtan and Bronstein, Coupled Query-Key Dynamics for Attention, 2026, arXiv 2604.01683, table 12.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class SpectralProfile(NamedTuple):
    """(1), (2) and (3)."""

    effective_rank: Tensor
    top_share: Tensor
    spectral_gap: Tensor


def spectral_profile(weights: Float[Tensor, "*batch T S"]) -> SpectralProfile:
    """Return all three measures from one decomposition."""
    wide = weights.to(torch.promote_types(weights.dtype, torch.float32))
    finite = wide.isfinite().all(-1).all(-1)
    sigma = torch.linalg.svdvals(torch.where(finite[..., None, None], wide, 0.0))
    sigma = sigma.masked_fill(~finite.unsqueeze(-1), torch.nan)
    total = sigma.sum(-1)
    return SpectralProfile(
        total.square() / sigma.square().sum(-1),  # (1)
        sigma[..., 0] / total,  # (2)
        1 - sigma[..., 1] / sigma[..., 0] if sigma.shape[-1] > 1 else torch.ones_like(total),  # (3)
    )


def effective_rank(weights: Float[Tensor, "*batch T S"]) -> Float[Tensor, "*batch"]:
    """Return (1)."""
    return spectral_profile(weights).effective_rank
