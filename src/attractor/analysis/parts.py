"""What a Jacobian stretches and what it turns: its symmetric and antisymmetric parts.

    S = (J + J') / 2,    A = (J - J') / 2,    v'J v = v'S v,    |J|_F^2 = |S|_F^2 + |A|_F^2                 (1)
    eigenvalues of S: the rates, positive and negative, at which |v|^2 changes under dx = J x dt             (2)
    oscillatory share    |A|_F^2 / (|S|_F^2 + |A|_F^2)                                                      (3)
    E |S z|^2 = |S|_F^2,  E |A z|^2 = |A|_F^2    over vectors z of random signs (Hutchinson)                (4)

Real parts of J's eigenvalues lie between the extremes of (2), imaginary parts within |A|. Limits of (3): 0 for a
gradient's Jacobian, 1 for a rotation by 90 degrees, about 1/2 for a matrix of independent entries. (4) costs two
products for each of `n_probes` vectors; a system of no more dimensions than that gets every axis, and an exact answer.
That pseudo-energy follows v'S v: Jacobians, section 5.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attractor.analysis.jacobian import ONE_GIB, Jacobian
from attractor.analysis.lanczos import Extremes, extreme_eigenvalues
from attractor.analysis.state import Step, require_count
from attractor.analysis.tangent import Tangent

Operator = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class OscillatoryShare:
    share: Tensor
    standard_error: Tensor  # of the probing: zero where every axis was taken


def symmetric_part(step: Step, x: Tensor, batched: bool = False, tangent: Tangent | None = None) -> Operator:
    """v -> S v, for one direction of the state's shape or a block of them."""
    j = Jacobian(step, x, batched, tangent)
    return lambda v: (j.jvp(v) + j.vjp(v)) / 2


def antisymmetric_part(step: Step, x: Tensor, batched: bool = False, tangent: Tangent | None = None) -> Operator:
    """v -> A v, likewise."""
    j = Jacobian(step, x, batched, tangent)
    return lambda v: (j.jvp(v) - j.vjp(v)) / 2


def quadratic_form(step: Step, x: Tensor, v: Tensor, batched: bool = False) -> Tensor:
    """v'S v, for one direction or a block of them: a number for each direction (and sample)."""
    moved = Jacobian(step, x, batched).jvp(v)
    n_kept = v.ndim - x.ndim + batched
    return (v * moved).unsqueeze(-1).flatten(n_kept).sum(-1)


def symmetric_extremes(
    step: Step,
    x: Tensor,
    batched: bool = False,
    tangent: Tangent | None = None,
    tolerance: float = 1e-5,
    max_iterations: int = 200,
    max_bytes: int = ONE_GIB,
) -> tuple[Tensor, Tensor]:
    """The smallest and the largest eigenvalue of S; `tolerance` is relative to the one that is larger in modulus."""
    require_count("max_iterations", max_iterations)
    j = Jacobian(step, x, batched, tangent, max_bytes)
    found = extreme_eigenvalues(
        lambda v: (j.times(v) + j.transposed_times(v)) / 2, j.random_columns(1, seed=0), tolerance, max_iterations
    )
    _warn(found, tolerance)
    return j.result(found.smallest), j.result(found.largest)


def antisymmetric_norm(
    step: Step,
    x: Tensor,
    batched: bool = False,
    tangent: Tangent | None = None,
    tolerance: float = 1e-5,
    max_iterations: int = 200,
    max_bytes: int = ONE_GIB,
) -> Tensor:
    """The largest singular value of A, which is its largest eigenvalue in modulus; all of them are imaginary."""
    require_count("max_iterations", max_iterations)
    j = Jacobian(step, x, batched, tangent, max_bytes)

    def turned(v: Tensor) -> Tensor:
        return (j.times(v) - j.transposed_times(v)) / 2

    found = extreme_eigenvalues(
        lambda v: -turned(turned(v)), j.random_columns(1, seed=0), tolerance, max_iterations, both_ends=False
    )
    _warn(found, tolerance)
    return j.result(found.largest.clamp(min=0.0).sqrt())


def oscillatory_share(
    step: Step,
    x: Tensor,
    batched: bool = False,
    tangent: Tangent | None = None,
    n_probes: int = 64,
    seed: int = 0,
    max_bytes: int = ONE_GIB,
) -> OscillatoryShare:
    """(3), by (4)."""
    require_count("n_probes", n_probes, least=2)
    j = Jacobian(step, x, batched, tangent, max_bytes)
    exact = j.dim <= n_probes
    if exact:
        probes = torch.eye(j.dim, dtype=x.dtype).expand(j.n_samples, -1, -1)
    else:
        generator = torch.Generator().manual_seed(seed)
        probes = torch.randint(0, 2, (j.n_samples, j.dim, n_probes), generator=generator).to(x.dtype) * 2 - 1
    probes = probes.to(x.device)
    forth, back = j.times(probes), j.transposed_times(probes)
    stretched, turned = ((forth + sign * back).div(2).square().sum(1) for sign in (1, -1))  # (4)
    whole = stretched + turned
    mean = whole.mean(-1)
    positive = torch.where(mean > 0, mean, 1.0)
    share = turned.mean(-1) / positive
    # Of a ratio of means: the spread of what each probe adds beyond the ratio.
    beyond = turned - share.unsqueeze(-1) * whole
    error = torch.zeros_like(share) if exact else beyond.std(-1) / positive / n_probes**0.5
    return OscillatoryShare(j.result(share), j.result(error))


def _warn(found: Extremes, tolerance: float) -> None:
    if (found.error > tolerance).any():
        warnings.warn(
            f"the relative error is about {found.error.max().item():.1e} after {found.n_iterations} iterations; "
            "give a larger max_iterations",
            RuntimeWarning,
            stacklevel=3,
        )
