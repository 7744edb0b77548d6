"""Two constraints inside a model: doubly stochastic mixing of streams, and states on the unit sphere.

    sinkhorn       log H <- log H - lse(rows), then - lse(columns), n times from the logits                 (1)
    unit sphere    y / |y|, and 0 at 0                                                                      (2)

(1) ends with columns, whose sums are 1 up to rounding. The sums of rows tend to 1. The limit does not change if a
constant is added to a row or column of the logits. For H >= 0, |H x|^2 <= (largest row sum) (largest column sum) |x|^2,
so |H x| <= (1 + d) |x| if no sum is further than d from 1, which takes more iterations for logits far apart. The
gradient of (2) at exactly 0 is 0.
FastSlow, section 5, M1 (the Birkhoff polytope) and M2: Gao, Attention is just another name for coupling?, 2026,
arXiv 2606.16730.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def sinkhorn(logits: Float[Tensor, "*batch n n"], n_iterations: int = 20) -> Float[Tensor, "*batch n n"]:
    """Return (1) in fp32 or wider, since sums in half precision could not be 1."""
    log = logits.to(torch.promote_types(logits.dtype, torch.float32))
    for _ in range(n_iterations):
        log = log - log.logsumexp(-1, keepdim=True)  # (1)
        log = log - log.logsumexp(-2, keepdim=True)
    return log.exp()


def unit_sphere(y: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
    """Return (2)."""
    wide = y.to(torch.promote_types(y.dtype, torch.float32))
    # Division by the largest entry keeps squares from overflow and underflow. (2) does not change, nor do gradients.
    largest = wide.detach().abs().amax(-1, keepdim=True)
    zero = largest == 0
    scaled = wide / torch.where(zero, 1, largest)
    square = scaled.square().sum(-1, keepdim=True)
    return (scaled * torch.where(zero, 1, square).rsqrt() * ~zero).to(y.dtype)
