"""Observe the inputs of an attention layer's score: queries and keys after coupling, norms and position, their scale,
and the mask. Observation does not change the computation by a bit.

An `Attention` layer passes these inputs to its `score` module, which gets a hook. A Hugging Face layer looks up its
attention function (eager, sdpa, flex or flash) in one table; while such a layer is observed, the functions of the table
are wrapped. Copies of observed modules are not observed. The last `remove()` restores everything.

A module that was compiled before is not observed: observe first, then compile or call it.
"""

import sys
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from attractor.attention import Attention
from attractor.attention.mask import Mask, lower_triangle
from attractor.errors import InputError

MaskRule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # of batch, head, query and key indices that broadcast


@dataclass(frozen=True, eq=False)
class ScoreInputs:
    """logits = scale q k' for H query heads, of which head h reads key head h J // H."""

    q: Tensor  # B H T K
    k: Tensor  # B J S K
    scale: float
    causal: bool = False  # the square lower triangle, and `allowed` is None
    allowed: Tensor | MaskRule | None = None  # broadcasts to B H T S: boolean, or added to logits; None allows all

    @property
    def nbytes(self) -> int:
        return self.q.nbytes + self.k.nbytes

    @property
    def reads(self) -> Tensor:
        """The key head of each query head."""
        n_queries, n_keys = self.q.shape[1], self.k.shape[1]
        return torch.arange(n_queries, device=self.q.device) * n_keys // n_queries

    def keys_of(self, start: int, stop: int, heads: Tensor) -> tuple[int, int, Tensor | None]:
        """Return (first, last, mask) for the queries from `start` to `stop`.

        They attend to all keys below `first`, by the mask to those from `first` to `last`, and to none beyond."""
        n_keys, device = self.k.shape[2], self.q.device
        if self.causal:
            return start, stop, lower_triangle(stop - start, stop - start, device)
        if self.allowed is None:
            return n_keys, n_keys, None
        if isinstance(self.allowed, Tensor):
            allowed = self.allowed if self.allowed.shape[-2] == 1 else self.allowed[..., start:stop, :]
            if allowed.ndim == 4 and allowed.shape[1] > 1:
                allowed = allowed[:, heads]
            if allowed.dtype != torch.bool:
                allowed = allowed > torch.finfo(allowed.dtype).min / 2
            return 0, n_keys, allowed
        batch = torch.arange(self.q.shape[0], device=device).view(-1, 1, 1, 1)
        queries = torch.arange(start, stop, device=device).view(-1, 1)
        return 0, n_keys, self.allowed(batch, heads.view(-1, 1, 1), queries, torch.arange(n_keys, device=device))


ScoreCallback = Callable[[nn.Module, ScoreInputs], None]  # gets the observed module as well
_CALLBACKS: MutableMapping[nn.Module, list[ScoreCallback]] = WeakKeyDictionary()


def refuse_unseen(name: str, attention: nn.Module) -> None:
    """Refuse a module whose scores cannot be observed."""
    homes = (vars(sys.modules[kind.__module__]) for kind in type(attention).__mro__)
    if not isinstance(attention, Attention) and not any("ALL_ATTENTION_FUNCTIONS" in home for home in homes):
        raise InputError(
            f"'{name}' must attend through a function of Hugging Face's table, or be a layer of attractor, for its "
            f"logits to be seen, but {type(attention).__name__} is neither: call "
            "transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS.get_interface(...) in it, as LlamaAttention does"
        )


class ScoreObserver:
    """Pass the score inputs of the attention module to `callback` at every call, until `remove()`."""

    def __init__(self, attention: nn.Module, callback: ScoreCallback) -> None:
        has_score = isinstance(attention, Attention)
        self.module = cast(nn.Module, attention.score) if has_score else attention
        self.callback = callback
        callbacks = _CALLBACKS.setdefault(self.module, [])
        callbacks.append(callback)
        if not has_score:
            _wrap_table()
        elif len(callbacks) == 1:
            self.module.register_forward_pre_hook(_score_hook)

    def remove(self) -> None:
        callbacks = _CALLBACKS.get(self.module, [])
        callbacks[:] = [callback for callback in callbacks if callback is not self.callback]
        if callbacks:
            return
        _CALLBACKS.pop(self.module, None)
        hooks = self.module._forward_pre_hooks
        for number in [number for number, hook in hooks.items() if hook is _score_hook]:
            del hooks[number]
        if not any(_score_hook not in module._forward_pre_hooks.values() for module in _CALLBACKS):
            _restore_table()


