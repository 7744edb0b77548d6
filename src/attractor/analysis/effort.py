"""How accurate a measure of a map must be, and how much it may compute until then."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import ParamSpec, TypeVar

from torch import Tensor

from attractor.analysis.jacobian import ONE_GIB
from attractor.errors import require, require_count

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Effort:
    """The accuracy and the limits of an iterative measure; None leaves the measure its own default."""

    tolerance: float | None = None  # stated error at which iterations stop: relative, but absolute for exponents
    max_iterations: int | None = None  # Lanczos iterations, products J v of Krylov-Schur, or sweeps over an orbit
    max_bytes: int = ONE_GIB  # memory of the directions that are multiplied at once

    def __post_init__(self) -> None:
        fits = self.tolerance is None or 0 <= self.tolerance < math.inf
        require(fits, "tolerance", "at least 0 and finite, or None", self.tolerance, "None is the measure's default")
        if self.max_iterations is not None:
            require_count("max_iterations", self.max_iterations)

    def limits(self, tolerance: float, max_iterations: int) -> tuple[float, int]:
        """Return the tolerance and the largest number of iterations, given the measure's defaults."""
        return (
            tolerance if self.tolerance is None else self.tolerance,
            max_iterations if self.max_iterations is None else self.max_iterations,
        )


USUAL = Effort()


def reads(measure: Callable[P, R]) -> Callable[[Callable[[R], Tensor]], Callable[P, Tensor]]:
    """Let a function that reads one quantity from an estimate take the arguments of the measure that estimates it."""

    def with_arguments(read: Callable[[R], Tensor]) -> Callable[P, Tensor]:
        @wraps(read)
        def quantity(*args: P.args, **keywords: P.kwargs) -> Tensor:
            return read(measure(*args, **keywords))

        quantity.__dict__["__signature__"] = signature(measure).replace(return_annotation=Tensor)
        return quantity

    return with_arguments
