"""Give every head's query and key weights a rate of their own, around any optimizer, or around several.

    W <- W + s (W' - W),   W' = what the optimizer's step makes of W, s = the scale of the head          (1)

The controlled rows are copied before the step and interpolated after it. So (1) holds for any optimizer, AdamW or Muon,
fused or sharded. W' includes warm-up, schedule and weight decay, so s scales them too. s = 1 is the bare optimizer to
the bit, and all other rows are never touched. In half precision (1) is rounded, and the rounding error r is added
in the next step:

    W <- round(V),   V = W + s (W' - W) + r,   r <- V - round(V)                                            (2)

Without r a step that is small beside the spacing of numbers around W would be lost, or count too much.

Several optimizers share the scales of a round (`optimizer_hooks.py`), which are computed before its first step.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from attractor.control import optimizer_hooks as hooks
from attractor.control.heads import query_key_heads
from attractor.control.local_rows import LocalRows, MovingBlock, allocate_copies, sum_over_processes
from attractor.errors import InputError, require

HALF = (torch.bfloat16, torch.float16)
RULES = ("QuacK", "FixedRates")  # an optimizer takes at most one of them


@dataclass(eq=False)
class _Moved:
    """What one optimizer moves of the controlled rows, share by share, with copies from before its step."""

    optimizer: Optimizer
    blocks: list[list[MovingBlock]] = field(default_factory=list)
    copies: list[list[Tensor]] = field(default_factory=list)
    remainders: list[list[Tensor | None]] = field(default_factory=list)  # r of (2) in half precision, else None

    def find(self, shares: Iterable[LocalRows]) -> None:
        """Find the blocks that are trained now. Allocate copies and remainders unless those of the last step fit."""
        parameters = hooks.parameters_of([self.optimizer])
        self.blocks = [list(share.moving(parameters)) for share in shares]
        if _kinds(self.copies) == _kinds([[block.view for block in blocks] for blocks in self.blocks]):
            return
        # This is the first step, or parameters were frozen, unfrozen or converted since the last one.
        views = [block.view for blocks in self.blocks for block in blocks]
        copies = iter(allocate_copies(views))
        remainders = iter([r.zero_() for r in allocate_copies([view for view in views if view.dtype in HALF])])
        self.copies = [list(islice(copies, len(blocks))) for blocks in self.blocks]
        self.remainders = [
            [next(remainders) if block.view.dtype in HALF else None for block in blocks] for blocks in self.blocks
        ]


class HeadRates(ABC):
    """Apply (1) until `remove()`, with the scales that a subclass computes just before every round of steps."""

    def __init__(self, model: nn.Module, optimizer: Any, tau: float) -> None:
        is_rate = isinstance(tau, Real) and not isinstance(tau, bool) and 0 < tau < math.inf
        require(is_rate, "tau", "positive and finite", tau, "1 starts at the optimizer's own rate")
        name = type(self).__name__
        self.tau = float(tau)
        self.optimizers = hooks.unwrapped(optimizer)
        hooks.refuse_second_copy(self.optimizers, name)
        self.heads = query_key_heads(model)
        if divided := [view.name for view in self.heads if "sigmaReparam" in view.obstacle]:
            raise InputError(
                f"sigma_reparam must be off for {name}, since its weights are divided by their norm before they act, "
                f"as in '{divided[0]}'; leave one of the two out"
            )
        named = [((view.name, part), rows) for view in self.heads for part, rows in view.parts().items()]
        places = {f"{part} of '{layer}'": rows for (layer, part), rows in named}
        if not any(rows.weight.requires_grad for rows in places.values()):
            raise InputError(f"model must have query or key weights that require grad for {name}, but all are frozen")
        hooks.refuse_out_of_reach(self.optimizers, places, name)
        hooks.refuse_shared(places, name)
        self.shares = {place: LocalRows(rows) for place, rows in named}
        self._moved = [_Moved(of_list) for of_list in self.optimizers]
        self._rounds = hooks.Rounds(len(self.optimizers))
        self._scales: tuple[Tensor, ...] = ()
        hooks.attach(self.optimizers, name, instead_of=tuple(rule for rule in RULES if rule != name))
        self._hooks = hooks.around_steps(self.optimizers, self._before, self._after)

    @abstractmethod
    def measure_share(self, index: int) -> None:
        """Measure one share before `scales`. Its copy follows at once, while the weights are still in the cache."""

    @abstractmethod
    def scales(self) -> Tensor:
        """Return s of every head, in the order of `shares`: layer by layer and part by part."""

    def remove(self) -> None:
        """Detach from the optimizers, which then step as without control."""
        if not self._hooks:  # it was removed before, and the optimizers may have another control by now
            return
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        hooks.detach(self.optimizers, type(self).__name__)
        self._moved.clear()

    @property
    def rates(self) -> dict[str, dict[str, Tensor]]:
        """The scales of the last round by layer and part, one per head. Frozen parts are left out."""
        rates: dict[str, dict[str, Tensor]] = {}
        for (layer, part), scales in zip(self.shares, self._scales, strict=False):  # none before the first step
            if self.shares[layer, part].rows.weight.requires_grad:
                rates.setdefault(layer, {})[part] = scales
        return rates

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """Return tau, and in half precision the remainders of (2). All processes of a sharded model must call this."""
        state: dict[str, Any] = {"tau": float(self.tau)}
        dtypes: dict[tuple[str, str, str], torch.dtype] = {}
        wholes: dict[tuple[str, str, str], Tensor] = {}
        for place, share in self.shares.items():
            for kind, parameter in (("weight", share.rows.weight), ("bias", share.rows.bias)):
                if parameter is not None and parameter.dtype in HALF:
                    dtypes[(*place, kind)] = parameter.dtype
                    wholes[(*place, kind)] = torch.zeros(share.whole_shape(kind), device=parameter.device)
        for place, block, remainder in self._remainders():
            block.of(wholes[(*place, block.kind)]).copy_(remainder)
        if wholes:
            sum_over_processes(list(wholes.values()), [self.shares[layer, part] for layer, part, _ in wholes])
            state["remainders"] = {" ".join(place): whole.to(dtypes[place]) for place, whole in wholes.items()}
        return state

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned for a model with the same layers and heads, however sharded."""
        self._refuse_other_tau(state)
        stored = state.get("remainders", {})
        for place, block, remainder in self._remainders():
            whole = stored.get(" ".join((*place, block.kind)))
            remainder.zero_() if whole is None else remainder.copy_(block.of(whole))

    def _refuse_other_tau(self, state: dict[str, Any]) -> None:
        if (tau := state.get("tau", self.tau)) != self.tau:
            raise InputError(
                f"tau must be {tau:g} as in the state that is loaded, got {self.tau:g}; to change it, begin with "
                f"{type(self).__name__}(model, optimizer, tau={self.tau:g}, ...) without loading the state"
            )

    def _remainders(self) -> Iterator[tuple[tuple[str, str], MovingBlock, Tensor]]:
        for moved in self._moved:
            moved.find(self.shares.values())
            for place, *of_share in zip(self.shares, moved.blocks, moved.remainders, strict=True):
                for block, remainder in zip(*of_share, strict=True):
                    if remainder is not None:
                        yield place, block, remainder

    @torch.no_grad()
    def _before(self, number: int) -> None:
        moved, begins = self._moved[number], self._rounds.begins(number)
        moved.find(self.shares.values())
        for index, (blocks, copies) in enumerate(zip(moved.blocks, moved.copies, strict=True)):
            if begins:
                self.measure_share(index)
            for block, copy in zip(blocks, copies, strict=True):
                copy.copy_(block.view)
        if begins:
            self._scales = self.scales().split([share.rows.n_heads for share in self.shares.values()])

    @torch.no_grad()
    def _after(self, number: int) -> None:
        moved = self._moved[number]
        for scales, *of_share in zip(self._scales, moved.blocks, moved.copies, moved.remainders, strict=True):
            for (block, weight, _, _), before, remainder in zip(*of_share, strict=True):
                _interpolate(before, weight, scales[block.heads, None, None], remainder)  # (1)
        self._rounds.end(number)


class FixedRates(HeadRates):
    """Train all query and key weights at tau times the optimizer's rate, the baseline of QuacK's figure 2."""

    def measure_share(self, index: int) -> None:
        """Measure nothing: the scales do not depend on the weights."""

    def scales(self) -> Tensor:
        n_heads = sum(share.rows.n_heads for share in self.shares.values())
        device = next(iter(self.shares.values())).rows.weight.device
        return torch.full((n_heads,), float(self.tau), device=device)


def _interpolate(before: Tensor, after: Tensor, scale: Tensor, remainder: Tensor | None) -> None:
    if remainder is None:
        torch.lerp(before, after, scale.to(after), out=after)
        return
    exact = torch.lerp(before.float(), after.float(), scale.to(after.device)) + remainder  # (2)
    after.copy_(exact)
    remainder.copy_(exact - after)


def _kinds(tensors: list[list[Tensor]]) -> list[list[tuple[torch.dtype, torch.device]]]:
    return [[(tensor.dtype, tensor.device) for tensor in of_share] for of_share in tensors]
