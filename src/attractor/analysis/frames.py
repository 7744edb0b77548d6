"""Singular values of a long product of matrices, by QR decompositions of a frame that is carried along.

    A_t Q_(t-1) = Q_t R_t,    A_T ... A_1 Q_0 = Q_T (R_T ... R_1)                                           (1)
    R_T ... R_1 = D U,   D = diag(e^l),   U upper triangular with ones on its diagonal                       (2)
    (D2 U2)(D1 U1) = (D2 D1) (D1^-1 U2 D1) U1                                                               (3)

A frame is a set of k orthonormal columns Q. R_T ... R_1 has the singular values of the product on the frame. They may
range over more than any number format holds, so D is kept as logarithms l. The entries of D1^-1 U2 D1 in (3) are those
of U2 times e^(l_j - l_i), i < j; they are at most 1 in modulus once the fast directions come first.

The values follow by one-sided Jacobi rotations of the rows of D U, each row stored as a unit vector w_i and a
logarithm. For a pair with r = e^(l_j - l_i) <= 1 and c = <w_i, w_j>, the rotation by theta makes the rows orthogonal:

    tan theta = r s,   s = 2 c / (1 - r^2 + sqrt((1 - r^2)^2 + 4 c^2 r^2))                                  (4)
    w_i <- cos theta (w_i + r^2 s w_j),    w_j <- cos theta (w_j - s w_i)                                   (5)

Limits: r -> 0 is a Gram-Schmidt step, r = 1 a rotation by 45 degrees. Every value, even the smallest, has a small
relative error. A direction whose growth is lost in the rounding of the largest has value 0 and logarithm minus
infinity; its column of the frame is zero from then on.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

MAX_SWEEPS = 30  # of rotations; convergence is quadratic, so six to ten sweeps are usual


class Frame(NamedTuple):
    """A QR decomposition in which lost directions are zero."""

    columns: Float[Tensor, "B n k"]  # Q
    r: Float[Tensor, "B k k"]  # R in fp64, with a non-negative diagonal


def orthonormalise(columns: Float[Tensor, "B n k"]) -> Frame:
    """Return the QR decomposition of a frame that a matrix has moved: one step of (1)."""
    q, r = torch.linalg.qr(columns)
    diagonal = r.diagonal(dim1=-2, dim2=-1)
    sign = torch.where(diagonal < 0, -1.0, 1.0).to(r.dtype)
    growth = growths(diagonal, columns.shape[-2])
    r = (sign.unsqueeze(-1) * r).double().masked_fill((growth == 0).unsqueeze(-1), 0.0)
    return Frame(without_lost(q * sign.unsqueeze(-2), growth), torch.diagonal_scatter(r, growth, dim1=-2, dim2=-1))


def without_lost(columns: Float[Tensor, "B n k"], growth: Float[Tensor, "B k"]) -> Float[Tensor, "B n k"]:
    """Set the columns of lost directions, whose growth is 0, to zero."""
    return columns.masked_fill((growth == 0).unsqueeze(-2), 0.0)


def growths(diagonal: Float[Tensor, "*any k"], dim: int) -> Float[Tensor, "*any k"]:
    """Return |R_ii| in fp64, with zeros for trailing directions of which only rounding is left.

    A tiny growth before a larger one comes from an unlucky frame; the noise level in its place keeps (2) finite.
    """
    size = diagonal.abs().double()
    noise = 10 * torch.finfo(diagonal.dtype).eps * dim**0.5 * size.amax(-1, keepdim=True)
    lost = (size <= noise).flip(-1).long().cumprod(-1).flip(-1).bool()
    return torch.where(lost, 0.0, torch.maximum(size, noise))


@dataclass(frozen=True)
class GradedProduct:
    """The product R_T ... R_1 in the graded form D U of (2)."""

    logs: Float[Tensor, "B k"]  # l
    unit: Float[Tensor, "B k k"]  # U

    def after(self, r: Float[Tensor, "B k k"]) -> "GradedProduct":
        """Return R (D U)."""
        size = r.diagonal(dim1=-2, dim2=-1)
        return self.then(GradedProduct(size.log(), r / torch.where(size == 0, 1.0, size).unsqueeze(-1)))

    def then(self, later: "GradedProduct") -> "GradedProduct":
        """Return the product of a later one with this one, by (3)."""
        ones = torch.eye(self.logs.shape[-1], dtype=self.logs.dtype, device=self.logs.device)
        # Frames that are still unsorted may put a slow direction first; the bound keeps e^(l_j - l_i) finite there.
        ratio = (self.logs.unsqueeze(-2) - self.logs.unsqueeze(-1)).nan_to_num(neginf=-800.0).clamp(max=300.0).exp()
        logs = self.logs + later.logs
        product = (later.unit * ratio).triu(1) + ones
        return GradedProduct(logs, torch.where(logs.isneginf().unsqueeze(-1), ones, product @ self.unit))

    def log_singular_values(self) -> Float[Tensor, "B k"]:
        """Return the logarithms of the singular values, largest first, by (4) and (5)."""
        logs, n = self.logs, self.logs.shape[-1]
        rows = self.unit
        for _ in range(MAX_SWEEPS):
            order = logs.argsort(dim=-1, descending=True)
            logs, rows = logs.gather(-1, order), rows.gather(-2, order.unsqueeze(-1).expand_as(rows))
            logs, rows = _normalised(logs, rows)
            largest_cosine = logs.new_zeros(())
            for first, second in rounds(n):
                logs, rows, cosine = _rotated(logs, rows, first, second)
                largest_cosine = torch.maximum(largest_cosine, cosine)
            if largest_cosine < 1e-9:  # the error of a logarithm is of second order in the cosine
                break
        return logs.sort(dim=-1, descending=True).values


def empty_product(frame: Float[Tensor, "B n k"]) -> GradedProduct:
    """Return the identity, with which a product along `frame` begins."""
    n_samples, _, k = frame.shape
    ones = torch.eye(k, dtype=torch.float64, device=frame.device).expand(n_samples, k, k)
    return GradedProduct(ones.new_zeros(n_samples, k), ones)


def rounds(n: int) -> list[tuple[list[int], list[int]]]:
    """Return all pairs of n indices in rounds of disjoint pairs, by the circle method of tournaments."""
    players = [*range(n), *([-1] if n % 2 else [])]
    schedule = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        opponents = zip(players[:half], reversed(players[half:]), strict=True)
        pairs = [(min(pair), max(pair)) for pair in opponents if -1 not in pair]
        if pairs:
            schedule.append(([i for i, _ in pairs], [j for _, j in pairs]))
        players = [players[0], players[-1], *players[1:-1]]
    return schedule


def _normalised(logs: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    length = rows.norm(dim=-1)
    return logs + length.log(), rows / length.unsqueeze(-1)


def _rotated(logs: Tensor, rows: Tensor, first: list[int], second: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Rotate disjoint pairs of rows by (4) and (5), and return the largest |c|. Lost rows stay as they are."""
    swap = logs[:, first] < logs[:, second]
    index = torch.tensor([first, second], device=logs.device).unsqueeze(1)
    i, j = torch.where(swap, index.flip(0), index)
    at_i, at_j = (k.unsqueeze(-1).expand(-1, -1, rows.shape[-1]) for k in (i, j))
    log_i, log_j, w_i, w_j = logs.gather(-1, i), logs.gather(-1, j), rows.gather(-2, at_i), rows.gather(-2, at_j)

    lost = log_j.isneginf()
    c = (w_i * w_j).sum(-1).masked_fill(lost, 0.0)
    r = (log_j - log_i).masked_fill(lost, 0.0).exp().masked_fill(lost, 0.0)
    gap = 1 - r.square()
    denominator = gap + (gap.square() + 4 * (c * r).square()).sqrt()
    s = torch.where(c == 0, 0.0, 2 * c / torch.where(denominator == 0, 1.0, denominator))  # (4)
    cosine = (1 + (r * s).square()).rsqrt()
    new_i, new_j = (
        cosine.unsqueeze(-1) * (w_i + (r.square() * s).unsqueeze(-1) * w_j),  # (5)
        cosine.unsqueeze(-1) * (w_j - s.unsqueeze(-1) * w_i),
    )
    log_i, new_i = _normalised(log_i, new_i)
    log_j, new_j = _normalised(log_j, new_j)
    logs = logs.scatter(-1, i, log_i).scatter(-1, j, log_j)
    rows = rows.scatter(-2, at_i, new_i).scatter(-2, at_j, new_j)
    return logs, rows, c.abs().amax()
