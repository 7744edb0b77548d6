"""The largest eigenvalue of a symmetric operator A with a bound on its error, by Lanczos from a random start.

    A V_m = V_m T_m + b_m v_(m+1) e_m',    T_m tridiagonal with diagonal a and off-diagonal b               (1)
    b_j p_j(t) = (t - a_j) p_(j-1)(t) - b_(j-1) p_(j-2)(t),    p_0 = 1                                      (2)
    u'v_(j+1) = p_j(lambda) u'v_1    for every eigenvector u of A with eigenvalue lambda                    (3)
    (u'v_1)^2 (p_0(t)^2 + ... + p_m(t)^2)  <=  1    at  t = lambda                                          (4)
    P(|u'v_1| <= s)  <=  s sqrt(2 n / pi)    for v_1 uniform on the unit sphere of n dimensions             (5)

The largest eigenvalue theta of T_m is never above that of A. A small residual proves only that some eigenvalue is near
theta: a start that is almost orthogonal to the leading eigenvector u may have found the second eigenvalue. The stated
error is therefore a bound from the other side. Multiplying (1) by u' gives (3), and the v_j are orthonormal, which
gives (4). For t above theta the sum in (4) grows with t. If the largest eigenvalue were beyond the t at which the sum
reaches 1 / s^2, then |u'v_1| would be below s, and (5) says how improbable that is for a random start. So theta plus
the stated error is an upper bound, except with `FAILURE` = 1e-6 as the largest probability in each call. The
probability is over the random start, for a fixed A. Rounding is taken to act in random directions.

A Krylov space that is invariant ends early. Iterations then continue from a new random vector that is orthogonal to it,
as for repeated eigenvalues. What couples the two spaces is dropped from T, which moves no eigenvalue by more than the
root of the sum of the squares of all that was dropped, above and below the diagonal; the stated error contains it. The
probabilities of (5) in R independent runs have a product of at most x with probability Q(R, -log x), the regularised
upper incomplete gamma function (Fisher). A basis of the whole space is exact. A single start is the cheapest. To
exclude a larger eigenvalue, n_starts vectors take (2 log(1 / failure) + n_starts log n) / (4 sqrt(gap)) products,
roughly.

The rule is that of van Dorsselaer, Hochstenbach and van der Vorst, Computing probabilistic bounds for extreme
eigenvalues of symmetric matrices with the Lanczos method, SIAM J. Matrix Anal. Appl. 22, 2000, with the sum (4) in
place of its last term. For bounds before any iteration: Kuczynski and Wozniakowski, Estimating the largest eigenvalue
by the power and Lanczos algorithms with a random start, SIAM J. Matrix Anal. Appl. 13, 1992.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attractor.analysis.state import require_finite_derivative

FIRST_CHECK, CHECK_GROWTH = 5, 1.25  # the bound takes a time that grows with the square of the iterations
FAILURE = 1e-6  # largest probability that a true value is beyond the stated error, in each call
EXCESSES = torch.logspace(-15, 12, 244, dtype=torch.float64)  # the errors that can be stated


@dataclass(frozen=True)
class LargestEigenvalue:
    """The largest eigenvalue of each sample, and a bound on its error."""

    largest: Float[Tensor, " B"]
    error: Float[Tensor, " B"]  # by (4) and (5), relative to the largest modulus
    n_iterations: int


@dataclass(frozen=True)
class NormEstimate:
    """An operator norm, which is a lower bound, and a bound on its error."""

    norm: Tensor
    error: Tensor  # relative: the true norm is at most norm * (1 + error), by (5)
    n_iterations: int
    tolerance: float  # of the error


def largest_eigenvalue(
    times: Callable[[Tensor], Tensor],
    random_start: Callable[[int], Float[Tensor, "B n 1"]],
    tolerance: float,
    max_iterations: int,
) -> LargestEigenvalue:
    """Iterate until the stated error is at most `tolerance`.

    `times` multiplies columns B n 1 by A. `random_start` draws Gaussian columns from a seed.
    """
    v = random_start(0)
    n_samples, dim, _ = v.shape
    n_most = min(max_iterations, dim)
    basis = v.new_empty(n_samples, dim, n_most)
    v = v / v.norm(dim=1, keepdim=True)
    eps = torch.finfo(v.dtype).eps
    noise, rounding = 10 * dim**0.5 * eps, (16 + dim**0.5) * eps
    runs, next_check = _Runs.empty(n_samples, n_most), FIRST_CHECK
    for m in range(n_most):
        basis[..., m : m + 1] = v
        krylov = basis[..., : m + 1]
        w = times(v)
        if m == 0:  # numbers of the order of 1 neither overflow nor vanish when they are squared
            unit = or_one(w.abs().amax(1, keepdim=True))
        w = w / unit
        # A sample whose basis is complete repeats a value from inside its spectrum, which moves no extreme.
        diagonal = torch.where(runs.complete, runs.diagonal[:, 0], (v * w).sum((1, 2)).double().cpu())
        require_finite_derivative(diagonal.isfinite(), "x")
        for _ in range(2):
            w = w - krylov @ (krylov.mT @ w)
        invariant = runs.extend(m, diagonal, w.norm(dim=(1, 2)).double().cpu(), noise, eps)
        last = m + 1 == n_most or bool(runs.complete.all())
        if last or invariant.all() or m + 1 >= next_check:
            next_check = math.ceil(CHECK_GROWTH * (m + 1))
            extreme = runs.extreme(m + 1, dim, rounding)
            if last or (extreme.error <= max(tolerance, 1.1 * rounding)).all():
                break
        if invariant.any():
            fresh = random_start(m + 1)
            size = fresh.norm(dim=1, keepdim=True)
            for _ in range(2):
                fresh = fresh - krylov @ (krylov.mT @ fresh)
            lost = fresh.norm(dim=1, keepdim=True) <= noise * size
            fresh = fresh.masked_fill(lost, 0.0)
            runs.complete |= lost.view(-1).cpu() & invariant
            w = torch.where(invariant.to(w.device).view(-1, 1, 1), fresh, w)
        v = w / or_one(w.norm(dim=1, keepdim=True))
    return LargestEigenvalue(unit.view(-1) * extreme.largest.to(v), extreme.error.to(v), m + 1)


def largest_singular_value(
    times: Callable[[Tensor], Tensor],
    transposed_times: Callable[[Tensor], Tensor],
    random_start: Callable[[int], Float[Tensor, "B n 1"]],
    tolerance: float,
    max_iterations: int,
) -> NormEstimate:
    """Return the norm of a matrix J that multiplies columns, from the largest eigenvalue sigma^2 of J'J."""
    unit = or_one(times(random_start(0)).abs().amax(1, keepdim=True))
    extreme = largest_eigenvalue(
        lambda v: transposed_times(times(v) / unit) / unit,
        random_start,
        2 * tolerance,  # of sigma^2
        max_iterations,
    )
    norm = unit.view(-1) * extreme.largest.clamp(min=0.0).sqrt()
    error = extreme.error / (1 + (1 + extreme.error).sqrt())  # sqrt(1 + e) - 1
    return NormEstimate(norm, error, extreme.n_iterations, tolerance)


