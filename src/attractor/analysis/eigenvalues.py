"""Eigenvalues of a Jacobian: which directions return as themselves, stretched and turned.

    J V_m = V_m H_m + b v_(m+1) e_m'                    Arnoldi                                             (1)
    H_m = Q T Q',  T quasi-triangular, wanted first     real Schur form                                     (2)
    V <- V_m Q_q,  J V = V T_qq + b v_(m+1) (e_m'Q_q)   restart from q of m, then on by (1)                 (3)
    residual  |J y - theta y| = b |e_m's|   for  H_m s = theta s,  y = V_m s                                (4)

Complex pairs come out as pairs: everything stays real until H's eigenvalues are read, so a rotation scaled by 0.9 has
spectral radius 0.9. m and q are even, so that q can always be filled without parting a pair: H then has an even number
of real eigenvalues, and where one place is left after pairs, another real one is left, too.

Up to 512 dimensions the matrix is built and solved, which is exact up to rounding. But rounding can be much: an
eigenvalue of a matrix far from normal moves by up to about eps^(1/b) for a Jordan block of size b. A nilpotent
matrix that is triangular in some order of the coordinates gives exactly 0, one in general position gives about 0.03 at
b = 10 in fp64. That is the matrix, not the method: where such things matter, look at `finite_time_exponents`.
Stewart, A Krylov-Schur algorithm for large eigenproblems, 2001.
"""

import warnings
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from attractor.analysis.jacobian import ONE_GIB, Jacobian
from attractor.analysis.state import Step, require_at_most, require_count
from attractor.analysis.tangent import Tangent
from attractor.errors import unknown

DENSE_UP_TO = 512

By = Literal["modulus", "imaginary", "real"]


@dataclass(frozen=True)
class Eigenvalues:
    values: Tensor  # complex, largest first
    residual: Tensor  # (4), relative to the modulus of the largest; zero where the matrix was built
    n_products: int  # J v, for each sample


def eigenvalues(step: Step, x: Tensor, batched: bool = False, tangent: Tangent | None = None) -> Tensor:
    """All of them, largest modulus first, from the dense matrix: for small systems."""
    j = Jacobian(step, x, batched, tangent)
    return j.result(_ordered(torch.linalg.eigvals(j.dense().double()), "modulus"))


def spectral_radius(
    step: Step,
    x: Tensor,
    batched: bool = False,
    tangent: Tangent | None = None,
    tolerance: float = 1e-5,
    max_products: int = 3000,
    max_bytes: int = ONE_GIB,
) -> Tensor:
    """The largest modulus of an eigenvalue: a number, or one for each sample."""
    found = estimate_eigenvalues(step, x, 1, "modulus", batched, tangent, tolerance, max_products, max_bytes)
    _warn(found, tolerance)
    return found.values[..., 0].abs().to(x.dtype)


def leading_eigenvalues(
    step: Step,
    x: Tensor,
    k: int = 1,
    by: By = "modulus",
    batched: bool = False,
    tangent: Tangent | None = None,
    tolerance: float = 1e-5,
    max_products: int = 3000,
    max_bytes: int = ONE_GIB,
) -> Tensor:
    """The k that are largest `by` modulus, imaginary part in modulus, or real part; of a pair cut by k, one is left."""
    found = estimate_eigenvalues(step, x, k, by, batched, tangent, tolerance, max_products, max_bytes)
    _warn(found, tolerance)
    return found.values


def largest_imaginary_part(
    step: Step,
    x: Tensor,
    batched: bool = False,
    tangent: Tangent | None = None,
    tolerance: float = 1e-5,
    max_products: int = 3000,
    max_bytes: int = ONE_GIB,
) -> Tensor:
    """How fast the fastest oscillation is, in radians of dx = J x dt."""
    found = estimate_eigenvalues(step, x, 1, "imaginary", batched, tangent, tolerance, max_products, max_bytes)
    _warn(found, tolerance)
    return found.values[..., 0].imag.abs().to(x.dtype)


def estimate_eigenvalues(
    step: Step,
    x: Tensor,
    k: int = 1,
    by: By = "modulus",
    batched: bool = False,
    tangent: Tangent | None = None,
    tolerance: float = 1e-5,
    max_products: int = 3000,
    max_bytes: int = ONE_GIB,
) -> Eigenvalues:
    """What `leading_eigenvalues` returns, with what is known of its error; warns of nothing."""
    require_count("k", k)
    require_count("max_products", max_products)
    if by not in get_args(By):
        raise unknown("order", by, get_args(By))
    j = Jacobian(step, x, batched, tangent, max_bytes)
    require_at_most("k", k, j.dim, "the state")
    if j.dim <= DENSE_UP_TO or 4 * k > j.dim:
        values = _ordered(torch.linalg.eigvals(j.dense().double()), by)[:, :k]
        return Eigenvalues(j.result(values), j.result(torch.zeros_like(values.real)), j.dim)
    values, residual, n_products = _krylov_schur(j, k, by, tolerance, max_products)
    return Eigenvalues(j.result(values.to(x.device)), j.result(residual.to(x.device)), n_products)


