"""Orthonormal frames carried along a product of matrices, and the product's singular values from what they shed.

    A_t Q_(t-1) = Q_t R_t,    A_T ... A_1 Q_0 = Q_T (R_T ... R_1)                                           (1)
    R_T ... R_1 = D U,   D = diag(e^l),   U upper triangular with ones on its diagonal                       (2)
    (D2 U2)(D1 U1) = (D2 D1) (D1^-1 U2 D1) U1                                                               (3)

The factor on the right of (1) has the singular values of the product on the frame. Their range, e^(T times the spread
of the exponents), may exceed any number format, so D is kept as logarithms l, and (3) multiplies only what is moderate:
the entries of D1^-1 U2 D1 are those of U2 times e^(l_j - l_i), i < j, at most one once fast directions come first.

The values follow by one-sided Jacobi rotations of the rows of D U, each row kept as a unit vector w_i and a logarithm.
For a pair with r = e^(l_j - l_i) <= 1 and c = <w_i, w_j>, the rotation by theta makes the rows orthogonal:

    tan theta = r s,   s = 2 c / (1 - r^2 + sqrt((1 - r^2)^2 + 4 c^2 r^2))                                  (4)
    w_i <- cos theta (w_i + r^2 s w_j),    w_j <- cos theta (w_j - s w_i)                                   (5)

Limits: r -> 0 is a step of Gram and Schmidt, r = 1 a rotation by 45 degrees. Every value is found with small relative
error, the smallest too. A direction whose growth is lost in the rounding of the largest has value 0, logarithm
minus infinity, and for good: its column of the frame is zero from then on.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

MAX_SWEEPS = 30  # of rotations; convergence is quadratic, so six to ten are usual


class Frame(NamedTuple):
    columns: Float[Tensor, "B n k"]  # orthonormal, lost ones zero
    shed: Float[Tensor, "B k k"]  # R in fp64: diagonal not negative, rows of lost directions zero


def orthonormalise(columns: Float[Tensor, "B n k"]) -> Frame:
    """(1), for one matrix."""
    q, r = torch.linalg.qr(columns)
    diagonal = r.diagonal(dim1=-2, dim2=-1)
    sign = torch.where(diagonal < 0, -1.0, 1.0).to(r.dtype)
    growth = growths(diagonal, columns.shape[-2])
    shed = (sign.unsqueeze(-1) * r).double().masked_fill((growth == 0).unsqueeze(-1), 0.0)
    return Frame(without_lost(q * sign.unsqueeze(-2), growth), torch.diagonal_scatter(shed, growth, dim1=-2, dim2=-1))


def without_lost(columns: Float[Tensor, "B n k"], growth: Float[Tensor, "B k"]) -> Float[Tensor, "B n k"]:
    return columns.masked_fill((growth == 0).unsqueeze(-2), 0.0)


def growths(diagonal: Float[Tensor, "*any k"], dim: int) -> Float[Tensor, "*any k"]:
    """|R_ii| in fp64, zero where only rounding is left of a direction: those come last.

    One that is lost before another that is not has met an unlucky frame: noise in its place keeps (2) finite.
    """
    size = diagonal.abs().double()
    noise = 10 * torch.finfo(diagonal.dtype).eps * dim**0.5 * size.amax(-1, keepdim=True)
    lost = (size <= noise).flip(-1).long().cumprod(-1).flip(-1).bool()
    return torch.where(lost, 0.0, torch.maximum(size, noise))


@dataclass(frozen=True)
class Graded:
    """D U of (2)."""

    logs: Float[Tensor, "B k"]
    unit: Float[Tensor, "B k k"]

    def after(self, shed: Float[Tensor, "B k k"]) -> "Graded":
        """R (D U), by (3)."""
        size = shed.diagonal(dim1=-2, dim2=-1)
        ones = torch.eye(size.shape[-1], dtype=shed.dtype, device=shed.device)
        gone = size == 0
        unit = shed / torch.where(gone, 1.0, size).unsqueeze(-1)
        # Frames that are still unsorted may put a slow direction first; the bound keeps e^(l_j - l_i) finite there.
        ratio = (self.logs.unsqueeze(-2) - self.logs.unsqueeze(-1)).nan_to_num(neginf=-800.0).clamp(max=300.0).exp()
        logs = self.logs + size.log()
        product = (unit * ratio).triu(1) + ones
        return Graded(logs, torch.where(logs.isneginf().unsqueeze(-1), ones, product @ self.unit))

    def log_singular_values(self) -> Float[Tensor, "B k"]:
        """Largest first, by (4) and (5), all disjoint pairs of a round at once."""
        logs, n = self.logs, self.logs.shape[-1]
        rows = self.unit
        for _ in range(MAX_SWEEPS):
            order = logs.argsort(dim=-1, descending=True)
            logs, rows = logs.gather(-1, order), rows.gather(-2, order.unsqueeze(-1).expand_as(rows))
            logs, rows = _normalised(logs, rows)
            furthest = logs.new_zeros(())
            for first, second in rounds(n):
                logs, rows, cosine = _rotated(logs, rows, first, second)
                furthest = torch.maximum(furthest, cosine)
            if furthest < 1e-9:  # the error of a logarithm is of second order in it
                break
        return logs.sort(dim=-1, descending=True).values


def nothing_shed(like: Float[Tensor, "B n k"]) -> Graded:
    """The empty product."""
    n_samples, _, k = like.shape
    ones = torch.eye(k, dtype=torch.float64, device=like.device).expand(n_samples, k, k)
    return Graded(ones.new_zeros(n_samples, k), ones)


def rounds(n: int) -> list[tuple[list[int], list[int]]]:
    """All pairs of n, as a tournament: in each round everyone plays at most once."""
    players = [*range(n), *([-1] if n % 2 else [])]
    found = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        pairs = zip(players[:half], reversed(players[half:]), strict=True)
        played = [(min(pair), max(pair)) for pair in pairs if -1 not in pair]
        if played:
            found.append(([i for i, _ in played], [j for _, j in played]))
        players = [players[0], players[-1], *players[1:-1]]
    return found


def _normalised(logs: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    length = rows.norm(dim=-1)
    return logs + length.log(), rows / length.unsqueeze(-1)


def _rotated(logs: Tensor, rows: Tensor, first: list[int], second: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """(4) and (5) for disjoint pairs; the largest |c| that was met. A lost row turns nothing and is not turned."""
    swap = logs[:, first] < logs[:, second]
    index = torch.tensor([first, second], device=logs.device).unsqueeze(1)
    i, j = torch.where(swap, index.flip(0), index)
    at_i, at_j = (k.unsqueeze(-1).expand(-1, -1, rows.shape[-1]) for k in (i, j))
    log_i, log_j, w_i, w_j = logs.gather(-1, i), logs.gather(-1, j), rows.gather(-2, at_i), rows.gather(-2, at_j)

    lost = log_j.isneginf()
    c = (w_i * w_j).sum(-1).masked_fill(lost, 0.0)
    r = (log_j - log_i).masked_fill(lost, 0.0).exp().masked_fill(lost, 0.0)
    gap = 1 - r.square()
    below = gap + (gap.square() + 4 * (c * r).square()).sqrt()
    s = torch.where(c == 0, 0.0, 2 * c / torch.where(below == 0, 1.0, below))  # (4)
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