def or_one(size: Tensor) -> Tensor:
    """Replace zeros by ones, so that one can divide by a size."""
    return torch.where(size == 0, 1.0, size)


@dataclass
class _Runs:
    """The matrices T of one run of (1) after another, side by side for all samples."""

    diagonal: Float[Tensor, "B m"]
    coupling: Float[Tensor, "B m"]  # b, or zero where a run ends
    length: Float[Tensor, "B m"]  # b as measured, or the level of rounding where that is larger
    dropped: Float[Tensor, " B"]  # the root of the sum of squares of b at the ends of runs
    scale: Float[Tensor, " B"]  # the largest entry of T
    complete: Bool[Tensor, " B"]  # the basis spans the whole space

    @classmethod
    def empty(cls, n_samples: int, n_most: int) -> "_Runs":
        diagonal, coupling, length = torch.zeros(3, n_samples, n_most, dtype=torch.float64)
        dropped, scale = torch.zeros(2, n_samples, dtype=torch.float64)
        return cls(diagonal, coupling, length, dropped, scale, torch.zeros(n_samples, dtype=torch.bool))

    def extend(self, m: int, diagonal: Tensor, length: Tensor, noise: float, eps: float) -> Bool[Tensor, " B"]:
        """Append a step, and return which samples have an invariant space. `noise` and `eps` are relative to A."""
        self.scale = torch.maximum(self.scale, torch.maximum(length, diagonal.abs()))
        invariant = length <= noise * self.scale
        self.diagonal[:, m] = diagonal
        self.coupling[:, m] = length.masked_fill(invariant, 0.0)
        self.length[:, m] = torch.maximum(length, eps * self.scale)
        self.dropped = torch.where(invariant, torch.hypot(self.dropped, length), self.dropped)
        return invariant

    def extreme(self, m: int, dim: int, rounding: float) -> LargestEigenvalue:
        """Return the largest eigenvalue of T and the bound on its error."""
        coupling = self.coupling[:, : m - 1]
        small = torch.diag_embed(self.diagonal[:, :m])
        small = small + torch.diag_embed(coupling, 1) + torch.diag_embed(coupling, -1)
        theta = torch.linalg.eigvalsh(small)
        modulus = theta.abs().amax(-1)
        unit = or_one(modulus)
        excess = self._excess(theta[:, -1], unit, m, dim, FAILURE / len(theta))
        exact = self.complete | (modulus == 0) | (m == dim)
        error = excess.masked_fill(exact, 0.0) + math.sqrt(2) * self.dropped / unit + rounding
        return LargestEigenvalue(theta[:, -1], error.masked_fill(modulus == 0, 0.0), m)

    def _excess(self, theta: Tensor, unit: Tensor, m: int, dim: int, failure: float) -> Float[Tensor, " B"]:
        """Return the smallest of `EXCESSES` that a larger eigenvalue has with at most the probability `failure`."""
        distance = EXCESSES * unit.unsqueeze(-1)  # of t from theta
        evidence, n_runs = torch.zeros_like(distance), torch.zeros(len(theta), 1, dtype=torch.float64)
        log_p, log_sum, pivot = (torch.zeros_like(distance) for _ in range(3))
        for j in range(m):
            previous = self.coupling[:, j - 1 : j] if j else torch.zeros_like(n_runs)
            begins = previous == 0
            log_p, log_sum = log_p.masked_fill(begins, 0.0), log_sum.masked_fill(begins, 0.0)
            n_runs = n_runs + begins
            # The pivots of t - T = L D L' are the ratios b_j p_j / p_(j-1) of (2), all positive beyond theta.
            pivot = (
                distance
                + (theta.unsqueeze(-1) - self.diagonal[:, j : j + 1])
                - torch.where(begins, 0.0, previous.square() / pivot)
            )
            pivot = pivot.clamp(min=torch.finfo(pivot.dtype).tiny)
            log_p = log_p + (pivot / self.length[:, j : j + 1]).log()
            log_sum = torch.logaddexp(log_sum, 2 * log_p)  # (4)
            if_ends = (log_sum - math.log(2 * dim / math.pi)).div(2).clamp(min=0.0)  # (5)
            evidence = torch.where(self.coupling[:, j : j + 1] == 0, evidence + if_ends, evidence)
        if_open = torch.where(self.coupling[:, m - 1 : m] == 0, 0.0, if_ends)
        probability = torch.special.gammaincc(n_runs.expand_as(evidence), evidence + if_open)
        excluded = probability <= failure / (n_runs * (n_runs + 1))  # the sum over all numbers of runs is `failure`
        first = excluded.long().argmax(-1)
        return torch.where(excluded.any(-1), EXCESSES[first], torch.inf)