def _krylov_schur(
    j: Jacobian, k: int, by: By, tolerance: float, max_products: int
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
            column, length, v = _extended(j, basis[..., : m + 1], seed=n_products)
            h[:, : m + 1, m] = column
            if m + 1 < n_most:
                h[:, m + 1, m] = length
            basis[..., m + 1 : m + 2] = v
        theta, s = torch.linalg.eig(h)  # (4), for unit eigenvectors s
        residual = length.unsqueeze(-1) * s[:, -1].abs()
        order = _rank(theta, by)[:, :k]
        theta, residual = theta.gather(-1, order), residual.gather(-1, order)
        largest = theta.abs().amax(-1, keepdim=True)
        residual = residual / torch.where(largest == 0, 1.0, largest)
        if (residual <= tolerance).all() or n_products + n_most - n_kept > max_products:
            return theta, residual, n_products
        for sample in range(j.n_samples):
            kept, turned = _wanted_first(h[sample], n_kept, by)
            h[sample] = 0
            h[sample, :n_kept, :n_kept] = kept
            h[sample, n_kept, :n_kept] = length[sample] * turned[-1]  # (3)
            basis[sample, :, :n_kept] = basis[sample, :, :n_most] @ turned.to(basis)
        basis[..., n_kept] = basis[..., n_most].clone()
        first = n_kept


def _extended(j: Jacobian, basis: Float[Tensor, "B n m"], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """(1), one column on: its coefficients, b, and the next vector; a new random one where the space is invariant."""
    w = j.times(basis[..., -1:])
    whole = w.norm(dim=(1, 2))
    column = torch.zeros_like(basis[:, 0])
    for _ in range(2):
        along = (basis.mT @ w).squeeze(-1)
        column = column + along
        w = w - basis @ along.unsqueeze(-1)
    length = w.norm(dim=(1, 2))
    invariant = length <= 10 * j.dim**0.5 * torch.finfo(w.dtype).eps * whole
    if invariant.any():
        fresh = j.random_columns(1, seed)
        for _ in range(2):
            fresh = fresh - basis @ (basis.mT @ fresh)
        w = torch.where(invariant.view(-1, 1, 1), fresh, w)
    v = w / w.norm(dim=1, keepdim=True)
    return column.double().cpu(), length.masked_fill(invariant, 0.0).double().cpu(), v


def _wanted_first(h: Float[Tensor, "m m"], n_kept: int, by: By) -> tuple[Float[Tensor, "q q"], Float[Tensor, "m q"]]:
    """(2): T_qq and Q_q."""
    from scipy.linalg import lapack, schur

    t, q = schur(h.numpy(), output="real")
    blocks, at = [], 0
    while at < len(t):
        width = 2 if at + 1 < len(t) and t[at + 1, at] != 0 else 1
        theta = torch.linalg.eigvals(torch.from_numpy(t[at : at + width, at : at + width].copy()))
        blocks.append((float(_size(theta, by).amax()), at, width))
        at += width
    select = [0] * len(t)
    room = n_kept
    for _, at, width in sorted(blocks, reverse=True):
        if width <= room:
            select[at : at + width] = [1] * width
            room -= width
    t, q, *_, info = lapack.dtrsen(select, t, q, job=b"N")
    assert info == 0, f"the Schur form could not be reordered: dtrsen gave {info}"
    return torch.from_numpy(t[:n_kept, :n_kept].copy()), torch.from_numpy(q[:, :n_kept].copy())


def _size(theta: Tensor, by: By) -> Tensor:
    return {"modulus": theta.abs(), "imaginary": theta.imag.abs(), "real": theta.real}[by]


def _rank(theta: Tensor, by: By) -> Tensor:
    """Indices, largest first; of a pair that is one in this order, the one above the real axis first."""
    by_sign = theta.imag.argsort(dim=-1, descending=True, stable=True)
    size = _size(theta, by).gather(-1, by_sign)
    return by_sign.gather(-1, size.argsort(dim=-1, descending=True, stable=True))


def _ordered(theta: Tensor, by: By) -> Tensor:
    return theta.gather(-1, _rank(theta, by))


def _warn(found: Eigenvalues, tolerance: float) -> None:
    if (found.residual > tolerance).any():
        warnings.warn(
            f"the relative residual is {found.residual.max().item():.1e} after {found.n_products} products; give a "
            "larger max_products or a larger tolerance, or take eigenvalues(step, x) if the matrix fits into memory",
            RuntimeWarning,
            stacklevel=3,
        )
