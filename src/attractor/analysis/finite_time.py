"""Finite-time Lyapunov exponents: how T steps stretch a small ball around the state x.

    P = J_(T-1) ... J_1 J_0,    lambda_i = (1 / T) log sigma_i(P)                                           (1)

The ball becomes an ellipsoid with axes e^(T lambda_i). The exponents belong to singular values of a product of
matrices. QR along so few steps would give the average growth of a random frame instead, which may even differ in sign.

The method is subspace iteration on P'P with p > k directions, which start at random. A sweep applies the T Jacobians
forwards (P) and then their transposes backwards (P'), with a QR decomposition after each one (`frames.py`). Let s_i be
the singular values of half sweep h alone, and M_i those of the product of all h half sweeps on the random frame Q:

    s_i  <=  sigma_i  <=  s_i sqrt(1 + c_l^2 (sigma_(l+1) / sigma_i)^(2 h - 2))    for each l from i to p - 1  (2)
    sigma_i^h  <=  c_i M_i                                                                                  (3)
    c_l  <=  (sqrt(n) + sqrt(p) + 6) e sqrt(p) / (p - l + 1) failure^(-1 / (p - l + 1))                     (4)

c_l is the inverse of the smallest singular value of V_l'Q, where V_l are the l leading singular vectors. For a random
frame it is almost never large, which is (4). No direction of the l leading ones can then be missing from the frame, and
(2) and (3) follow from the powers of P'P. The stated error of exponent i is the best of these bounds. (3) needs no gap
and shrinks as 1 / (h T). (2) takes its sigma_(l+1) from the bound of exponent l + 1, and its sigma_i from below; it
shrinks exponentially where values of the frame lie apart. In each call they hold except with a probability of at most
1e-6. The rounding error of each step, relative to its slower directions, is added. Sweeps end when the stated errors
are within the tolerance. Long products have wide gaps, so few sweeps are enough.

The steps may be different maps, such as the layers of a model. A sequence of maps is applied once, in order, and T is
its length.

Limits: k = dim is exact after one half sweep; a linear map M gives log sigma_i(M^T) / T, a normal one log |eigenvalue|.
A singular value that is lost in rounding counts as zero, with exponent minus infinity. So do the radial directions of a
step that ends in a normalisation, unless `tangent` leaves them out. The T + 1 states of the orbit are stored, and
linearised again in each half sweep.
(2): Gu, Subspace iteration randomization and singular value problems, SIAM J. Sci. Comput. 37, 2015.
(4): Chen and Dongarra, Condition numbers of Gaussian random matrices, 2005; Halko, Martinsson and Tropp, Finding
structure with randomness, 2011, proposition 10.4. The product: Tomihari and Karakida, Recurrent Self-Attention
Dynamics, 2025, arXiv 2505.19458, section 5.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attractor.analysis.effort import USUAL, Effort, reads
from attractor.analysis.frames import GradedProduct, empty_product, orthonormalise
from attractor.analysis.jacobian import Jacobian
from attractor.analysis.lanczos import FAILURE
from attractor.analysis.state import (
    Step,
    image_of,
    require_at_most,
    require_finite,
    require_finite_derivative,
    warn_unconverged,
)
from attractor.analysis.tangent import Tangent
from attractor.errors import require_count

OVERSAMPLING = 8  # further directions: they widen the gaps in (2) and make (4) small


@dataclass(frozen=True)
class FiniteTime:
    """Finite-time exponents, which are lower bounds, and a bound on their errors."""

    exponents: Tensor  # k, or B k; largest first
    error: Tensor  # by (2) and (3); the largest of the k exponents, for each sample
    n_sweeps: int
    tolerance: float  # of the error


def finite_time(
    step: Step | Sequence[Step],
    x: Tensor,
    n_steps: int = 16,
    k: int = 8,
    batched: bool = False,
    tangent: Tangent | None = None,
    effort: Effort = USUAL,
) -> FiniteTime:
    """Return the exponents of (1) and their errors, without a warning. Default: tolerance 1e-3, at most 30 sweeps."""
    for name, value in (("n_steps", n_steps), ("k", k)):
        require_count(name, value)
    tolerance, max_sweeps = effort.limits(1e-3, 30)
    if isinstance(step, nn.ModuleList):  # it is callable, and has no forward
        step = list(step)
    steps = [step] * int(n_steps) if callable(step) else list(step)
    n_steps = len(steps)
    require_count("n_steps", n_steps)
    start = Jacobian(steps[0], x, batched, tangent, effort.max_bytes)
    require_at_most("k", k, start.dim, "the state")
    jacobians = [start]
    for number, next_step in enumerate(steps[1:], start=1):
        jacobians.append(_next_jacobian(jacobians[-1], next_step, number, effort.max_bytes))
    require_finite(jacobians[-1].image.unsqueeze(0), n_steps, batched)

    n_columns = k + OVERSAMPLING
    # A frame of the whole space is exact at once, and costs no more than four sweeps of a fourth of it.
    n_columns = start.dim if 4 * n_columns >= start.dim else n_columns
    frame = start_frame(start, n_columns, k)
    complete = frame.shape[-1] < n_columns or n_columns == start.dim  # the frame spans the whole tangent space
    all_sweeps = empty_product(frame)
    for n_sweeps in range(1, max_sweeps + 1):
        for backwards in (False, True):
            frame, product, rounding = _half_sweep(jacobians, frame, backwards)
            all_sweeps = all_sweeps.then(product)
        logs = product.log_singular_values()
        require_finite_derivative(logs < torch.inf, "each state of the orbit")
        bounds = torch.zeros_like(logs) if complete else _bounds(logs, all_sweeps, 2 * n_sweeps, start.dim)
        rounding = rounding + torch.finfo(x.dtype).eps * logs.abs() / n_steps
        error = (bounds / n_steps + rounding)[:, :k].masked_fill(logs[:, :k].isneginf(), 0.0).amax(-1)
        if complete or (error <= tolerance).all():  # further sweeps of a complete frame would leave its rounding
            break
    exponents, error = (start.result(values.to(x.dtype)) for values in (logs[:, :k] / n_steps, error))
    return FiniteTime(exponents, error, n_sweeps, tolerance)


@reads(finite_time)
def finite_time_exponents(estimate: FiniteTime) -> Tensor:
    """Return the k largest exponents of (1): k, or B k. Warn if they have not converged to the tolerance."""
    warn_unconverged(
        estimate.error,
        estimate.tolerance,
        f"exponents are lower bounds: after {estimate.n_sweeps} sweeps their error may be as large as {{error}}; give "
        "an Effort with a larger max_iterations or tolerance",
    )
    return estimate.exponents


def _next_jacobian(previous: Jacobian, step: Step, number: int, max_bytes: int) -> Jacobian:
    """Return the Jacobian of `step` at the state where the previous step ended."""
    x = previous.image
    require_finite(x.unsqueeze(0), number, previous.batched)
    if step is previous.step:
        return previous.at(x, image_of(step, x))
    return Jacobian(step, x, previous.batched, previous.tangent, max_bytes)


def _half_sweep(
    jacobians: list[Jacobian], frame: Float[Tensor, "B n p"], backwards: bool
) -> tuple[Float[Tensor, "B n p"], GradedProduct, Float[Tensor, "B p"]]:
    """Return the frame at the other end, the product on it, and the mean error of its growths from rounding."""
    product = empty_product(frame)
    slowness = torch.zeros_like(product.logs)
    for j in reversed(jacobians) if backwards else jacobians:
        frame, r = orthonormalise(j.transposed_times(frame) if backwards else j.times(frame))
        product = product.after(r)
        growth = r.diagonal(dim1=-2, dim2=-1)
        slowness += torch.where(growth == 0, 0.0, growth.amax(-1, keepdim=True) / growth)
    rounding = (16 + frame.shape[1] ** 0.5) * torch.finfo(frame.dtype).eps
    return frame, product, rounding * slowness / len(jacobians)


def _bounds(
    logs: Float[Tensor, "B p"], all_sweeps: GradedProduct, n_half_sweeps: int, dim: int
) -> Float[Tensor, "B p"]:
    """Return the distance of the true logarithms from `logs`, by (2) to (4)."""
    n_samples, p = logs.shape
    rank = torch.arange(1, p + 1, dtype=logs.dtype, device=logs.device)
    n_spare = p - rank + 1
    failure = FAILURE / (n_samples * p)
    log_c = math.log((dim**0.5 + p**0.5 + 6) * math.e * p**0.5) - n_spare.log() - math.log(failure) / n_spare  # (4)
    bounds = ((all_sweeps.log_singular_values() + log_c) / n_half_sweeps - logs).clamp(min=0.0)  # (3)
    bounds = bounds.masked_fill(logs.isneginf(), 0.0)
    for i in range(p - 2, -1, -1):
        log_ratio = (logs + bounds)[:, i + 1 :] - logs[:, i : i + 1]  # of sigma_(l+1) to s_i
        by_gap = torch.nn.functional.softplus(2 * log_c[i:-1] + (2 * n_half_sweeps - 2) * log_ratio).div(2)  # (2)
        bounds[:, i] = torch.minimum(bounds[:, i], by_gap.amin(-1).nan_to_num(nan=0.0))
    return bounds


def start_frame(j: Jacobian, n_columns: int, k: int) -> Float[Tensor, "B n p"]:
    """Return at least k random orthonormal directions of the tangent space; refuse a tangent space that has fewer."""
    frame = orthonormalise(j.random_columns(n_columns, seed=0))
    n_kept = int((frame.r.diagonal(dim1=-2, dim2=-1) > 0).sum(-1).min())  # directions that no sample has lost
    require_at_most("k", k, n_kept, "the tangent space")
    return frame.columns[..., :n_kept]
