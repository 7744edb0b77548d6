"""Steps that are decided where they are computed, so that nobody waits for an accelerator to hear what it found.

    a step moves weights where  finite and bad < max_bad_steps;   bad <- 0 where finite, else bad + 1       (1)

Where a step does not move them, weights, optimizer state and averages keep every bit, as they do where the step is left
out. Once bad is max_bad_steps, nothing moves any more: the run will stop there, as soon as someone reads it.
"""

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Decisions:
    """(1), step by step."""

    def __init__(self, device: torch.device, bad_steps: int, max_bad_steps: int) -> None:
        # A run that stopped may try one more step when it is taken up again.
        self.bad = torch.tensor(min(bad_steps, max_bad_steps - 1), device=device)
        self.max_bad_steps = max_bad_steps

    def moves(self, finite: Tensor) -> Tensor:
        """Whether this step moves, a boolean on the device."""
        alive = self.bad < self.max_bad_steps
        self.bad = torch.where(alive, torch.where(finite, 0, self.bad + 1), self.bad)
        return finite & alive


def step_where(optimizer: Optimizer, moves: Tensor) -> None:
    """A step of an optimizer that knows `found_inf`, as torch's fused ones do for a GradScaler."""
    told: Any = optimizer
    told.found_inf = (~moves).float()
    try:
        optimizer.step()
    finally:
        del told.found_inf
