"""The attention sink: the share of attention that falls on the first position.

    mean over t >= 1 of a_t0                                                                                (1)

Row 0 of a causal map can only attend to itself, so it is left out. Limits: 1 for a map that has collapsed onto the
sink; (H_T - 1) / (T - 1) for uniform causal attention over T positions, where H_T is the harmonic number.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def sink_mass(weights: Float[Tensor, "*batch T S"]) -> Float[Tensor, "*batch"]:
    """Return the mean attention to the first position, over all rows but the first; NaN for a single position."""
    return weights[..., 1:, 0].to(torch.promote_types(weights.dtype, torch.float32)).mean(-1)  # (1)
