"""The operator norm of a Jacobian: how much a small change of the state can grow in one step.

    |J| = max |J v| / |v| = sigma_1,    sigma_1^2 the largest eigenvalue of J'J                             (1)

The method is Lanczos on J'J, whose iterations cost one J v and one J' u. The norm is a lower bound, and `lanczos.py`
says why the true norm exceeds it by more than the stated error with a probability of at most 1e-6. Random matrices,
whose largest singular values lie close together, need about 60 iterations in 500 dimensions: some 20 to find the norm
to five digits, and the others to exclude a larger one. `finite_time_exponents` gives further singular values, and those
of products.
"""

from dataclasses import replace
from functools import partial

from torch import Tensor

from attractor.analysis.effort import USUAL, Effort, reads
from attractor.analysis.jacobian import Jacobian
from attractor.analysis.lanczos import NormEstimate, largest_singular_value
from attractor.analysis.state import Step, warn_unconverged
from attractor.analysis.tangent import Tangent


def estimate_jacobian_norm(
    step: Step, x: Tensor, batched: bool = False, tangent: Tangent | None = None, effort: Effort = USUAL
) -> NormEstimate:
    """Return (1) and a bound on its error, without a warning. Default: tolerance 1e-4, at most 200 iterations."""
    j = Jacobian(step, x, batched, tangent, effort.max_bytes)
    estimate = largest_singular_value(
        j.times, j.transposed_times, partial(j.random_columns, 1), *effort.limits(1e-4, 200)
    )
    return replace(estimate, norm=j.result(estimate.norm), error=j.result(estimate.error))


@reads(estimate_jacobian_norm)
def jacobian_norm(estimate: NormEstimate) -> Tensor:
    """Return (1): a number, or one for each sample. Warn if its error may exceed the relative tolerance."""
    warn_unconverged(
        estimate.error,
        estimate.tolerance,
        f"the norm is a lower bound: after {estimate.n_iterations} iterations its relative error may be as large as "
        "{error}; give an Effort with a larger max_iterations or tolerance",
    )
    return estimate.norm
