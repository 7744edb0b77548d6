"""How many directions an attention map has, from its singular values sigma_1 >= sigma_2 >= ...

    effective rank    (sum_i sigma_i)^2 / sum_i sigma_i^2                                                   (1)
    top share         sigma_1 / sum_i sigma_i                                                               (2)
    spectral gap      1 - sigma_2 / sigma_1                                                                 (3)

(1) lies between 1 (one direction) and the dimension (all singular values equal). It is not the exponential of the
spectrum's entropy, which has the same name elsewhere. CoupledQK, table 12; the SVD is taken in fp32 or wider.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class SpectralProfile(NamedTuple):
    effective_rank: Tensor
    top_share: Tensor
    spectral_gap: Tensor


def spectral_profile(weights: Float[Tensor, "*batch T S"]) -> SpectralProfile:
    """All three from one decomposition."""
    sigma = torch.linalg.svdvals(weights.to(torch.promote_types(weights.dtype, torch.float32)))
    total = sigma.sum(-1)
    return SpectralProfile(
        total.square() / sigma.square().sum(-1),  # (1)
        sigma[..., 0] / total,  # (2)
        1 - sigma[..., 1] / sigma[..., 0] if sigma.shape[-1] > 1 else torch.ones_like(total),  # (3)
    )


def effective_rank(weights: Float[Tensor, "*batch T S"]) -> Float[Tensor, "*batch"]:
    return spectral_profile(weights).effective_rank
