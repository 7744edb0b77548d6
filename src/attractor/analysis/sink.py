"""The attention sink: how much of the attention falls on the first position.

    mean over t >= 1 of a_t0                                                                                (1)

Row 0 of a causal map can only attend to itself, so it is left out. 1 is a map that has collapsed onto the sink; uniform
causal attention over T positions has (H_T - 1) / (T - 1), where H_T is the harmonic number.
"""

from jaxtyping import Float
from torch import Tensor


def sink_mass(weights: Float[Tensor, "*batch T S"]) -> Float[Tensor, "*batch"]:
    return weights[..., 1:, 0].float().mean(-1)  # (1)
