"""Two constraints on what flows through a model: mixing that is doubly stochastic, and states on the unit sphere.

    sinkhorn       log H <- log H - lse(rows), then - lse(columns), n times from the logits                 (1)
    unit sphere    y / |y|, and 0 at 0                                                                      (2)

(1) ends on columns, whose sums are 1 to rounding; the sums of rows are 1 in the limit, which is the same if a constant
is added to a row or column of the logits. For H >= 0, |H x|^2 <= (largest row sum) (largest column sum) |x|^2, and so
|H x| <= (1 + d) |x| with d the `birkhoff_defect`: logits far apart converge slowly, and d tells. The gradient of (2) at
exactly 0 is 0. FastSlow, section 5: M1, the Birkhoff polytope, and M2.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def sinkhorn(logits: Float[Tensor, "*batch n n"], n_iterations: int = 20) -> Float[Tensor, "*batch n n"]:
    """Comes out in fp32 or wider: in half precision sums could not be 1."""
    log = logits.to(torch.promote_types(logits.dtype, torch.float32))
    for _ in range(n_iterations):
        log = log - log.logsumexp(-1, keepdim=True)  # (1)
        log = log - log.logsumexp(-2, keepdim=True)
    return log.exp()


def birkhoff_defect(mixing: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch"]:
    """How far from 1 the sums of a nonnegative matrix's rows and columns are, at most."""
    return torch.maximum(*((mixing.sum(dim) - 1).abs().amax(-1) for dim in (-1, -2)))


def unit_sphere(y: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
    wide = y.to(torch.promote_types(y.dtype, torch.float32))
    # The largest entry first, so that no square overflows or vanishes. (2) does not feel it, so neither need gradients.
    largest = wide.detach().abs().amax(-1, keepdim=True)
    zero = largest == 0
    scaled = wide / torch.where(zero, 1, largest)
    square = scaled.square().sum(-1, keepdim=True)
    return (scaled * torch.where(zero, 1, square).rsqrt() * ~zero).to(y.dtype)
