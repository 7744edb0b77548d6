"""The master equation of a Markov chain with n states and generator A, where A_ij is the rate from state j to state i.

    dP/dt = A P,   A_ij >= 0 for i != j,   sum_i A_ij = 0                                                   (1)
    x_{k+1} = (I + dt A) x_k,   0 < dt < 1 / max_j |A_jj|                                                   (2)
    D(p, q) = sum_i p_i log(p_i / q_i) = sum_i (p_i log(p_i / q_i) - p_i + q_i)                             (3)

If A is irreducible, A p = 0 has exactly one distribution p. It is positive, and (1) and (2) converge to it from any
start. So the equilibrium of fast dynamics f(x, y) = A(y) x is the stationary distribution of A(y). D(x, p) never
increases on the way.

Generators are dense matrices. Distributions lie along the last dimension; the others are batch.
FastSlow, equation 26, theorem 28 and remark 30, whose S is -D: Gao, Attention is just another name for coupling?, 2026,
arXiv 2606.16730.
"""

import math
import warnings
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attractor.errors import InputError, require, require_count

BLOCK = 64


def random_generator(n: int, seed: int = 0) -> Float[Tensor, "n n"]:
    """Draw an irreducible generator in fp64 with rates from (0, 1]."""
    require(n >= 2, "n", "at least 2", n, "one state has nowhere to go")
    draw = torch.Generator().manual_seed(seed)
    rates = (1 - torch.rand(n, n, generator=draw, dtype=torch.float64)).fill_diagonal_(0)
    return rates - rates.sum(0).diag()


def check(generator: Float[Tensor, "*batch n n"]) -> None:
    """Refuse a matrix that is no generator, and name the wrong entry. The other functions call this check."""
    shape = tuple(generator.shape)
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise InputError(f"generator must be square, got shape {shape}; it has one row and one column for each state")
    if not generator.is_floating_point():
        raise InputError(f"generator must hold floating-point rates, got {generator.dtype}; call .double() on it")
    rates = generator.detach()
    if len(wrong := (~rates.isfinite()).nonzero()):
        at = wrong[0].tolist()
        raise InputError(f"generator{_index(at)} must be finite, got {float(rates[tuple(at)])}; give a rate")
    if len(wrong := ((rates < 0) & ~torch.eye(shape[-1], dtype=torch.bool, device=rates.device)).nonzero()):
        at = wrong[0].tolist()
        raise InputError(
            f"generator{_index(at)} must be at least 0, got {float(rates[tuple(at)]):g}; off the diagonal, [i, j] is "
            "the rate from state j to state i"
        )
    sums, sizes = rates.sum(-2), rates.abs().sum(-2)
    # The tolerance is the rounding error of a diagonal that was computed as minus the sum of the others.
    if len(wrong := (sums.abs() > shape[-1] * torch.finfo(sums.dtype).eps * sizes).nonzero()):
        *batch, column = wrong[0].tolist()
        raise InputError(
            f"generator{_index([*batch, ':', column])} must sum to 0, got {float(sums[tuple(wrong[0])]):g}; its "
            "diagonal entry is minus the sum of the others in its column (transpose a generator whose rows sum to 0)"
        )


def _check_one(generator: Tensor) -> None:
    if generator.ndim > 2:
        shape = tuple(generator.shape)
        raise InputError(f"generator must be a single matrix here, got shape {shape}; only `stationary` takes a batch")
    check(generator)


def closed_classes(generator: Float[Tensor, "n n"]) -> list[list[int]]:
    """Return the closed classes: sets of states that reach one another and nothing else.

    The dimension of the null space of A is their number.
    """
    _check_one(generator)
    return _classes(_closed_labels(generator)[0])


