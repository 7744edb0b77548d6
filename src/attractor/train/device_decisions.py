"""Decide on the device whether a step is applied, so that the host need not wait to read whether it was finite.

    a step is applied where  finite and bad < max_bad_steps;   bad <- 0 where finite, else bad + 1          (1)

Where a step is not applied, weights, optimizer state and averages keep every bit. Once bad is max_bad_steps, no step is
applied any more: the run stops there, as soon as the host reads the outcome.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from attractor.train.distributed import held_here


def all_finite(values: Iterable[Any]) -> bool:
    """Return whether every number of these tensors is finite; of a tensor that is sharded, of this process's part."""
    tensors = [held_here(value.detach()) for value in values if isinstance(value, Tensor) and value.is_floating_point()]
    with torch.no_grad():
        # NaN is the minimum and maximum where it occurs. A norm takes five times as long.
        extremes = [torch.stack(tensor.aminmax()).float().cpu() for tensor in tensors if tensor.numel()]
        return not extremes or bool(torch.cat(extremes).isfinite().all())


class StepDecisions:
    """Compute (1) step by step, for one run or for several runs at once."""

    def __init__(self, device: torch.device, bad_steps: int | Sequence[int], max_bad_steps: int) -> None:
        # A run that stopped may try one more step when it is resumed.
        self.bad = torch.tensor(bad_steps, device=device).clamp(max=max_bad_steps - 1)
        self.max_bad_steps = max_bad_steps

    def applied(self, finite: Tensor) -> Tensor:
        """Return whether this step is applied, a boolean on the device."""
        alive = self.bad < self.max_bad_steps
        self.bad = torch.where(alive, torch.where(finite, 0, self.bad + 1), self.bad)
        return finite & alive


def step_where(optimizer: Optimizer, applied: Tensor) -> None:
    """Take a step of an optimizer that reads `found_inf`, as torch's fused optimizers do for a GradScaler."""
    fused: Any = optimizer
    fused.found_inf = (~applied).float()
    try:
        optimizer.step()
    finally:
        del fused.found_inf
