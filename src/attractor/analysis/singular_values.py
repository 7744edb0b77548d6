"""The norm of a Jacobian: how much a small change of the state can grow in one step.

    |J| = max |J v| / |v| = sigma_1,    sigma_1^2 the largest eigenvalue of J'J                             (1)

by Lanczos on J'J: an iteration takes one J v and one J' u. For random matrices, whose largest singular values lie close
together, tens of iterations give five digits. Singular values further down, and of products: `finite_time_exponents`.
"""

import warnings
from dataclasses import dataclass

from torch import Tensor

from attractor.analysis.jacobian import ONE_GIB, Jacobian
from attractor.analysis.lanczos import extreme_eigenvalues
from attractor.analysis.state import Step, require_count
from attractor.analysis.tangent import Tangent


@dataclass(frozen=True)
class NormEstimate:
    norm: Tensor
    error: Tensor  # estimated, relative
    n_iterations: int


def jacobian_norm(
    step: Step,
    x: Tensor,
    batched: bool = False,
    tangent: Tangent | None = None,
    tolerance: float = 1e-5,
    max_iterations: int = 200,
    max_bytes: int = ONE_GIB,
) -> Tensor:
    """(1): a number, or one for each sample. Warns where `tolerance`, which is relative, was not reached."""
    found = estimate_jacobian_norm(step, x, batched, tangent, tolerance, max_iterations, max_bytes)
    if (found.error > tolerance).any():
        warnings.warn(
            f"the norm's relative error is about {found.error.max().item():.1e} after {found.n_iterations} iterations: "
            "it is a lower bound; give a larger max_iterations",
            RuntimeWarning,
            stacklevel=2,
        )
    return found.norm


def estimate_jacobian_norm(
    step: Step,
    x: Tensor,
    batched: bool = False,
    tangent: Tangent | None = None,
    tolerance: float = 1e-5,
    max_iterations: int = 200,
    max_bytes: int = ONE_GIB,
) -> NormEstimate:
    """(1) with what is known of its error; warns of nothing."""
    require_count("max_iterations", max_iterations)
    j = Jacobian(step, x, batched, tangent, max_bytes)
    found = extreme_eigenvalues(
        lambda v: j.transposed_times(j.times(v)),
        j.random_columns(1, seed=0),
        tolerance,
        max_iterations,
        both_ends=False,
    )
    norm = found.largest.clamp(min=0.0).sqrt()
    # An error of sigma^2 is twice as large, in relative terms, as that of sigma.
    return NormEstimate(j.result(norm), j.result(found.error / 2), found.n_iterations)