def stationary(generator: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n"]:
    """Return the distribution p with A p = 0: zero on transient states, positive on all others. It has no gradient.

    It is found by elimination without subtraction (Grassmann, Taksar and Heyman, 1985), which is accurate in every
    entry however small. A generator with several closed classes has several stationary distributions, and is refused.
    """
    check(generator)
    labels = _closed_labels(generator)
    root = (labels >= 0).argmax(1)  # any state of the closed class
    several = ((labels >= 0) & (labels != np.take_along_axis(labels, root[:, None], 1))).any(1)
    if several.any():
        raise InputError(_several_classes(generator, labels[several.argmax()]))
    n = generator.shape[-1]
    chains = generator.detach().double().reshape(-1, n, n)
    p = _null_vector_by_elimination(chains, torch.from_numpy(root).to(chains.device))
    return p.to(generator).reshape(generator.shape[:-1])


def largest_step(generator: Float[Tensor, "n n"]) -> float:
    """Return 1 / max |A_jj|. Below this step I + dt A is non-negative and primitive; above, probabilities may turn
    negative."""
    _check_one(generator)
    leaving = generator.detach().diagonal().abs().max()
    return 1 / float(leaving) if leaving else math.inf


def euler(
    generator: Float[Tensor, "n n"], x0: Float[Tensor, "*batch n"], dt: float, n_steps: int, trajectory: bool = False
) -> Float[Tensor, "*steps_and_batch n"]:
    """Take n_steps steps (2); return the last distribution, or all n_steps + 1 along a new first dimension.

    A step above `largest_step` is taken with a warning. At exactly that step the iteration may oscillate forever.
    """
    require(dt > 0, "dt", "positive", dt, "largest_step(generator) is the largest safe one")
    require_count("n_steps", n_steps, 0, "0 returns x0")
    largest = largest_step(generator)
    if dt > largest:
        warnings.warn(f"dt {dt:g} may turn probabilities negative; the largest safe step is {largest!r}", stacklevel=2)
    x = _as_columns(x0, generator)
    seen = [x]
    for _ in range(n_steps):
        x = torch.addmm(x, generator, x, alpha=dt)  # (2)
        if trajectory:
            seen.append(x)
    return torch.stack(seen).mT.reshape(-1, *x0.shape) if trajectory else x.T.reshape(x0.shape)


def relative_entropy(p: Float[Tensor, "*batch n"], q: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch"]:
    """Return D(p, q) in nats: 0 if p = q, infinite if q is 0 where p is not.

    The gradient for p is log(p / q), without a constant. Where p is 0 it is infinite, and -1 is given in its place.
    """
    # Each term on the right of (3) is non-negative and of second order in p - q, so nothing cancels if p and q almost
    # agree; sums of p log(p / q) would end in rounding errors of both signs.
    positive = q > 0
    base = torch.where(positive, q, 1)
    near = (p > base / 2) | (p < 0)  # a negative p has no entropy, and stays NaN
    excess = torch.where(positive & near, (p - q) / base, 0)
    close = base * (torch.special.xlog1py(1 + excess, excess) - excess).clamp(min=0)
    # Far below q nothing cancels either, and the gradient of log1p would be lost or NaN.
    far = p * (torch.where(p > 0, p, base).log() - base.log()) - p + base
    terms = torch.where(near, close, far)
    return torch.where(positive, terms, torch.where(p > 0, torch.inf, 0)).sum(-1)


def column_sums(step: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the sums of the columns of d step(x) / dx, in the shape of x; they are 1 for a step of any generator.

    It costs one product of ones with the Jacobian, which is never formed. The column of x[i] is summed over all entries
    of the result. For a block that maps B T D to B T D these are all T and D; other sequences of the batch add nothing.
    """
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        image = step(x)
        (sums,) = torch.autograd.grad(image, x, torch.ones_like(image))
    return sums


def _index(at: list[int | str]) -> str:
    return f"[{', '.join(map(str, at))}]"


def _as_columns(x0: Tensor, generator: Tensor) -> Tensor:
    """Return the distributions as columns of a matrix."""
    n = generator.shape[-1]
    x0 = x0 if x0.is_floating_point() else x0.to(generator)
    if x0.shape[-1] != n:
        raise InputError(f"x0 must have {n} states in its last dimension, got shape {tuple(x0.shape)}; transpose it")
    if not (x0 >= 0).all():
        raise InputError(f"x0 must be at least 0 everywhere, got {float(x0.min()):g}; give probabilities")
    sums = x0.sum(-1)
    if not sums.numel():
        return x0.to(generator).reshape(-1, n).T
    worst = (sums - 1).abs().argmax()
    total, eps = float(sums.detach().flatten()[worst]), torch.finfo(x0.dtype).eps
    if abs(total - 1) > eps**0.5:
        digits = int(-math.log10(eps))
        raise InputError(f"x0 must sum to 1, got {total:.{digits}g}; divide by x0.sum(-1, keepdim=True)")
    return x0.to(generator).reshape(-1, n).T


def _closed_labels(generator: Tensor) -> np.ndarray:
    """Return for each chain of the batch the closed class of each state, or -1 for a transient state."""
    import scipy.sparse  # takes a second to import
    from scipy.sparse.csgraph import connected_components

    n = generator.shape[-1]
    chain, to, since = generator.detach().reshape(-1, n, n).nonzero().cpu().numpy().T
    n_chains = generator.numel() // n**2
    source, target = chain * n + since, chain * n + to  # the chains of a batch are separate components of one graph
    graph = scipy.sparse.csr_array((np.ones(len(source)), (source, target)), shape=(n_chains * n, n_chains * n))
    _, labels = connected_components(graph, directed=True, connection="strong")
    left = labels[source[labels[source] != labels[target]]]
    return np.where(np.isin(labels, left), -1, labels).reshape(n_chains, n)


def _classes(labels: np.ndarray) -> list[list[int]]:
    """Return the states of each closed class."""
    return [np.flatnonzero(labels == label).tolist() for label in np.unique(labels[labels >= 0])]


def _several_classes(generator: Tensor, labels: np.ndarray) -> str:
    classes = _classes(labels)
    shown = [str(states) if len(states) <= 6 else f"{str(states[:5])[:-1]}, ...]" for states in classes[:4]]
    which = " of every chain" if generator.ndim > 2 else ""
    return (
        f"generator{which} must have one closed class of states, got {len(classes)}: {', '.join(shown)}"
        f"{', ...' if len(classes) > 4 else ''}; take the states c of one, generator[c][:, c], since each has a "
        "stationary distribution of its own"
    )


def _null_vector_by_elimination(a: Tensor, root: Tensor) -> Tensor:
    """Eliminate one state after another, adding the rates of the paths through it: sums of products, no subtraction.

    A diagonal entry is never read, since it is minus the sum of the rates to the remaining states. The root, which
    every state reaches, is eliminated last. The updates of all states before a block are done by one matrix product.
    """
    n_chains, n, _ = a.shape
    chain = torch.arange(n_chains, device=a.device)
    order = torch.arange(n, device=a.device).repeat(n_chains, 1)
    order[chain, 0], order[chain, root] = root, 0
    a = a[chain[:, None, None], order[:, :, None], order[:, None, :]]
    for high in range(n, 0, -BLOCK):
        low = max(high - BLOCK, 0)
        for k in range(high - 1, max(low - 1, 0), -1):
            arriving = a[:, None, k, :k]
            arriving /= a[:, :k, k].sum(-1)[:, None, None]
            a[:, low:k, :k] += a[:, low:k, k, None] * arriving
            a[:, :low, low:k] += a[:, :low, k, None] * arriving[:, :, low:]
        a[:, :low, :low] += a[:, :low, low:high] @ a[:, low:high, :low]
    p = torch.zeros(n_chains, n, dtype=a.dtype, device=a.device)
    p[:, 0] = 1
    for k in range(1, n):
        p[:, k] = (a[:, k, :k] * p[:, :k]).sum(-1)
        p[:, : k + 1] /= p[:, : k + 1].sum(-1, keepdim=True)  # in every step, so that nothing overflows
    return p.gather(1, order)  # the swap of two states is its own inverse
