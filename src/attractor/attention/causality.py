"""Test that the outputs of a module do not depend on later positions, nor on the other sequences of a batch.

    x' = x with other tokens after position t:   f(x')_s = f(x)_s   for all s <= t                            (1)
    x' = x with another sequence beside it:      f(x')_1 = f(x)_1                                             (2)
    f(x_1 ... x_t) = f(x)_1 ... f(x)_t                                                                        (3)

Values are compared, since gradients see neither a statistic that is detached nor a path behind a gate that starts at
0. Each is tested in training and in evaluation, with the initial parameters and with random ones. (3) is what lets a
model generate. The same random numbers are drawn in both passes, so that dropout changes nothing.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress

import torch
from torch import Tensor, nn

from attractor.errors import InputError

LENGTH = 12
LENGTHS = (1, 5)  # of (3)
TRAINED = "once its parameters are trained"
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # of outputs in units of their size; a Fourier transform rounds


def refuse_leaks(make: Callable[[], nn.Module], name: str, d_model: int, causal: bool = True) -> None:
    """Refuse a module of other shapes, and one whose outputs depend on what they must not see."""
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for module, x, setting in _settings(make(), d_model):
            out = _run(module, x, name)
            if not out.isfinite().all():
                if setting.endswith(TRAINED):
                    continue  # random parameters may be none that training could reach
                raise InputError(f"{name} must return finite numbers, and does not {setting}; mend its forward")
            other = torch.cat([x[:1], torch.randn_like(x[1:])])
            _require_same(_run(module, other, name)[:1], out[:1], f"other sequences of the batch {setting}", name)
            for t in range(LENGTH - 1) if causal else ():
                changed = x.clone()
                changed[:, t + 1 :] = torch.randn_like(changed[:, t + 1 :])
                _require_same(_run(module, changed, name)[:, : t + 1], out[:, : t + 1], f"later tokens {setting}", name)
            for t in LENGTHS if causal and not module.training else ():  # other shapes draw other random numbers
                _require_same(_run(module, x[:, :t], name), out[:, :t], f"the length {setting}", name)


def _settings(module: nn.Module, d_model: int) -> Iterator[tuple[nn.Module, Tensor, str]]:
    """Yield the module and inputs in each setting, on the CPU and in fp64 where the module computes so."""
    x = torch.randn(2, LENGTH, d_model)
    place = place_of(module, x)
    module, x = module.to(*place), x.to(*place)
    for random in (False, True):
        if random:
            with torch.no_grad():
                for parameter in module.parameters():
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
            copy.deepcopy(module).to(*place)(x.to(*place))
            break
    return place


def _run(module: nn.Module, x: Tensor, name: str) -> Tensor:
    """Return the output with the same random numbers each time. A pass changes copies of the running statistics."""
    torch.manual_seed(1)
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    try:
        with torch.no_grad():
            out = torch.func.functional_call(module, buffers, (x,))
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


def _require_same(changed: Tensor, expected: Tensor, what: str, name: str) -> None:
    difference = (changed - expected).abs().amax((0, 2))
    size = expected.abs().amax().clamp(min=1e-6)
    leaks = ~(difference <= TOLERANCE[changed.dtype] * size)  # what is not a number is no agreement
    if leaks.any():
        position = int(leaks.nonzero()[0])
        raise InputError(
            f"{name} must see the past alone, and its output at position {position} depends on {what}; mask what it "
            "must not see"
        )
