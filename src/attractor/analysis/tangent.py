"""Tangent spaces: the directions in which a normalised state can move.

A map that ends in a normalisation puts each group of channels on a sphere, or on an ellipsoid if it has a gain:

    sum_i (x_i / g_i)^2 = const,    normal  m_i = x_i / g_i^2,    v -> v - m <m, v> / <m, m>                (1)

The state cannot move along m. So a product of such Jacobians has a singular value of zero, and an exponent of minus
infinity, for each group. The projection (1) leaves these directions out. It also keeps the perturbation at the start of
an orbit on the sphere, even for a step that adds to the state before it normalises.
Limits: dim - n_groups directions remain; projecting twice is projecting once.
"""

from collections.abc import Callable

from torch import Tensor

from attractor.analysis.lanczos import or_one
from attractor.errors import InputError, require_count

# (state, vectors with one more dimension in front) -> the projected vectors.
Tangent = Callable[[Tensor, Tensor], Tensor]


def sphere_tangent(n_channels: int | None = None, gain: Tensor | None = None) -> Tangent:
    """Return the projection (1) for groups of `n_channels` along the last dimension, by default all of it.

    `gain` has the size of that dimension.
    """
    if n_channels is not None:
        require_count("n_channels", n_channels)

    def project(x: Tensor, v: Tensor) -> Tensor:
        width = n_channels or x.shape[-1]
        if x.shape[-1] % width:
            raise InputError(f"n_channels must divide the last dimension {x.shape[-1]}, got {width}; take a divisor")
        normal = x if gain is None else x / gain.detach().square()
        m, grouped = (z.unflatten(-1, (-1, width)) for z in (normal, v))
        m = m / or_one(m.abs().amax(-1, keepdim=True))  # no square overflows or vanishes
        length = m.norm(dim=-1, keepdim=True)
        if not (length > 0).all():
            raise InputError(
                f"x must have a positive length in each group of {width} channels, got 0; sphere_tangent has no normal "
                "there: start elsewhere or leave out the tangent"
            )
        m = m / length
        return (grouped - m * (m * grouped).sum(-1, keepdim=True)).flatten(-2)  # (1)

    return project
