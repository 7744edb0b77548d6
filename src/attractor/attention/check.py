"""What a mechanism can do, tried on small random inputs.

Each finding is True (it does), False (it must, and does not) or None (it does not, and need not).
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attractor.attention.causality import LENGTH, LONGER, longest, place_of, refuse_leaks
from attractor.attention.layer import Attention, build
from attractor.attention.named import resolved
from attractor.attention.whole import WholeLayer
from attractor.errors import InputError
from attractor.kernels.precision import cast_module


class Finding(NamedTuple):
    what: str
    holds: bool | None
    words: str


class _OutputAlone(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)[0]
        return out


def check(named: Any, d_model: int = 32, n_heads: int = 4) -> list[Finding]:
    """Return what was found of a mechanism in a causal model, in the order of the table of `attractor check`."""
    mechanism = resolved(named)
    torch.manual_seed(0)
    layer = build(mechanism, d_model, n_heads)
    refusal = _refusal(lambda: refuse_leaks(lambda: _OutputAlone(build(mechanism, d_model, n_heads)), "it", d_model))
    if refusal is not None:
        return [Finding("takes part", False, refusal)]
    x = torch.randn(2, max(LONGER), d_model)
    device = place_of(layer, x[:, :LENGTH])[0]
    n_parameters = sum(parameter.numel() for parameter in layer.parameters())
    return [
        Finding("B T D to B T D", True, f"{n_parameters:,} parameters at width {d_model} with {n_heads} heads"),
        Finding("sees the past alone", True, "at its initial and at random parameters, in training and evaluation"),
        *_findings(cast_module(layer.to(device), x.dtype), x.to(device)),
    ]


def _findings(layer: Attention | WholeLayer, x: Tensor) -> Iterator[Finding]:
    out = layer(longest(layer, x))[0]
    without = [name for name, p in layer.named_parameters() if p.requires_grad and not _reaches(p, out)]
    words = f"none reaches {', '.join(without)}" if without else "every parameter has one"
    yield Finding("gradients", None if without else True, words)
    cache, x = layer.eval().new_cache(), x[:, :LENGTH]
    with torch.no_grad():
        steps = torch.cat([layer(token, cache=cache)[0] for token in x.split(1, dim=1)], dim=1)
        error = float((steps - layer(x)[0]).abs().max())
    if isinstance(layer, WholeLayer):
        yield Finding("a cache", None, f"generation computes it anew for each token, the same to {error:.0e}")
        yield Finding("padding", None, "sequences of unequal lengths are refused")
        yield Finding("taps", None, "logits and entropies are not measured")
    else:
        holds = error < 1e-4
        yield Finding("a cache", holds, f"cached decoding is the full pass to {error:.0e}, {cache.n_numbers} numbers")
        yield Finding("padding", True, "masks of shape B T S")
        yield Finding("taps", True, "q, k and, from most scores, logits and weights")
    yield _tried("bf16", lambda: bool(_in_bf16(layer, x).isfinite().all()), "finite numbers")
    compiled = torch.compile(_OutputAlone(layer), backend="aot_eager", fullgraph=True)
    yield _tried(
        "one graph", lambda: torch.allclose(compiled(x), layer(x)[0], atol=1e-4), "torch.compile needs no break"
    )


def _reaches(parameter: nn.Parameter, out: Tensor) -> bool:
    return torch.autograd.grad(out.square().sum(), parameter, retain_graph=True, allow_unused=True)[0] is not None


def _in_bf16(layer: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, torch.bfloat16), torch.no_grad():
        out: Tensor = layer(x)[0]
    return out


def _tried(what: str, holds: Callable[[], bool], words: str) -> Finding:
    """Return whether something works that a run can do without, or in which way it fails."""
    try:
        return Finding(what, holds() or None, words)
    except Exception as error:
        return Finding(what, None, f"fails: {' '.join(str(error).split())[:80]}")


def _refusal(tried: Callable[[], None]) -> str | None:
    try:
        tried()
    except InputError as error:
        return str(error)
    return None
