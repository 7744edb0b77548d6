"""States, steps and orbits: the checks that every measure of a map makes.

All of x is one state, whatever its shape; with `batched`, dimension 0 counts samples that do not influence one another.
A step maps a state to a state of the same shape and dtype, and is the same map each time it is called (`model.eval()`).
"""

import sys
import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attractor.errors import InputError

Step = Callable[[Tensor], Tensor]


def start_of(x: Tensor, batched: bool) -> Tensor:
    """Return the state detached from any graph; refuse what cannot be a state."""
    if not isinstance(x, Tensor):
        raise InputError(f"x must be a tensor, got {type(x).__name__}; give torch.as_tensor(x)")
    if x.dtype not in (torch.float32, torch.float64):
        raise InputError(f"x must be of dtype float32 or float64, got {x.dtype}; spectra need the digits: x.float()")
    if batched and x.ndim < 2:
        raise InputError(
            f"x must have a dimension of samples and at least one more, got shape {tuple(x.shape)}; "
            "leave out batched=True if all of x is one state"
        )
    if x.numel() == 0:
        raise InputError(f"x must hold at least one number, got shape {tuple(x.shape)}; give a state")
    x = x.detach()
    require_finite(x.unsqueeze(0), 0, batched)
    return x


def image_of(step: Step, x: Tensor) -> Tensor:
    """Return step(x), with attention in the plain form that can be differentiated forwards and backwards."""
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        y = step(x)
    if not isinstance(y, Tensor):
        raise InputError(f"step must return a tensor, got {type(y).__name__}; return the next state alone")
    for what, after, before in (("shape", tuple(y.shape), tuple(x.shape)), ("dtype", y.dtype, x.dtype)):
        if after != before:
            raise InputError(f"step must keep the {what} {before}, got {after}; return the next state as it came in")
    return y


def orbit(step: Step, x: Tensor, n_steps: int, batched: bool = False, first: int = 0) -> Tensor:
    """Return x and its next n_steps states along a new dimension 0; `first` is the number of steps before x."""
    states = [x]
    for _ in range(n_steps):
        states.append(image_of(step, states[-1]))
    stacked = torch.stack(states)
    require_finite(stacked, first, batched)
    return stacked


def require_finite(states: Tensor, first: int, batched: bool) -> None:
    """Refuse non-finite states, with one check for a whole stretch, since every check waits for the device."""
    finite = states.isfinite()
    if finite.all():
        return
    by_sample = (finite.flatten(2) if batched else finite.flatten(1).unsqueeze(1)).all(-1)
    number, sample = (~by_sample).nonzero()[0].tolist()
    where = f" in sample {sample}" if batched else ""
    raise InputError(
        f"states must be finite, got NaN or infinity{where} after step {first + number}; "
        "take fewer steps or mend the step there"
    )


def require_finite_derivative(finite: Tensor, where: str) -> None:
    """Refuse a step whose products are not all `finite`, at the state or states that `where` names."""
    if not finite.all():
        raise InputError(
            f"step must have a finite derivative at {where}, got NaN or infinity; start elsewhere or mend the step "
            "there"
        )


def require_at_most(name: str, value: int, most: int, of: str) -> None:
    if value > most:
        raise InputError(f"{name} must be at most {most}, the dimension of {of}, got {value}; ask for fewer")


def warn_unconverged(error: Tensor, tolerance: float, message: str) -> None:
    """Warn the caller of this package that an `error` exceeds `tolerance`; `{error}` in the message is the largest."""
    if not (error <= tolerance).all():  # NaN, too
        caller, level = sys._getframe(), 1
        while caller.f_back is not None and caller.f_globals.get("__package__") == __package__:
            caller, level = caller.f_back, level + 1
        warnings.warn(message.format(error=f"{error.max().item():.1e}"), RuntimeWarning, stacklevel=level)
