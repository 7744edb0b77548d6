"""Effective rank of attention maps.

    (sum_i sigma_i)^2 / sum_i sigma_i^2                                                                     (1)

Between 1 (one direction) and the dimension (all singular values equal). Not the exponential of the spectrum's entropy,
which has the same name elsewhere. CoupledQK, table 12; the SVD is taken in fp32 or wider.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def effective_rank(weights: Float[Tensor, "*batch T S"]) -> Float[Tensor, "*batch"]:
    sigma = torch.linalg.svdvals(weights.to(torch.promote_types(weights.dtype, torch.float32)))
    return sigma.sum(-1).square() / sigma.square().sum(-1)  # (1)
