"""Compute the norm of every head's matrix W in fp32.

    frobenius    (sum_ij W_ij^2)^(1/2)                                                                       (1)
    spectral     the square root of the largest eigenvalue of W W^T or of W^T W, whichever is smaller         (2)

Both are exact to rounding at every step, whatever the weights did since the last one, and keep no state. The gains
of an RMSNorm are stored as a vector and stand for a diagonal matrix. (2) needs all rows of a head, so a sharded weight
is gathered from all processes, one weight at a time.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from attractor.control.local_rows import LocalRows, sum_over_processes


class FrobeniusNorm:
    """Compute (1)."""

    def __init__(self, shares: Sequence[LocalRows]) -> None:
        self.shares = shares
        self._local_norms, self._parts = _by_share(shares)

    def measure_share(self, index: int) -> None:
        """Measure one share. It is called for all shares before `norms`, when their weights are about to be read."""
        for block, weight in self.shares[index].weights():
            wide = torch.promote_types(weight.dtype, torch.float32)
            self._parts[index][block.heads] = torch.linalg.vector_norm(weight, dim=(1, 2), dtype=wide)  # (1)

    def norms(self) -> Tensor:
        """Return the norms of all heads, share by share."""
        if not any(share.groups for share in self.shares):
            return self._local_norms.clone()
        squares = self._local_norms.square()
        sum_over_processes(squares.split([len(part) for part in self._parts]), self.shares)
        return squares.sqrt_()


class SpectralNorm:
    """Compute (2)."""

    def __init__(self, shares: Sequence[LocalRows]) -> None:
        self.shares = shares
        self._norms, self._parts = _by_share(shares)

    def measure_share(self, index: int) -> None:
        share, part = self.shares[index], self._parts[index]
        measure = _largest_entry if share.rows.weight.dim() == 1 else _largest_singular_value
        if share.groups:
            part.copy_(measure(_gathered(share)))
        else:
            for block, weight in share.weights():
                part[block.heads] = measure(weight.float())

    def norms(self) -> Tensor:
        return self._norms.clone()


def _gathered(share: LocalRows) -> Tensor:
    """Return the weights of all heads of a sharded weight: heads x width x inputs."""
    rows = share.rows
    whole = torch.zeros(rows.n_heads, rows.width, share.n_inputs, device=rows.weight.device)
    for block, weight in share.weights():
        whole[block.heads, block.rows, share.inputs] = weight.float()
    sum_over_processes([whole], [share])
    return whole


def _largest_entry(diagonal: Tensor) -> Tensor:
    """Compute (2) for diagonal matrices: heads x width x 1."""
    return diagonal.abs().amax((1, 2))


def _largest_singular_value(weight: Tensor) -> Tensor:
    """Compute (2) for heads x width x inputs."""
    smaller = weight if weight.shape[1] <= weight.shape[2] else weight.mT
    gram = torch.bmm(smaller, smaller.mT).nan_to_num_(0.0, 0.0, 0.0)  # LAPACK refuses what is not finite
    return torch.linalg.eigvalsh(gram)[:, -1].clamp_(min=0).sqrt_()  # (2)


def norms_of(shares: Sequence[LocalRows]) -> list[Tensor]:
    """Return (1) of all heads, one vector for each share."""
    measure = FrobeniusNorm(shares)
    for index in range(len(shares)):
        measure.measure_share(index)
    return list(measure.norms().split([share.rows.n_heads for share in shares]))


NORMS: dict[str, type[FrobeniusNorm] | type[SpectralNorm]] = {"frobenius": FrobeniusNorm, "spectral": SpectralNorm}


def _by_share(shares: Sequence[LocalRows]) -> tuple[Tensor, list[Tensor]]:
    """Return a vector of zeros with one entry per head, and the slice of it for every share."""
    sizes = [share.rows.n_heads for share in shares]
    vector = torch.zeros(sum(sizes), device=shares[0].rows.weight.device)
    return vector, list(vector.split(sizes))
