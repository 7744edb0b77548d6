"""Keep an exponential moving average of the weights, which a run may validate and store in place of the weights.

    e <- d e + (1 - d) w  after step n * every,   d = min(decay, (1 + n) / (10 + n)),   n = 0, 1, ..        (1)

Before the first step e is w. In the first steps d is smaller, so the average forgets the initial weights, which a short
run would otherwise carry to its end. The average reaches back about every / (1 - decay) steps. A step that is skipped,
because it was not finite, changes nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attractor.train.distributed import placed_as


class Average:
    def __init__(self, model: nn.Module, decay: float, every: int = 1) -> None:
        self.decay, self.every = decay, every
        self.trained = dict(model.named_parameters())
        self.means = {name: parameter.detach().clone() for name, parameter in self.trained.items()}

    @torch.no_grad()
    def update(self, step: int, applied: Tensor | None = None) -> None:
        """Apply (1) after step number `step`, from 0, and only if the step is `applied`, where that is given."""
        n, left = divmod(step, self.every)
        if left:
            return
        share = 1 - min(self.decay, (1 + n) / (10 + n))
        means, trained = list(self.means.values()), list[Tensor](self.trained.values())
        if applied is None:
            torch._foreach_lerp_(means, trained, share)
        else:
            of_dtype = {dtype: (applied * share).to(dtype) for dtype in {mean.dtype for mean in means}}
            shares: Any = [of_dtype[mean.dtype] for mean in means]
            torch._foreach_lerp_(means, trained, shares)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Give the model the means as its weights while the block runs."""
        kept = {name: parameter.detach().clone() for name, parameter in self.trained.items()}
        self._give(self.means)
        try:
            yield
        finally:
            self._give(kept)

    @torch.no_grad()
    def go_on_from(self, trained: dict[str, Tensor]) -> None:
        """Continue from a checkpoint: the model holds the means, and `trained` the weights."""
        for name, parameter in self.trained.items():
            self.means[name].copy_(parameter)
        self._give({name: placed_as(tensor, self.trained[name]) for name, tensor in trained.items()})

    @torch.no_grad()
    def _give(self, weights: dict[str, Tensor]) -> None:
        for name, parameter in self.trained.items():
            parameter.copy_(weights[name])
