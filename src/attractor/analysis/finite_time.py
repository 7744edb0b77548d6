"""Finite-time Lyapunov exponents: what T steps from here do to a small ball around x.

    P = J_(T-1) ... J_1 J_0,    lambda_i = (1 / T) log sigma_i(P)                                           (1)

The ball becomes an ellipsoid with axes e^(T lambda_i). These are singular values of a PRODUCT: the average growth of a
frame that starts at random, which is what QR along so few steps gives, is another number, even in sign. So: subspace
iteration on P'P with k + 2 directions, P by T Jacobians forwards, P' by the same ones backwards, in turn, with QR
after every one of them (`frames`), until the values of a sweep, forwards and backwards, differ from the last sweep's
by less than the tolerance. Each half sweep gives Rayleigh-Ritz values, which only grow towards (1), by
(sigma_(k+3) / sigma_i)^2 of their error each time: long products have wide gaps, so few sweeps do.

The steps may also be different maps, as the layers of a model are: a sequence of them is taken one after another, once
each, and T is their number.

Limits: k = dim is exact after one half; a linear map gives log sigma_i(M^T) / T, a normal one log |eigenvalue|. A
singular value that is lost in rounding is zero, its exponent minus infinity: such are the radial directions of a step
that ends in a normalisation, unless `tangent` leaves them out.
Jacobians, section 5; the orbit is stored, T + 1 states, and linearised anew in each half sweep.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attractor.analysis.frames import Frame, nothing_shed, orthonormalise
from attractor.analysis.jacobian import ONE_GIB, Jacobian
from attractor.analysis.state import Step, image_of, require_at_most, require_count, require_finite
from attractor.analysis.tangent import Tangent

OVERSAMPLING = 2


@dataclass(frozen=True)
class FiniteTime:
    exponents: Tensor  # k, or B k; largest first
    change: Tensor  # the largest of the last sweep, for each sample
    n_sweeps: int


def finite_time_exponents(
    step: Step | Sequence[Step],
    x: Tensor,
    n_steps: int = 16,
    k: int = 8,
    batched: bool = False,
    tangent: Tangent | None = None,
    tolerance: float = 1e-3,
    max_sweeps: int = 30,
    max_bytes: int = ONE_GIB,
) -> Tensor:
    """(1), the k largest: k of them, or B x k. Warns where they still moved by more than `tolerance`."""
    found = finite_time(step, x, n_steps, k, batched, tangent, tolerance, max_sweeps, max_bytes)
    if (found.change > tolerance).any():
        warnings.warn(
            f"exponents still changed by {found.change.max().item():.1e} in sweep {found.n_sweeps}: they are lower "
            "bounds; give a larger max_sweeps, or a larger k, which converges faster",
            RuntimeWarning,
            stacklevel=2,
        )
    return found.exponents


def finite_time(
    step: Step | Sequence[Step],
    x: Tensor,
    n_steps: int = 16,
    k: int = 8,
    batched: bool = False,
    tangent: Tangent | None = None,
    tolerance: float = 1e-3,
    max_sweeps: int = 30,
    max_bytes: int = ONE_GIB,
) -> FiniteTime:
    """(1) with what is known of its convergence; warns of nothing."""
    for name, value in (("n_steps", n_steps), ("k", k), ("max_sweeps", max_sweeps)):
        require_count(name, value)
    steps = [step] * n_steps if callable(step) else list(step)
    n_steps = len(steps)
    require_count("n_steps", n_steps)
    here = Jacobian(steps[0], x, batched, tangent, max_bytes)
    require_at_most("k", k, here.dim, "the state")
    along = [here]
    for number, each in enumerate(steps[1:], start=1):
        along.append(_next(along[-1], each, number, max_bytes))
    require_finite(along[-1].image.unsqueeze(0), n_steps, batched)

    frame = start_frame(here, min(k + OVERSAMPLING, here.dim), k)
    n_sweeps, before = 0, None
    while True:
        frame, forth = _half_sweep(along, frame, backwards=False)
        frame, back = _half_sweep(along, frame, backwards=True)
        change = largest_change((forth if before is None else before)[:, :k], back[:, :k]) / n_steps
        n_sweeps, before = n_sweeps + 1, back
        if n_sweeps == max_sweeps or (change < tolerance).all():
            exponents = back[:, :k] / n_steps
            return FiniteTime(here.result(exponents.to(x.dtype)), here.result(change.to(x.dtype)), n_sweeps)


def _next(before: Jacobian, step: Step, number: int, max_bytes: int) -> Jacobian:
    """Of this step, where the one before ended."""
    x = before.image
    require_finite(x.unsqueeze(0), number, before.batched)
    if step is before.step:
        return before.at(x, image_of(step, x))
    return Jacobian(step, x, before.batched, before.tangent, max_bytes)


def _half_sweep(
    along: list[Jacobian], frame: Float[Tensor, "B n p"], backwards: bool
) -> tuple[Float[Tensor, "B n p"], Float[Tensor, "B p"]]:
    """The frame at the other end, and the logarithms of the product's singular values on it."""
    shed = nothing_shed(frame)
    for j in reversed(along) if backwards else along:
        frame, r = orthonormalise(j.transposed_times(frame) if backwards else j.times(frame))
        shed = shed.after(r)
    return frame, shed.log_singular_values()


def start_frame(j: Jacobian, n_columns: int, k: int) -> Float[Tensor, "B n p"]:
    """Random directions within the tangent space, if it has as many."""
    frame = orthonormalise(j.random_columns(n_columns, seed=0))
    n_live = live(frame)
    require_at_most("k", k, n_live, "the tangent space")
    return frame.columns[..., :n_live]


def live(frame: Frame) -> int:
    """How many directions no sample has lost."""
    return int((frame.shed.diagonal(dim1=-2, dim2=-1) > 0).sum(-1).min())


def largest_change(before: Float[Tensor, "B k"], after: Float[Tensor, "B k"]) -> Float[Tensor, " B"]:
    """Minus infinity has not changed where it stayed."""
    return torch.where(before == after, 0.0, (after - before).abs()).amax(-1)
