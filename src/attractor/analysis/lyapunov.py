"""Lyapunov exponents: the average growth rates of small perturbations along an infinitely long orbit.

    J_t Q_t = Q_(t+1) R_t,    lambda_i = lim (1 / T) sum_t log (R_t)_ii                                     (1)

Benettin's method carries a frame of k directions along the orbit, with a QR decomposition after every step. A transient
comes first and is not counted: the state reaches the attractor, and almost every frame aligns. Limits: log |eigenvalue|
for a linear map, 0 for a rotation, log 2 for the logistic map at 4; the sum of all exponents is the mean of
log |det J|.

The standard error of a map's exponent comes from orbits that start at B different states:

    mean_b lambda_b,i   +-   std_b lambda_b,i / sqrt(B)                                                     (2)

One orbit has none. It may stay in one of several basins, or near an unstable orbit, and its parts then agree with one
another whatever other orbits do. The spread between blocks of one orbit (`within_orbit`) only shows whether that orbit
has been followed for long enough.

Small systems have their Jacobians built for whole stretches of the orbit at once, so that a step costs little more than
a QR decomposition; large ones have k directions pushed step by step. For an orbit of some 16 steps, where the limit
means nothing, take `finite_time_exponents`.
Benettin, Galgani, Giorgilli and Strelcyn, Lyapunov characteristic exponents, Meccanica 15, 1980.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attractor.analysis.effort import reads
from attractor.analysis.finite_time import start_frame
from attractor.analysis.frames import growths, without_lost
from attractor.analysis.jacobian import ONE_GIB, Jacobian
from attractor.analysis.state import Step, orbit, require_at_most, require_finite_derivative
from attractor.analysis.tangent import Tangent
from attractor.errors import require_count

N_BLOCKS = 20
STRETCH = 512  # steps of the orbit that are held at once, at most
DENSE_UP_TO = 32  # dimensions; in larger systems the matrices cost more than k directions


@dataclass(frozen=True)
class LyapunovEstimate:
    """Lyapunov exponents of one orbit, or of a batch of orbits, and the way in which they converged."""

    exponents: Tensor  # k, or B k; largest first
    within_orbit: Tensor  # k, or B k: the standard error of the mean over the blocks of an orbit
    running: Tensor  # the estimate after each block: n_blocks k, or B n_blocks k

    @property
    def mean(self) -> Tensor:
        """The means over the orbits: k."""
        return self.exponents.mean(0) if self.exponents.ndim > 1 else self.exponents

    @property
    def standard_error(self) -> Tensor:
        """The standard errors (2) of the means, for orbits of one map: k. They are NaN for a single orbit."""
        return error_between_orbits(self.exponents if self.exponents.ndim > 1 else self.exponents.unsqueeze(0))


def error_between_orbits(exponents: Float[Tensor, "B k"]) -> Float[Tensor, " k"]:
    """Return the standard errors (2) of the means over orbits: NaN for one orbit, 0 where all are minus infinity."""
    n_orbits = len(exponents)
    if n_orbits == 1:
        return torch.full_like(exponents[0], torch.nan)
    return (exponents.std(0) / n_orbits**0.5).masked_fill(exponents.isneginf().all(0), 0.0)


def lyapunov(
    step: Step,
    x: Tensor,
    n_steps: int = 10_000,
    k: int = 2,
    n_transient: int = 1_000,
    batched: bool = False,
    tangent: Tangent | None = None,
    max_bytes: int = ONE_GIB,
) -> LyapunovEstimate:
    """Return the k largest exponents of each orbit, with running estimates; with `batched`, dimension 0 counts orbits.

    The blocks are 20, or as many as there are steps if those are fewer.
    """
    for name, value, least in (("n_steps", n_steps, 1), ("k", k, 1), ("n_transient", n_transient, 0)):
        require_count(name, value, least)
    start = Jacobian(step, x, batched, tangent, max_bytes)
    require_at_most("k", k, start.dim, "the state")
    growth = torch.cat(list(_growth(start, start_frame(start, k, k), n_transient + n_steps, max_bytes)))
    require_finite_derivative(growth.isfinite(), "each state of the orbit")
    logs = growth[n_transient:].log()  # T B k
    n_blocks = min(N_BLOCKS, n_steps)
    sums = torch.stack([block.sum(0) for block in logs.tensor_split(n_blocks)], dim=1)  # B n_blocks k
    counts = torch.tensor([len(block) for block in logs.tensor_split(n_blocks)], device=x.device).unsqueeze(-1)
    exponents = logs.mean(0)
    # An exponent of minus infinity, or a single block, has no spread.
    spread = torch.nan_to_num((sums / counts).std(1, correction=min(1, n_blocks - 1)) / n_blocks**0.5)
    order = exponents.argsort(dim=-1, descending=True)
    running = (sums.cumsum(1) / counts.cumsum(0)).gather(-1, order.unsqueeze(1).expand_as(sums))
    ordered = (exponents.gather(-1, order), spread.gather(-1, order), running)
    return LyapunovEstimate(*(start.result(values.to(x.dtype)) for values in ordered))


@reads(lyapunov)
def lyapunov_spectrum(estimate: LyapunovEstimate) -> Tensor:
    """Return the k largest exponents of (1): k, or B k."""
    return estimate.exponents


def _growth(
    start: Jacobian, frame: Float[Tensor, "B n k"], n_steps: int, max_bytes: int
) -> Iterator[Float[Tensor, "t B k"]]:
    """Yield the diagonals of R for one stretch of the orbit after another."""
    x = start.x
    stretch = max(1, min(STRETCH, max_bytes // (x.nbytes * start.dim if start.dim <= DENSE_UP_TO else x.nbytes)))
    for first in range(0, n_steps, stretch):
        states = orbit(start.step, x, min(stretch, n_steps - first), start.batched, first)
        matrices = _dense_jacobians(start, states[:-1])
        diagonals = []
        for t in range(len(states) - 1):
            if matrices is None:
                columns = start.at(states[t], states[t + 1]).times(frame)
            else:
                columns = matrices[t] @ frame
                if start.tangent is not None:
                    columns = start.at(states[t + 1], states[t + 1]).onto_tangent(columns)
            q, r = torch.linalg.qr(columns)
            diagonals.append(growths(r.diagonal(dim1=-2, dim2=-1), start.dim))
            frame = without_lost(q, diagonals[-1])
        yield torch.stack(diagonals)
        x = states[-1]


def _dense_jacobians(start: Jacobian, states: Tensor) -> Float[Tensor, "t B n n"] | None:
    """Build the Jacobians of a small system at many states at once; None if it is large or cannot be vectorised."""
    if start.dim > DENSE_UP_TO:
        return None
    axes = torch.eye(start.dim, dtype=start.x.dtype, device=start.x.device).unsqueeze(1)
    directions = axes.expand(-1, start.n_samples, -1).reshape(-1, *start.x.shape)

    def columns(x: Tensor) -> Tensor:
        return torch.func.vmap(lambda v: torch.func.jvp(start.step, (x,), (v,))[1])(directions)

    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            matrices = torch.func.vmap(columns, chunk_size=max(1, start.n_at_once // start.dim))(states)
    except RuntimeError:
        return None
    return matrices.reshape(len(states), start.dim, start.n_samples, start.dim).permute(0, 2, 3, 1)
