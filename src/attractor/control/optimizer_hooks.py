"""Attach interventions to the steps of one or several optimizers, and refuse conflicts and a wrong order.

Two rules for the same rates would act twice. A clip must see the final weights of a step, so it is attached after
everything that moves them. Step hooks run in the order in which they were registered.

The weights of one model may lie in several optimizers (Muon for matrices, AdamW for the rest), which step one after the
other. In a *round* each of them steps once, in the order in which they first stepped. A round ends after the last
optimizer's step. It also ends if an optimizer steps again or out of turn, since others may step more rarely or be
skipped.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from attractor.control.views import Rows
from attractor.errors import InputError

OF_STEPS = sys.modules[Optimizer.__module__].__file__  # where torch wraps `step` by a function that calls the hooks
# For each optimizer, the attached interventions by name, each with the names that must be attached before it.
_ATTACHED: MutableMapping[Optimizer, dict[str, tuple[str, ...]]] = WeakKeyDictionary()


def attach(
    optimizers: Iterable[Optimizer], name: str, after: tuple[str, ...] = (), instead_of: tuple[str, ...] = ()
) -> None:
    """Record that `name` acts on the steps of all optimizers, after those named in `after` and never with
    `instead_of`."""
    attached = [_ATTACHED.setdefault(optimizer, {}) for optimizer in optimizers]
    for names in attached:
        rival = next((other for other in (name, *instead_of) if other in names), None)
        if rival is not None:
            beside = f" and not together with {rival}" if rival != name else ""
            raise InputError(
                f"an optimizer takes {name} once{beside}, and {rival} is attached already: remove() it first"
            )
        later = [other for other, must_follow in names.items() if name in must_follow]
        if later:
            raise InputError(
                f"{later[0]} must act after {name}, but is attached already: remove() it, attach {name} before "
                f"{later[0]}"
            )
    for names in attached:
        names[name] = after


def detach(optimizers: Iterable[Optimizer], name: str) -> None:
    for optimizer in optimizers:
        _ATTACHED.get(optimizer, {}).pop(name, None)


def around_steps(
    optimizers: Iterable[Optimizer], before: Callable[[int], None] | None, after: Callable[[int], None]
) -> list[RemovableHandle]:
    """Call `before` and `after` around the steps of the optimizers, with the number of the optimizer that steps."""

    def outermost(act: Callable[[int], None], number: int) -> Callable[..., None]:
        def hook(optimizer: Optimizer, *of_the_step: Any) -> None:
            if not _is_nested(optimizer):
                act(number)

        return hook

    hooks = []
    for number, optimizer in enumerate(optimizers):
        if before is not None:
            hooks.append(optimizer.register_step_pre_hook(outermost(before, number)))
        hooks.append(optimizer.register_step_post_hook(outermost(after, number)))
    return hooks


def _is_nested(optimizer: Optimizer) -> bool:
    """Return whether the calling hook belongs to a step inside another step of the same optimizer.

    If the `step` of a subclass calls that of its parent, torch calls the hooks of both. Counting hooks would not show
    this, since a step that raises calls no hook at its end."""
    n_steps, frame = 0, sys._getframe()
    while frame := frame.f_back:  # type: ignore[assignment]
        is_step = frame.f_code.co_filename == OF_STEPS and frame.f_code.co_name == "wrapper"
        n_steps += is_step and frame.f_locals.get("self") is optimizer
    return n_steps > 1


class Rounds:
    """Divide the steps of so many optimizers, which are numbered, into rounds. A single optimizer's step is a round."""

    def __init__(self, n_optimizers: int) -> None:
        self.n_optimizers = n_optimizers
        self._order: list[int] = []  # the optimizers in the order in which they first stepped
        self._last = -1  # the place in this order of the round's last step; -1 between rounds

    def begins(self, number: int) -> bool:
        """Return, just before a step, whether a round begins with it."""
        return self._last < 0 or self._place(number) <= self._last

    def end(self, number: int) -> tuple[bool, bool]:
        """Return, just after a step, whether the round is complete, and whether it has cut off the round before."""
        place = self._place(number)
        is_complete, was_cut = place == self.n_optimizers - 1, place <= self._last
        self._last = -1 if is_complete else place
        return is_complete, was_cut

    def _place(self, number: int) -> int:
        if number not in self._order:
            self._order.append(number)
        return self._order.index(number)


def refuse_second_copy(optimizers: Iterable[Optimizer], name: str) -> None:
    """Refuse schedule-free optimizers, which keep a second copy of the weights and swap it in train() and eval()."""
    for optimizer in optimizers:
        if callable(getattr(optimizer, "train", None)) and callable(getattr(optimizer, "eval", None)):
            raise InputError(
                f"optimizer must hold one copy of the weights, but {type(optimizer).__name__} has train() and eval(), "
                f"so it holds a second copy, which {name} would not reach: take one with a learning-rate schedule"
            )


def refuse_out_of_reach(optimizers: Iterable[Optimizer], named: Mapping[str, Rows], name: str) -> None:
    """Refuse weights that are trained, but by none of these optimizers, and those whose values are elsewhere."""
    given = parameters_of(optimizers)
    for place, rows in named.items():
        for what, parameter in (("weight", rows.weight), ("bias", rows.bias)):
            if parameter is not None and parameter.is_meta:
                raise InputError(
                    f"the {what} of {place} must hold values for {name}, but is on the meta device, as are offloaded "
                    "weights: load the whole model before you train it"
                )
            if parameter is not None and parameter.requires_grad and parameter not in given:
                raise InputError(
                    f"the {what} of {place} must be among the optimizer's parameters and is not: attach {name} after "
                    "the optimizer is made, and again when it is replaced, and give the list of all optimizers"
                )


def refuse_shared(named: Mapping[str, Rows], name: str) -> None:
    """Refuse weights that two layers share, since the intervention would act on them twice."""
    owners: dict[tuple[nn.Parameter, int], str] = {}
    for place, rows in named.items():
        for start in rows.starts:
            owner = owners.setdefault((rows.weight, start), place)
            if owner != place:
                raise InputError(
                    f"{place} and {owner} must not share weights, on which {name} would act twice: untie them"
                )


def unwrapped(given: Any) -> tuple[Optimizer, ...]:
    """Return the optimizers whose steps move the weights, out of one or several, without wrappers such as Accelerate's.

    A container of optimizers, such as torchtitan's, holds them in `optimizers`."""
    several = given if isinstance(given, list | tuple) else getattr(given, "optimizers", None)
    if several is not None:
        optimizers = tuple(dict.fromkeys(optimizer for part in several for optimizer in unwrapped(part)))
        if not optimizers:
            raise InputError("optimizer must be an optimizer or a list of them, got an empty list: give at least one")
        return optimizers
    if hasattr(inner := getattr(given, "optimizer", None), "register_step_post_hook"):
        return unwrapped(inner)
    if not (hasattr(given, "register_step_pre_hook") and hasattr(given, "register_step_post_hook")):
        raise InputError(
            f"optimizer must have step hooks as torch.optim's have, but {type(given).__name__} has none: "
            "give the torch.optim.Optimizer inside, or a list of such optimizers"
        )
    return (given,)


def parameters_of(optimizers: Iterable[Optimizer]) -> set[nn.Parameter]:
    return {parameter for optimizer in optimizers for group in optimizer.param_groups for parameter in group["params"]}