@torch.compiler.disable
def _score_hook(score: nn.Module, arguments: tuple[Tensor, Tensor, Tensor, Mask, Tensor]) -> None:
    q, k, _, mask, _ = arguments
    allowed = mask.allowed if mask.window is None else window_rule(q.shape[2], k.shape[2], mask.window)
    scored = ScoreInputs(q.detach(), k.detach(), cast(float, score.scale), mask.causal, allowed)
    for callback in _CALLBACKS.get(score, ()):
        callback(score, scored)


# The original look-up of Hugging Face's table and the wrapped one in its place; empty while no layer is observed.
_WRAPPED: list[tuple[Callable[..., Any], Callable[..., Any]]] = []


def _wrap_table() -> None:
    if _WRAPPED:
        return
    from transformers.modeling_utils import AttentionInterface

    look_up = AttentionInterface.get_interface

    def get_interface(table: AttentionInterface, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        attend = look_up(table, name, default)

        def observed_attend(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *args: Any, **rest: Any
        ) -> Any:
            _observe_call(name, module, query, key, attention_mask, rest)
            return attend(module, query, key, value, attention_mask, *args, **rest)

        return observed_attend

    _WRAPPED.append((look_up, get_interface))
    cast(Any, AttentionInterface).get_interface = get_interface


def _restore_table() -> None:
    if not _WRAPPED:
        return
    from transformers.modeling_utils import AttentionInterface

    look_up, wrapped = _WRAPPED[0]
    if AttentionInterface.get_interface is wrapped:  # someone else may have wrapped it again, and still call this one
        cast(Any, AttentionInterface).get_interface = look_up
        _WRAPPED.clear()


@torch.compiler.disable
def _observe_call(name: str, module: nn.Module, query: Tensor, key: Tensor, mask: Any, rest: dict[str, Any]) -> None:
    callbacks = _CALLBACKS.get(module)
    if not callbacks:
        return
    q, k = query.detach(), key.detach()
    scaling = rest.get("scaling")
    scale = q.shape[-1] ** -0.5 if scaling is None else float(scaling)
    scored = _masked_inputs(name, module, q, k, scale, mask, rest)
    for callback in callbacks:
        callback(module, scored)


def _masked_inputs(
    name: str, module: nn.Module, q: Tensor, k: Tensor, scale: float, mask: Any, rest: dict[str, Any]
) -> ScoreInputs:
    """Translate the mask, whose form depends on the attention function.

    It is added or boolean (B H T S), a function (flex), or padding (B S) with a window (flash). Without a mask, eager
    and flex attend to everything; the other functions follow `is_causal`."""
    if hasattr(mask, "mask_mod"):
        return ScoreInputs(q, k, scale, allowed=mask.mask_mod)
    if isinstance(mask, Tensor) and mask.ndim == 4:
        return ScoreInputs(q, k, scale, allowed=mask[..., : k.shape[2]])
    is_causal = rest.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal) and q.shape[2] > 1
    if name in ("eager", "flex_attention"):
        return ScoreInputs(q, k, scale)
    window = rest.get("sliding_window") if name.startswith("flash") else None
    if mask is None and window is None:
        return ScoreInputs(q, k[:, :, : q.shape[2]] if causal else k, scale, causal)
    return ScoreInputs(q, k, scale, allowed=_flash_rule(mask, causal, window))


def window_rule(n_queries: int, n_keys: int, window: int) -> MaskRule:
    """Return the rule of a window for the last queries of so many positions."""

    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = query + (n_keys - n_queries) - key
        return (distance >= 0) & (distance < window)

    return allowed


def _flash_rule(is_token: Tensor | None, causal: bool, window: int | None) -> MaskRule:
    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        rule = query >= key if causal else torch.ones_like(query >= key)
        if window is not None:
            rule = rule & (query - key < window)
        if is_token is not None:
            rule = rule & (is_token[batch, key] != 0) & (is_token[batch, query] != 0)
        return rule

    return allowed
