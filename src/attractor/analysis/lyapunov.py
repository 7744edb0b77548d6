"""Lyapunov exponents: the average growth along an orbit that never ends.

    J_t Q_t = Q_(t+1) R_t,    lambda_i = lim (1 / T) sum_t log (R_t)_ii                                     (1)

Benettin's method: a frame of k directions goes along with the orbit, QR after every step. Nearly every frame turns
into the right one, so a transient comes first, for the state to reach the attractor and the frame to align, and is not
counted. The sum is cut into blocks; how far their means spread tells the standard error of (1), if a block is longer
than the dynamics' memory. Limits: log |eigenvalue| for a linear map, 0 for a rotation, log 2 for the logistic map at 4;
the sum of all exponents is the mean of log |det J|.

Small systems have their Jacobians built for whole stretches of the orbit at once, so that a step costs little more than
a QR; large ones have k directions pushed step by step. For T = 16 steps take `finite_time_exponents`: the limit along
so short an orbit says nothing.
Benettin, Galgani, Giorgilli and Strelcyn 1980.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attractor.analysis.finite_time import start_frame
from attractor.analysis.frames import growths, without_lost
from attractor.analysis.jacobian import ONE_GIB, Jacobian
from attractor.analysis.state import Step, orbit, require_at_most, require_count
from attractor.analysis.tangent import Tangent

N_BLOCKS = 20
STRETCH = 512  # steps of the orbit that are held at once, at most
DENSE_UP_TO = 32  # dimensions: beyond, the matrices cost more than the directions


@dataclass(frozen=True)
class LyapunovEstimate:
    exponents: Tensor  # k, or B k; largest first
    standard_error: Tensor  # likewise
    running: Tensor  # the estimate after each block: n_blocks k, or B n_blocks k


def lyapunov_spectrum(
    step: Step,
    x: Tensor,
    n_steps: int = 10_000,
    k: int = 2,
    n_transient: int = 1_000,
    batched: bool = False,
    tangent: Tangent | None = None,
    max_bytes: int = ONE_GIB,
) -> Tensor:
    """(1), the k largest: k of them, or B x k."""
    return lyapunov(step, x, n_steps, k, n_transient, batched, tangent, max_bytes).exponents


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
    """(1) with its standard error, and how it came about. Fewer steps than blocks make as many blocks as steps."""
    for name, value, least in (("n_steps", n_steps, 1), ("k", k, 1), ("n_transient", n_transient, 0)):
        require_count(name, value, least)
    here = Jacobian(step, x, batched, tangent, max_bytes)
    require_at_most("k", k, here.dim, "the state")
    growth = torch.cat(list(_growth(here, start_frame(here, k, k), n_transient + n_steps, max_bytes)))
    logs = growth[n_transient:].log()  # T B k
    n_blocks = min(N_BLOCKS, n_steps)
    sums = torch.stack([block.sum(0) for block in logs.tensor_split(n_blocks)], dim=1)  # B n_blocks k
    counts = torch.tensor([len(block) for block in logs.tensor_split(n_blocks)], device=x.device).unsqueeze(-1)
    exponents = logs.mean(0)
    # The spread of what has no finite mean is none; one block has none to show.
    spread = torch.nan_to_num((sums / counts).std(1, correction=min(1, n_blocks - 1)) / n_blocks**0.5)
    order = exponents.argsort(dim=-1, descending=True)
    running = (sums.cumsum(1) / counts.cumsum(0)).gather(-1, order.unsqueeze(1).expand_as(sums))
    ordered = (exponents.gather(-1, order), spread.gather(-1, order), running)
    return LyapunovEstimate(*(here.result(part.to(x.dtype)) for part in ordered))


def _growth(
    here: Jacobian, frame: Float[Tensor, "B n k"], n_steps: int, max_bytes: int
) -> Iterator[Float[Tensor, "t B k"]]:
    """What R has on its diagonals, stretch by stretch."""
    x = here.x
    stretch = max(1, min(STRETCH, max_bytes // (x.nbytes * here.dim if here.dim <= DENSE_UP_TO else x.nbytes)))
    for first in range(0, n_steps, stretch):
        states = orbit(here.step, x, min(stretch, n_steps - first), here.batched, first)
        matrices = _along(here, states[:-1])
        found = []
        for t in range(len(states) - 1):
            there = here.at(states[t], states[t + 1])
            if matrices is None:
                columns = there.times(frame)
            else:
                columns = matrices[t] @ frame
                if here.tangent is not None:
                    columns = here.at(states[t + 1], states[t + 1]).onto_tangent(columns)
            q, r = torch.linalg.qr(columns)
            found.append(growths(r.diagonal(dim1=-2, dim2=-1), here.dim))
            frame = without_lost(q, found[-1])
        yield torch.stack(found)
        x = states[-1]


def _along(here: Jacobian, states: Tensor) -> Float[Tensor, "t B n n"] | None:
    """The Jacobians of a small system at many states at once; None where it is not small, or cannot be vectorised."""
    if here.dim > DENSE_UP_TO:
        return None
    axes = torch.eye(here.dim, dtype=here.x.dtype, device=here.x.device).unsqueeze(1)
    directions = axes.expand(-1, here.n_samples, -1).reshape(-1, *here.x.shape)

    def columns(x: Tensor) -> Tensor:
        return torch.func.vmap(lambda v: torch.func.jvp(here.step, (x,), (v,))[1])(directions)

    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            found = torch.func.vmap(columns, chunk_size=max(1, here.n_at_once // here.dim))(states)
    except RuntimeError:
        return None
    return found.reshape(len(states), here.dim, here.n_samples, here.dim).permute(0, 2, 3, 1)
