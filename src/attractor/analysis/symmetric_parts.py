"""The symmetric and antisymmetric parts of a Jacobian: what it stretches and what it rotates.

    S = (J + J') / 2,    A = (J - J') / 2,    v'J v = v'S v,    |J|_F^2 = |S|_F^2 + |A|_F^2                 (1)
    eigenvalues of S: the rates, positive and negative, at which |v| changes under dv = J v dt               (2)
    oscillatory share    |A|_F^2 / (|S|_F^2 + |A|_F^2)                                                      (3)
    E |S z|^2 = |S|_F^2,  E |A z|^2 = |A|_F^2    over vectors z of random signs (Hutchinson)                (4)

Real parts of J's eigenvalues lie between the extremes of (2), imaginary parts within |A|. Limits of (3): 0 for the
Jacobian of a gradient, 1 for a rotation by 90 degrees, about 1/2 for a matrix of independent entries. (4) costs two
products for each of `n_probes` vectors; a system of at most that many dimensions is probed along its axes, exactly.
Pseudo-energy changes by v'S v: Jacobians, section 5 (Tomihari and Karakida, Recurrent Self-Attention Dynamics, 2025,
arXiv 2505.19458).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from attractor.analysis.effort import USUAL, Effort
from attractor.analysis.jacobian import ONE_GIB, Jacobian
from attractor.analysis.lanczos import extreme_eigenvalues, largest_singular_value, or_one
from attractor.analysis.state import Step, warn_unconverged
from attractor.analysis.tangent import Tangent
from attractor.errors import require_count

Operator = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class OscillatoryShare:
    """(3) and the standard error of its estimate by (4)."""

    share: Tensor
    standard_error: Tensor  # zero where the axes were probed


def symmetric_part(step: Step, x: Tensor, batched: bool = False, tangent: Tangent | None = None) -> Operator:
    """Return the operator v -> S v, for a direction of the state's shape or a block of them."""
    j = Jacobian(step, x, batched, tangent)
    return lambda v: (j.jvp(v) + j.vjp(v)) / 2


def quadratic_form(step: Step, x: Tensor, v: Tensor, batched: bool = False) -> Tensor:
    """Return v'S v for a direction or a block of them: a number for each direction (and sample)."""
    image = Jacobian(step, x, batched).jvp(v)
    n_kept = v.ndim - x.ndim + batched
    return (v * image).unsqueeze(-1).flatten(n_kept).sum(-1)


def symmetric_extremes(
    step: Step, x: Tensor, batched: bool = False, tangent: Tangent | None = None, effort: Effort = USUAL
) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest eigenvalue of S; the tolerance is relative to the larger modulus."""
    j = Jacobian(step, x, batched, tangent, effort.max_bytes)
    tolerance, max_iterations = effort.limits(1e-4, 200)
    part = _Part(j, 1)
    extremes = extreme_eigenvalues(part, partial(j.random_columns, 1), tolerance, max_iterations)
    error = extremes.error + part.rounding(torch.maximum(extremes.smallest.abs(), extremes.largest.abs()))
    _warn(error, tolerance, extremes.n_iterations)
    return j.result(extremes.smallest), j.result(extremes.largest)


def antisymmetric_norm(
    step: Step, x: Tensor, batched: bool = False, tangent: Tangent | None = None, effort: Effort = USUAL
) -> Tensor:
    """Return the largest singular value of A, which is the largest modulus of its imaginary eigenvalues."""
    j = Jacobian(step, x, batched, tangent, effort.max_bytes)
    part = _Part(j, -1)
    estimate = largest_singular_value(part, lambda v: -part(v), partial(j.random_columns, 1), *effort.limits(1e-4, 200))
    _warn(estimate.error + part.rounding(estimate.norm), estimate.tolerance, estimate.n_iterations)
    return j.result(estimate.norm)


def oscillatory_share(
    step: Step,
    x: Tensor,
    batched: bool = False,
    tangent: Tangent | None = None,
    n_probes: int = 64,
    seed: int = 0,
    max_bytes: int = ONE_GIB,
) -> OscillatoryShare:
    """Estimate (3) by (4)."""
    require_count("n_probes", n_probes, least=2)
    j = Jacobian(step, x, batched, tangent, max_bytes)
    exact = j.dim <= n_probes
    if exact:
        probes = torch.eye(j.dim, dtype=x.dtype).expand(j.n_samples, -1, -1)
    else:
        generator = torch.Generator().manual_seed(seed)
        probes = torch.randint(0, 2, (j.n_samples, j.dim, n_probes), generator=generator).to(x.dtype) * 2 - 1
    probes = probes.to(x.device)
    products, transposed = j.times(probes), j.transposed_times(probes)
    unit = or_one(torch.maximum(products.abs(), transposed.abs()).amax((1, 2), keepdim=True))
    products, transposed = products / unit, transposed / unit  # no square overflows or vanishes
    symmetric, antisymmetric = ((products + sign * transposed).div(2).square().sum(1) for sign in (1, -1))  # (4)
    total = symmetric + antisymmetric
    mean = total.mean(-1)
    positive = torch.where(mean > 0, mean, 1.0)
    share = antisymmetric.mean(-1) / positive
    # The standard error of a ratio of means comes from the residuals of the numerator against ratio times denominator.
    residual = antisymmetric - share.unsqueeze(-1) * total
    error = torch.zeros_like(share) if exact else residual.std(-1) / positive / n_probes**0.5
    return OscillatoryShare(j.result(share), j.result(error))


class _Part:
    """v -> (J v + sign J'v) / 2, which notes how large the terms are: where they cancel, their rounding is left."""

    def __init__(self, j: Jacobian, sign: int) -> None:
        self._j, self._sign = j, sign
        self._largest = torch.zeros(j.n_samples, dtype=j.x.dtype, device=j.x.device)

    def __call__(self, v: Tensor) -> Tensor:
        pushed, pulled = self._j.times(v), self._j.transposed_times(v)
        size = v.norm(dim=(1, 2))
        growth = torch.where(size > 0, pushed.norm(dim=(1, 2)) / size, 0.0)
        self._largest = torch.maximum(self._largest, growth)
        return (pushed + self._sign * pulled) / 2

    def rounding(self, size: Tensor) -> Tensor:
        """Return the error of rounding relative to the size of the part; 0 for a part that is exactly 0."""
        eps = torch.finfo(size.dtype).eps
        return torch.where(size > 0, 8 * eps * self._largest / size, 0.0)


def _warn(error: Tensor, tolerance: float, n_iterations: int) -> None:
    warn_unconverged(
        error,
        tolerance,
        f"after {n_iterations} iterations the relative error may be as large as {{error}}; give an Effort with a "
        "larger max_iterations or tolerance",
    )
