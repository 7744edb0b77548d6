"""Eigenvalues of a Jacobian, by the Krylov-Schur method, or from the dense matrix of a small system.

    J V_m = V_m H_m + b v_(m+1) e_m'                    Arnoldi                                             (1)
    H_m = Q T Q',  T quasi-triangular, wanted first     real Schur form                                     (2)
    V <- V_m Q_q,  J V = V T_qq + b v_(m+1) (e_m'Q_q)   restart from q of m columns, continued by (1)       (3)
    residual  |J y - theta y| = b |e_m's|   for  H_m s = theta s,  y = V_m s                                (4)

All arithmetic is real until the eigenvalues of H are read, so complex eigenvalues come in pairs, and a rotation scaled
by 0.9 has spectral radius 0.9. m and q are even, so that q columns can be chosen without splitting a pair: H has an
even number of real eigenvalues, and if one place is left after the pairs, a real one is left too.

Up to 512 dimensions the matrix is built and solved, which is exact up to rounding. Rounding can be large: eigenvalues
of a matrix far from normal move by up to about eps^(1/b) for a Jordan block of size b. A nilpotent matrix that is
triangular in some order of the coordinates gives exactly 0; one in general position gives about 0.03 at b = 10 in fp64.
This is a property of the matrix, not of the method. Where it matters, use `finite_time_exponents`.

A residual says that theta is an eigenvalue of a matrix at that distance from J. It bounds the distance from an
eigenvalue of J only if J is normal, and it never shows that no larger eigenvalue exists.
Stewart, A Krylov-Schur algorithm for large eigenproblems, 2001.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from attractor.analysis.effort import USUAL, Effort, reads
from attractor.analysis.finite_time import start_frame
from attractor.analysis.jacobian import Jacobian
from attractor.analysis.lanczos import or_one
from attractor.analysis.state import Step, require_at_most, warn_unconverged
from attractor.analysis.tangent import Tangent
from attractor.errors import require_count

DENSE_UP_TO = 512


@dataclass(frozen=True)
class Eigenvalues:
    """Eigenvalues and their residuals."""

    values: Tensor  # complex, largest first
    residual: Tensor  # (4), relative to the largest modulus, and no bound on the error; zero for a dense matrix
    n_products: int  # J v, for each sample
    tolerance: float  # of the residual


def eigenvalues(step: Step, x: Tensor, batched: bool = False, tangent: Tangent | None = None) -> Tensor:
    """Return all eigenvalues of a small system, largest modulus first, from the dense matrix."""
    j = Jacobian(step, x, batched, tangent)
    return j.result(_ordered(_dense_eigenvalues(j)))


def estimate_eigenvalues(
    step: Step,
    x: Tensor,
    k: int = 1,
    batched: bool = False,
    tangent: Tangent | None = None,
    effort: Effort = USUAL,
) -> Eigenvalues:
    """Return the leading eigenvalues and their residuals, without a warning. Default: tolerance 1e-5, 3000 products."""
    require_count("k", k)
    tolerance, max_products = effort.limits(1e-5, 3000)
    j = Jacobian(step, x, batched, tangent, effort.max_bytes)
    require_at_most("k", k, j.dim, "the state")
    if j.dim <= DENSE_UP_TO or 4 * k > j.dim:
        values = _dense_eigenvalues(j)
        require_at_most("k", k, values.shape[-1], "the tangent space")
        values = _ordered(values)[:, :k]
        return Eigenvalues(j.result(values), j.result(torch.zeros_like(values.real)), j.dim, tolerance)
    values, residual, n_products = _krylov_schur(j, k, tolerance, max_products)
    return Eigenvalues(j.result(values.to(x.device)), j.result(residual.to(x.device)), n_products, tolerance)


@reads(estimate_eigenvalues)
def leading_eigenvalues(estimate: Eigenvalues) -> Tensor:
    """Return the k eigenvalues with the largest modulus.

    Of a complex pair at places k and k + 1, the one above the real axis is returned.
    """
    warn_unconverged(
        estimate.residual,
        estimate.tolerance,
        f"the relative residual is {{error}} after {estimate.n_products} products; give an Effort with a larger "
        "max_iterations or tolerance, or take eigenvalues(step, x) if the matrix fits into memory",
    )
    return estimate.values


def spectral_radius(
    step: Step, x: Tensor, batched: bool = False, tangent: Tangent | None = None, effort: Effort = USUAL
) -> Tensor:
    """Return the largest modulus of an eigenvalue: a number, or one for each sample."""
    return leading_eigenvalues(step, x, 1, batched, tangent, effort)[..., 0].abs().to(x.dtype)


def _dense_eigenvalues(j: Jacobian) -> Complex[Tensor, "B k"]:
    """Return all eigenvalues. With a tangent space, they are those of the map within it: normals add no zeros."""
    if j.tangent is None:
        return torch.linalg.eigvals(j.dense().double())
    frame = start_frame(j, j.dim, 1)
    return torch.linalg.eigvals(frame.double().mT @ j.times(frame).double())


def _krylov_schur(
    j: Jacobian, k: int, tolerance: float, max_products: int
) -> tuple[Complex[Tensor, "B k"], Float[Tensor, "B k"], int]:
    n_most = min(2 * max(2 * k, 20), j.dim // 2 * 2)  # m, even
    n_kept = min(n_most // 2, k + 10) // 2 * 2  # q, even
    basis = j.random_columns(1, seed=0).new_empty(j.n_samples, j.dim, n_most + 1)
    v = j.random_columns(1, seed=0)
    basis[..., :1] = v / v.norm(dim=1, keepdim=True)
    h = torch.zeros(j.n_samples, n_most, n_most, dtype=torch.float64)
    first, n_products = 0, 0
    while True:
        for m in range(first, n_most):
            n_products += 1
            w = j.times(basis[..., m : m + 1])
            if n_products == 1:  # numbers of the order of 1 neither overflow nor vanish when they are squared
                unit = or_one(w.abs().amax(1, keepdim=True))
            column, length, v = _extended(j, basis[..., : m + 1], w / unit, seed=n_products)
            h[:, : m + 1, m] = column
            if m + 1 < n_most:
                h[:, m + 1, m] = length
            basis[..., m + 1 : m + 2] = v
        theta, s = torch.linalg.eig(h)  # (4), for unit eigenvectors s
        residual = length.unsqueeze(-1) * s[:, -1].abs()
        order = _rank(theta)[:, :k]
        theta, residual = theta.gather(-1, order), residual.gather(-1, order)
        largest = theta.abs().amax(-1, keepdim=True)
        residual = residual / torch.where(largest == 0, 1.0, largest)
        if (residual <= tolerance).all() or n_products + n_most - n_kept > max_products:
            return theta * unit.view(-1, 1).double().cpu(), residual, n_products
        for sample in range(j.n_samples):
            t, q = _wanted_first(h[sample], n_kept)
            h[sample] = 0
            h[sample, :n_kept, :n_kept] = t
            h[sample, n_kept, :n_kept] = length[sample] * q[-1]  # (3)
            basis[sample, :, :n_kept] = basis[sample, :, :n_most] @ q.to(basis)
        basis[..., n_kept] = basis[..., n_most].clone()
        first = n_kept


def _extended(j: Jacobian, basis: Float[Tensor, "B n m"], w: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Extend (1) by one column: return the new column of H, b, and the next vector.

    Where the space is invariant, the next vector is a new random one.
    """
    full_length = w.norm(dim=(1, 2))
    column = torch.zeros_like(basis[:, 0])
    for _ in range(2):
        coefficients = (basis.mT @ w).squeeze(-1)
        column = column + coefficients
        w = w - basis @ coefficients.unsqueeze(-1)
    length = w.norm(dim=(1, 2))
    invariant = length <= 10 * j.dim**0.5 * torch.finfo(w.dtype).eps * full_length
    if invariant.any():
        fresh = j.random_columns(1, seed)
        for _ in range(2):
            fresh = fresh - basis @ (basis.mT @ fresh)
        w = torch.where(invariant.view(-1, 1, 1), fresh, w)
    v = w / w.norm(dim=1, keepdim=True)
    return column.double().cpu(), length.masked_fill(invariant, 0.0).double().cpu(), v


