"""How many directions an attention map uses, from its singular values sigma_1 >= sigma_2 >= ...

    effective rank    (sum_i sigma_i)^2 / sum_i sigma_i^2                                                   (1)
    top share         sigma_1 / sum_i sigma_i                                                               (2)
    spectral gap      1 - sigma_2 / sigma_1                                                                 (3)

(1) lies between 1 (one direction) and the dimension (all singular values equal). Elsewhere "effective rank" may mean
the exponential of the spectrum's entropy, which is another number. Singular values are the roots of the eigenvalues of
A A^T in fp64, which a GPU finds for many maps at once. They are right to 1e-8 of the largest one.
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
    finite = weights.isfinite().all(-1).all(-1)
    sigma = _singular_values(torch.where(finite[..., None, None], weights, 0.0))
    sigma = sigma.to(torch.promote_types(weights.dtype, torch.float32)).masked_fill(~finite.unsqueeze(-1), torch.nan)
    total = sigma.sum(-1)
    return SpectralProfile(
        total.square() / sigma.square().sum(-1),  # (1)
        sigma[..., 0] / total,  # (2)
        1 - sigma[..., 1] / sigma[..., 0] if sigma.shape[-1] > 1 else torch.ones_like(total),  # (3)
    )


def _singular_values(weights: Tensor) -> Tensor:
    """Return the singular values, the largest first."""
    wide = weights.double()
    gram = wide @ wide.mT if wide.shape[-2] <= wide.shape[-1] else wide.mT @ wide
    squares = torch.linalg.eigvalsh(gram).flip(-1)
    positive = squares > 0
    return torch.where(positive, squares, 1.0).sqrt() * positive  # the slope of a root at 0 would be infinite


def effective_rank(weights: Float[Tensor, "*batch T S"]) -> Float[Tensor, "*batch"]:
    """Return (1)."""
    return spectral_profile(weights).effective_rank
