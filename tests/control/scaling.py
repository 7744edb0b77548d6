"""Checks that a view names the right rows: scaling a head's rows must scale its logits and change nothing else.

The factor is 2, for which floating-point products are exact, so all comparisons are bit for bit. `observe` runs the
model and returns the layer's logits before the softmax, B H T S, and its values.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from attractor.control.views import DotProduct, LatentHeads, QueryKeyHeads, Rows

FACTOR = 2.0
Observe = Callable[[], tuple[Tensor, Tensor]]


@contextmanager
def scaled(*parts: tuple[Rows | None, int], by: float = FACTOR) -> Iterator[None]:
    """Multiply the rows and biases of some heads by `by` inside the `with` block."""
    given = [(rows, head) for rows, head in parts if rows is not None]
    parameters = [p for rows, _ in given for p in (rows.weight, rows.bias) if p is not None]
    before = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for rows, head in given:
            rows.of(head).mul_(by)
            if rows.bias is not None:
                rows.bias.narrow(0, rows.starts[head], rows.width).mul_(by)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, old in zip(parameters, before, strict=True):
                parameter.copy_(old)


def without(rows: Rows | None) -> AbstractContextManager[None]:
    """Set the contribution of these rows to zero inside the `with` block."""
    return scaled(*((rows, head) for head in range(rows.n_heads if rows else 0)), by=0.0)


def unsettle(module: nn.Module) -> None:
    """Randomise all parameters, since biases of 0 and norms of 1 would hide mistakes."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))


def times(logits: Tensor, heads: list[int], by: float = FACTOR) -> Tensor:
    expected = logits.clone()
    expected[:, heads] *= by
    return expected


def equal(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def holds(view: QueryKeyHeads, observe: Observe) -> None:
    """Check for each part of the view, head by head, that scaling it has the effect of its equation on logits and
    values."""
    logits, values = observe()
    assert logits.shape[1] == view.n_heads == len(view.reads)
    assert logits.flatten(2).abs().amax(-1).gt(0).all(), "heads that are silent prove nothing"
    if isinstance(view, DotProduct):
        for head in range(view.n_heads):
            _scales(observe, view.query, head, [head])
        for key in range(view.key.n_heads):
            _scales(observe, view.key, key, _readers(view.reads, key))
    else:
        _holds_latent(view, observe)
    again, same_values = observe()
    equal(again, logits)
    equal(same_values, values)


def _holds_latent(view: LatentHeads, observe: Observe) -> None:
    """Check the view of latent attention, whose logits are a sum N + R of a content part and a position part. Each part
    is tested with the queries of the other set to zero; scaling the other's rows must then change nothing."""
    everyone = list(range(view.n_heads))
    with without(view.qr):
        for head in everyone:
            _scales(observe, view.uq, head, [head])
            _scales(observe, view.qr, head, [])
        for key in range(view.uk.n_heads):
            _scales(observe, view.uk, key, _readers(view.reads, key))
        for key in range(view.kr.n_heads if view.kr else 0):
            _scales(observe, view.kr, key, [])
        _scales(observe, view.dkv, 0, everyone, values_by=FACTOR)
    with without(view.uq):
        for head in everyone:
            _scales(observe, view.qr, head, [head])
            _scales(observe, view.uq, head, [])
        for key in range(view.uk.n_heads):
            _scales(observe, view.uk, key, [])
        for key in range(view.kr.n_heads if view.kr else 0):
            _scales(observe, view.kr, key, _readers(view.reads_rope, key))
        _scales(observe, view.dkv, 0, [], values_by=FACTOR)
    if view.dq is not None:
        _scales(observe, view.dq, 0, everyone)


def _readers(reads: tuple[int, ...], key: int) -> list[int]:
    readers = [head for head, read in enumerate(reads) if read == key]
    assert readers, f"no head reads key head {key}"
    return readers


def _scales(observe: Observe, rows: Rows | None, head: int, heads: list[int], values_by: float = 1.0) -> None:
    logits, values = observe()
    with scaled((rows, head)):
        scaled_logits, scaled_values = observe()
    equal(scaled_logits, times(logits, heads))
    equal(scaled_values, values * values_by)