def _wanted_first(h: Float[Tensor, "m m"], n_kept: int) -> tuple[Float[Tensor, "q q"], Float[Tensor, "m q"]]:
    """Return T_qq and Q_q of (2)."""
    from scipy.linalg import lapack, schur

    t, q = schur(h.numpy(), output="real")
    blocks, start = [], 0
    while start < len(t):
        width = 2 if start + 1 < len(t) and t[start + 1, start] != 0 else 1
        theta = torch.linalg.eigvals(torch.from_numpy(t[start : start + width, start : start + width].copy()))
        blocks.append((float(theta.abs().amax()), start, width))
        start += width
    select = [0] * len(t)
    n_left = n_kept
    for _, start, width in sorted(blocks, reverse=True):
        if width <= n_left:
            select[start : start + width] = [1] * width
            n_left -= width
    t, q, *_, info = lapack.dtrsen(select, t, q, job=b"N")
    assert info == 0, f"the Schur form could not be reordered: dtrsen gave {info}"
    return torch.from_numpy(t[:n_kept, :n_kept].copy()), torch.from_numpy(q[:, :n_kept].copy())


def _rank(theta: Tensor) -> Tensor:
    """Return indices in descending order; of a complex pair, the eigenvalue above the real axis comes first."""
    by_sign = theta.imag.argsort(dim=-1, descending=True, stable=True)
    size = theta.abs().gather(-1, by_sign)
    return by_sign.gather(-1, size.argsort(dim=-1, descending=True, stable=True))


def _ordered(theta: Tensor) -> Tensor:
    return theta.gather(-1, _rank(theta))
