"""Norms of the layers' Jacobians and exponents over depth, within a limit of memory.

    |J_l|                                          the largest growth of a small change in layer l          (1)
    lambda_i = (1 / L) log sigma_i(J_L ... J_1)    the mean log growth per layer through all L layers       (2)

The state is all positions of a passage, T x D numbers, so a change at one position may grow at others. (1) takes at
most 60 Lanczos iterations, whose basis stays in memory. (2) is subspace iteration over the layers. As many directions
go through a layer at once as the remaining memory holds.
"""

from dataclasses import dataclass
from typing import Self

import torch

from attractor.analysis import Effort, FiniteTime, NormEstimate, estimate_jacobian_norm, finite_time
from attractor.analysis.finite_time import OVERSAMPLING
from attractor.analysis.jacobian import backward_bytes
from attractor.errors import InputError
from attractor.evaluate.measures.plan import GB
from attractor.models.maps import LayerMaps

TOLERANCE = 1e-2  # bound on the relative error of norms; passages differ by more
N_LANCZOS = 60
N_SWEEPS = 8
FRAMES = 8  # copies of a frame that its orthonormalisation and products take
DIRECTIONS = 4  # memory of a direction in a layer, in units of what the layer keeps for its backward pass


@dataclass(frozen=True)
class Jacobians:
    maps: LayerMaps
    max_bytes: int

    @classmethod
    def within(cls, max_bytes: int, maps: LayerMaps, k: int) -> Self:
        """Raise InputError before any long computation if the memory, the dtype or k does not allow it."""
        start = maps.states[0]
        if start.dtype not in (torch.float32, torch.float64):
            raise InputError(
                f"dtype must be fp32 or fp64 for Jacobians, got {str(start.dtype).removeprefix('torch.')}; load "
                "the model in one of them (--precision), or leave the Jacobians out (--no-jacobians)"
            )
        if k > start.numel():
            length, width = start.shape[1], start.numel() // start.shape[1]
            raise InputError(
                f"k must be at most {start.numel():,}, the dimension of {length} positions of {width} numbers, got "
                f"{k:,}; ask for fewer exponents"
            )
        fixed = max(N_LANCZOS + FRAMES, FRAMES * (k + OVERSAMPLING)) * start.nbytes + len(maps.states) * start.nbytes
        largest = max(backward_bytes(step, state) for step, state in zip(maps.steps, maps.states, strict=False))
        least = fixed + DIRECTIONS * largest
        if least > max_bytes:
            raise InputError(
                f"memory must be at least {least / GB:.2g} GB for Jacobians at this length, got {max_bytes / GB:g}; "
                "give more, a smaller length, or leave them out (--no-jacobians)"
            )
        return cls(maps, (max_bytes - fixed) // DIRECTIONS)

    def norm(self, layer: int) -> NormEstimate:
        """Return (1) for one layer."""
        step, start = self.maps.block(layer)
        return estimate_jacobian_norm(step, start, effort=Effort(TOLERANCE, N_LANCZOS, self.max_bytes))

    def exponents(self, k: int) -> FiniteTime:
        """Return the k largest exponents of (2)."""
        effort = Effort(max_iterations=N_SWEEPS, max_bytes=self.max_bytes)
        return finite_time(self.maps.steps, self.maps.states[0], k=k, effort=effort)
