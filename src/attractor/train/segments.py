"""Deep supervision: a batch stays for several training steps, and the state after each one starts the next.

    step k of a batch:   loss_k, x_k = loss(batch, x_(k-1)),   x_k a constant;   x_0 is the model's own start

The number of a step decides on its batch, as elsewhere. So this module keeps nothing but the states of the latest step,
one for each micro-batch of this process. A checkpoint stores those of all processes, so a run may be resumed on another
number of them. A number of a state that is not finite becomes 0, or it would spoil all further steps of the batch.
"""

from typing import Any

import torch
from torch import Tensor

from attractor.train.distributed import World


class Segments:
    def __init__(self, n_segments: int, world: World) -> None:
        self.n_segments, self.world = n_segments, world
        self.number = -1  # of the batch that the states belong to
        self.before: list[Tensor] = []  # states that the micro-batches of this step start from; none: the usual start
        self.after: list[Tensor] = []  # states after the micro-batches of this step so far

    def begin(self, number: int) -> None:
        """Begin a step on the batch of this number."""
        self.before = self.after if number == self.number else []
        self.number, self.after = number, []

    def carried(self) -> tuple[Tensor, ...]:
        """Return the state from which the next micro-batch starts, if there is one."""
        return (self.before[len(self.after)],) if self.before else ()

    def keep(self, states: list[Tensor]) -> None:
        """Keep the state after a micro-batch; a model without segments has none."""
        self.after += [torch.where(state.isfinite(), state, 0.0) for state in states]

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint stores. All processes must take part."""
        if self.n_segments == 1:
            return {}
        return {"segments": {"number": self.number, "states": [self.world.rows_of_all(x) for x in self.after]}}

    def load_state_dict(self, stored: dict[str, Any], device: torch.device) -> None:
        segments = stored.get("segments", {"number": -1, "states": []})
        self.number = segments["number"]
        self.after = [rows.chunk(self.world.size)[self.world.rank].to(device) for rows in segments["states"]]
