"""The attention mask, resolved once per call from the caller's True, False or boolean tensor."""

from collections.abc import MutableMapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from attractor.errors import InputError
from attractor.kernels.fallback import functorch_active


@dataclass(frozen=True)
class Mask:
    """Which query may attend to which key.

    `causal` is the square lower triangle, which fused kernels apply without a tensor. `window` is the number of keys
    that a query sees: its own position and those just before it (`score/window.py`). Any other rule is the tensor
    `allowed` (True = may attend, broadcastable to B H T S). At most one of the three is set; if none is,
    everything is allowed. A query that may attend to nothing gets a zero context.
    """

    allowed: Tensor | None = None
    causal: bool = False
    window: int | None = None

    def spelled_out(self, n_queries: int, n_keys: int, device: torch.device) -> Tensor | None:
        """Return the mask as a tensor, or None if everything is allowed."""
        if self.causal or self.window is not None:
            return lower_triangle(n_queries, n_keys, device, self.window)
        return self.allowed


def lower_triangle(n_queries: int, n_keys: int, device: torch.device, window: int | None = None) -> Tensor:
    """Return the causal mask T S for the last `n_queries` of `n_keys` positions.

    With a window, a query sees its own position and the `window` - 1 positions before it."""
    causal = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device).tril(n_keys - n_queries)
    return causal if window is None else causal.triu(n_keys - n_queries - window + 1)


def _remedy(mask: Tensor, square: tuple[int, int]) -> str:
    """Say why such a mask is refused, and what to give in its place."""
    if mask.dtype.is_floating_point:
        return "some mechanisms have no logits to which a mask could be added; give `mask == 0` for an additive mask"
    if mask.dim() == 4 and tuple(mask.shape[2:]) == square and mask.shape[1] > 1:
        return "all heads share one mask, since stages may mix or halve heads; give mask[:, :1], or a layer for each"
    if mask.dtype != torch.bool:
        return "give `mask != 0` or `mask == 0`, whichever means that a position may be attended to"
    return "a mask of keys alone (B S) gets such a shape by mask[:, None, None, :].expand(-1, 1, T, -1)"


def resolve_mask(
    causal_mask: bool | Tensor, batch: int, n_queries: int, n_keys: int, device: torch.device, window: int | None = None
) -> Mask:
    """Return the caller's mask as a `Mask`. There are more keys than queries if a cache holds the past.

    With a window, a cache holds no keys before the window of the first query, and the mask has no columns for them."""
    n_held = n_keys if window is None else min(n_keys, window - 1 + n_queries)
    is_narrow = window is not None and window < n_held
    if isinstance(causal_mask, Tensor):
        allowed = _checked(causal_mask, batch, n_queries, n_keys)
        if window is not None:
            _refuse_later_keys(causal_mask, window)
            allowed = allowed[..., n_keys - n_held :]
        if is_narrow:
            allowed = allowed & lower_triangle(n_queries, n_held, device, window)
        return Mask(allowed=allowed)
    if not isinstance(causal_mask, bool):
        name = f"{type(causal_mask).__module__}.{type(causal_mask).__qualname__}"  # numpy has a bool, too
        raise InputError(
            f"causal_mask must be True, False or a boolean tensor, got {name.removeprefix('builtins.')}; give False "
            "where every position may attend to every other"
        )
    if window is not None and not causal_mask:
        raise InputError(f"causal_mask must be True or a causal tensor under window={window}, got False; {NO_WINDOW}")
    if not causal_mask or n_queries == 1:  # the newest position may see all of the past
        return Mask()
    if is_narrow:
        return Mask(window=window)
    if n_queries == n_held:
        return Mask(causal=True)
    return Mask(allowed=lower_triangle(n_queries, n_held, device))


NO_WINDOW = "a window holds only past positions; leave window out to attend to later ones"


def _checked(mask: Tensor, batch: int, n_queries: int, n_keys: int) -> Tensor:
    """Return a boolean mask T S or B 1 T S."""
    shape = tuple(mask.shape)
    square = (n_queries, n_keys)
    fits = shape in (square, (batch, *square), (1, 1, *square), (batch, 1, *square))
    if mask.dtype != torch.bool or not fits:
        raise InputError(
            "causal_mask must be boolean (True = may attend) of shape T S, B T S or B 1 T S with "
            f"B={batch}, T={n_queries}, S={n_keys}, got {mask.dtype} of shape {shape}; " + _remedy(mask, square)
        )
    return mask.unsqueeze(1) if mask.dim() == 3 else mask


_causal: MutableMapping[Tensor, int] = WeakIdKeyDictionary()  # checked masks without later keys, and their versions


def _refuse_later_keys(mask: Tensor, window: int) -> None:
    """Refuse a mask that contradicts the window, where values can be read.

    On a GPU, reading a value makes the host wait, so only the first layer that gets a mask checks it."""
    if mask.is_meta or torch.compiler.is_compiling() or functorch_active():
        return
    if mask.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    version = -1 if mask.is_inference() else mask._version  # grows with every change in place
    if _causal.get(mask) == version:
        return
    if mask.triu(mask.shape[-1] - mask.shape[-2] + 1).any():
        raise InputError(f"causal_mask must allow no later key under window={window}, got one that does; {NO_WINDOW}")
    _causal[mask] = version
