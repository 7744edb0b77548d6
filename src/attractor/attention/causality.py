"""Test that the outputs of a module do not depend on later positions, nor on the other sequences of a batch.

    x' = x with other tokens after position t:   f(x')_s = f(x)_s   for all s <= t                            (1)
    x' = x with another sequence beside it:      f(x')_1 = f(x)_1                                             (2)
    f(x_1 ... x_t) = f(x)_1 ... f(x)_t                                                                        (3)

Values are compared, since gradients see neither a statistic that is detached nor a path behind a gate that starts at
0. Each is tested in training and in evaluation, with the initial parameters and with random ones. (3) is what lets a
model generate. The same random numbers are drawn in both passes, so that dropout changes nothing. A short sequence
shows every position, and a long one what a module does with whole blocks of tokens.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attractor.errors import InputError
from attractor.kernels.precision import HALF_PRECISIONS, cast_module

LENGTH = 12
LONGER = (192, 128, 64)  # of these the first that a module takes
ENDS = (62, 126, 127)  # t in a longer sequence: at ends of blocks
TRAINED = "once its parameters are trained"
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # of outputs in units of their size; a Fourier transform rounds
TOLERANCE_OF_PARTS = 1e-6  # in fp64, where a part of the module computes in fp32, as many a softmax or norm does


def refuse_leaks(make: Callable[[], nn.Module], name: str, d_model: int, causal: bool = True) -> None:
    """Refuse a module of other shapes, one with complex parameters, and one whose outputs depend on what they must not
    see."""
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = make()
        for key in (key for key, parameter in made.named_parameters() if parameter.is_complex()):
            rule = f"must have real parameters, and '{key.rpartition('.')[2]}' is complex"
            raise InputError(f"{name} {rule}; keep torch.view_as_real of it, and use torch.view_as_complex in forward")
        for module, x, setting in _settings(made, d_model):
            _refuse_leak(module, x[:, :LENGTH], setting, name, causal)
            if not module.training:
                _refuse_leak(module, longest(module, x), setting, name, causal)


def _refuse_leak(module: nn.Module, x: Tensor, setting: str, name: str, causal: bool) -> None:
    with _Precisions() as precisions:
        out = _run(module, x, name)
    tolerance = max(TOLERANCE[x.dtype], TOLERANCE_OF_PARTS * precisions.mixed)
    same = partial(_require_same, name=name, tolerance=tolerance)
    if not out.isfinite().all():
        if setting.endswith(TRAINED):
            return  # random parameters may be none that training could reach
        raise InputError(f"{name} must return finite numbers, and does not {setting}; mend its forward")
    same(_run(module, x, name), out, f"chance that torch's seed does not fix {setting}")
    other = torch.cat([x[:1], torch.randn_like(x[1:])])
    same(_run(module, other, name)[:1], out[:1], f"other sequences of the batch {setting}")
    ends = range(LENGTH - 1) if x.shape[1] == LENGTH else [t for t in ENDS if t < x.shape[1] - 1]
    for t in ends if causal else ():
        changed = x.clone()
        changed[:, t + 1 :] = torch.randn_like(changed[:, t + 1 :])
        same(_run(module, changed, name)[:, : t + 1], out[:, : t + 1], f"later tokens {setting}")
        if not module.training:  # where other shapes would draw other random numbers
            same(_run(module, x[:, : t + 1], name), out[:, : t + 1], f"the length {setting}")


class _Precisions(TorchFunctionMode):
    """Note whether any result has a lower precision than fp64."""

    mixed = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        self.mixed |= isinstance(out, Tensor) and out.dtype in (*HALF_PRECISIONS.values(), torch.float32, torch.cfloat)
        return out


def _settings(module: nn.Module, d_model: int) -> Iterator[tuple[nn.Module, Tensor, str]]:
    """Yield the module and inputs in each setting, on the CPU and in fp64 where the module computes so."""
    x = torch.randn(2, max(LONGER), d_model)
    place = place_of(module, x[:, :LENGTH])
    module, x = cast_module(module.to(place[0]), place[1]), x.to(*place)
    for random in (False, True):
        if random:
            with torch.no_grad():
                for parameter in (parameter for parameter in module.parameters() if parameter.requires_grad):
                    width = parameter.shape[-1] if parameter.dim() > 1 else 1
                    parameter.normal_(std=width**-0.5)
        for training in (True, False):
            setting = f"in {'training' if training else 'evaluation'}" + f" {TRAINED}" * random
            yield module.train(training), x, setting


def place_of(module: nn.Module, x: Tensor) -> tuple[str, torch.dtype]:
    """Return the first place where the module computes, or else the last one, where the reason is found."""
    places = [("cpu", torch.float64), ("cpu", torch.float32), ("cuda", torch.float32)]  # some kernels are a GPU's alone
    for place in places if torch.cuda.is_available() else places[:2]:
        with suppress(Exception):
            cast_module(_copied(module).to(place[0]), place[1])(x.to(*place))
            break
    return place


def longest(module: nn.Module, x: Tensor) -> Tensor:
    """Return the longest of a few starts of x which the module takes, since it may have a longest sequence."""
    for length in LONGER:
        with suppress(Exception), torch.no_grad():
            _copied(module)(x[:, :length])
            return x[:, :length]
    return x[:, :LENGTH]


def _copied(module: nn.Module) -> nn.Module:
    """Return a copy, since a pass may change statistics and what a module keeps. What cannot be copied is returned."""
    with suppress(Exception):
        return copy.deepcopy(module)
    return module


def _run(module: nn.Module, x: Tensor, name: str) -> Tensor:
    """Return the output with the same random numbers each time."""
    torch.manual_seed(1)
    try:
        with torch.no_grad():
            out = _copied(module)(x)
    except Exception as error:
        raise InputError(
            f"{name} must map B T D to B T D, and fails at {' x '.join(map(str, x.shape))}: {type(error).__name__}: "
            f"{' '.join(str(error).split())}; mend its forward"
        ) from error
    out = out[0] if isinstance(out, tuple) else out
    if not isinstance(out, Tensor) or out.shape != x.shape or out.dtype != x.dtype:
        returned = f"{tuple(out.shape)} {out.dtype}" if isinstance(out, Tensor) else type(out).__name__
        raise InputError(
            f"{name} must return a tensor of the shape and dtype of its input, {tuple(x.shape)} {x.dtype}, got "
            f"{returned}; return the output, or a tuple that starts with it"
        )
    return out


def _require_same(changed: Tensor, expected: Tensor, what: str, name: str, tolerance: float) -> None:
    shares = (changed - expected).abs().amax((0, 2)) / expected.abs().amax().clamp(min=1e-6)
    leaks = ~(shares <= tolerance)  # what is not a number is no agreement
    if leaks.any():
        position = int(leaks.nonzero()[0])
        raise InputError(
            f"{name} must see the past alone, and its output at position {position} depends on {what}, by "
            f"{shares[position]:.0e} of the largest output; let it see x, its parameters and torch's random numbers, "
            "and mask the rest"
        )
