"""Observe tensors inside a model: `tap(name, x)` returns x, and `with capture(name, ...)` records the tapped tensors.

A tap changes nothing, and without a listener it costs one check of an empty list. Tensors that are expensive to form,
such as the logits of a fused attention, are formed beside the computation, and only while something is `listening`.

    with capture("weights") as seen:
        model(tokens)
    seen["weights"]     # one tensor per call, in order; they carry gradients unless the call ran under no_grad
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from attractor.errors import InputError, require_known

TAPS = {
    "q": "projected queries, B H T K",
    "k": "projected keys, B H T K",
    "q_coupled": "queries as they are scored: after coupling, normalisation and position",
    "k_coupled": "keys as they are scored: after coupling, normalisation and position",
    "logits": "scaled scores before soft-cap and mask, B H T S",
    "weights": "attention weights of every softmax map, B H T S, before dropout",
    "log_decay": "log of what is kept of a key head's state at each position, B J T",
    "slow": "FastSlow's slow state as it leaves the slow path, once a round, B K D",
    "residual": "distance to the equilibrium of FastSlow's Post, mean |F(z) - z| / |z| by evaluation, once a round",
    "token_residual": "the same for each token's result, as the equilibrium's tolerance judges it, once a round, B T",
}

Seen = dict[str, list[Tensor]]
_listeners: list[Seen] = []


def tap(name: str, x: Tensor) -> Tensor:
    """Pass `x` to every listener of `name`, and return `x` unchanged."""
    for seen in _listeners:
        if name in seen:
            seen[name].append(x)
    return x


def listening(*names: str) -> bool:
    """Return whether there is a listener for any of these names, or for any name at all if none is given."""
    return any(name in seen for seen in _listeners for name in names or seen)


@contextmanager
def capture(*names: str) -> Iterator[Seen]:
    """Record every tensor that passes through the named taps while the block runs."""
    for name in names:
        require_known("tap", name, TAPS, see="attractor.attention.hooks.TAPS describes all")
    seen: Seen = {name: [] for name in names}
    _listeners.append(seen)
    try:
        yield seen
    finally:
        # By identity: two captures of the same names may hold equal dictionaries.
        _listeners[:] = [other for other in _listeners if other is not seen]


def attention_maps(model: nn.Module, tokens: Tensor) -> list[Tensor]:
    """Return the softmax maps of every layer, B H T S each (differential attention: B 2H T S, all A_1 before all A_2).

    The model runs in its current mode: call `model.eval()` and `torch.no_grad()` first if the measurement needs them.
    """
    with capture("weights") as seen:
        model(tokens)
    if not seen["weights"]:
        raise InputError("model must have attention layers of attractor to give maps, found no tapped weights")
    return seen["weights"]


def queries_and_keys(model: nn.Module, tokens: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the projected queries and keys of every layer, before coupling and position, B H T K each."""
    with capture("q", "k") as seen:
        model(tokens)
    return list(zip(seen["q"], seen["k"], strict=True))
