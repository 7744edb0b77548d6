"""Observe what an attention layer scores: queries and keys as they enter the dot product, their scale, and the mask.

Observation does not change the computation by a bit.

    part    a module inside the layer computes the scores, and gets a hook: `score` of `Attention` layers,
            `inner_attention` of torchtitan, `core_attention` of Megatron, `attend` of x-transformers; torch's own
            MultiheadAttention, which may score in a fused function, is such a part itself
    table   a Hugging Face layer looks up its attention function (eager, sdpa, flex or flash) in one table, whose
            functions are wrapped while such a layer is observed
    call    any other layer runs its forward pass under a mode that sees calls of scaled_dot_product_attention
    report  the layer's code, or a hook on it, calls `observe`

Copies of observed modules are not observed. The last `remove()` restores everything. A module that was compiled before
is not observed: observe first, then compile or call it.
"""

import inspect
import sys
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, cast
from weakref import WeakKeyDictionary, finalize, ref

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attractor.attention import Attention
from attractor.attention.foreign_projections import PROJECTIONS, REPLACEMENT, SCORING_PARTS
from attractor.attention.mask import Mask, lower_triangle
from attractor.attention.score.uniform import UniformScore
from attractor.errors import InputError
from attractor.kernels.precision import without_autocast

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

    def logits(self, heads: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of these heads, in fp32 or wider, and where they are allowed, both B H T S."""
        wide = torch.promote_types(self.q.dtype, torch.float32)
        with without_autocast(self.q):
            logits = self.q[:, heads].to(wide) @ self.k[:, self.reads[heads]].to(wide).mT * self.scale
        first, last, mask = self.keys_of(0, logits.shape[2], heads)
        allowed = torch.zeros_like(logits, dtype=torch.bool)
        allowed[..., :first] = True
        if mask is not None:
            allowed[..., first:last] = mask
        return logits, allowed

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
            return 0, n_keys, _attends(allowed)
        batch = torch.arange(self.q.shape[0], device=device).view(-1, 1, 1, 1)
        queries = torch.arange(start, stop, device=device).view(-1, 1)
        return 0, n_keys, self.allowed(batch, heads.view(-1, 1, 1), queries, torch.arange(n_keys, device=device))


MASKED = -5e3  # a number below this, when added to a logit, leaves a weight of 0; masks have -1e4, -1e9 or -inf
ScoreCallback = Callable[[nn.Module, ScoreInputs], None]  # gets the observed module as well
_CALLBACKS: MutableMapping[nn.Module, list[ScoreCallback]] = WeakKeyDictionary()
SDPA = nn.functional.scaled_dot_product_attention


def observe(
    module: nn.Module,
    q: Tensor,
    k: Tensor,
    scale: float | None = None,
    causal: bool = False,
    mask: Any = None,
) -> None:
    """Tell the controls of an attention module which queries (B H T K) and keys (B J S K) it scores.

    Call this in the module's forward pass, or in a hook, if the module computes its logits scale q k' itself. H is a
    multiple of J; a query head reads key head h J // H. The scale is K^-0.5 by default. The mask is boolean (true where
    a query may attend), added to the logits, or a BlockMask of flex attention; it broadcasts to B H T S. With `causal`,
    query t attends to keys 0 to t at most. Without a control on the module, this does nothing.
    """
    if module not in _CALLBACKS:
        return
    if q.ndim != 4 or k.ndim != 4 or q.shape[-1] != k.shape[-1] or q.shape[1] % k.shape[1]:
        raise InputError(
            f"q and k must have the shapes B H T K and B J S K, where J divides H, got {tuple(q.shape)} and "
            f"{tuple(k.shape)}; transpose them as for scaled_dot_product_attention"
        )
    _report(module, _score_inputs(q, k, scale, causal, mask))


@torch.compiler.disable
def _report(module: nn.Module, scored: ScoreInputs) -> None:
    for callback in _CALLBACKS.get(module, ()):
        callback(module, scored)


def _score_inputs(q: Tensor, k: Tensor, scale: float | None, causal: bool, mask: Any, shift: int = 0) -> ScoreInputs:
    """Query t stands at position t + shift of the keys."""
    q, k = q.detach(), k.detach()
    n_queries, n_keys = q.shape[2], k.shape[2]
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    mask = getattr(mask, "mask_mod", mask)
    if isinstance(mask, Tensor):
        mask = mask[(None,) * (4 - mask.ndim)].expand(-1, -1, -1, n_keys)
    if causal and mask is None and not shift and n_queries <= n_keys:
        return ScoreInputs(q, k[:, :, :n_queries], scale, causal=True)
    return ScoreInputs(q, k, scale, allowed=_and_causal(mask, shift) if causal else mask)


def _attends(mask: Tensor, unless: bool = False) -> Tensor:
    """Return where a mask lets a query attend: one that is added to the logits, true there, or true elsewhere."""
    if mask.dtype != torch.bool:
        return mask > MASKED
    return ~mask if unless else mask


def _and_causal(mask: Tensor | MaskRule | None, shift: int) -> MaskRule:
    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        rule = query + shift >= key
        if mask is None:
            return rule
        if not isinstance(mask, Tensor):
            return rule & mask(batch, head, query, key)
        sizes = mask.shape
        part = mask[*(0 if n == 1 else i for i, n in zip((batch, head, query, key), sizes, strict=True))]
        return rule & _attends(part)

    return allowed


def refuse_unseen(name: str, attention: nn.Module) -> None:
    """Refuse a module whose scores can certainly not be observed."""
    if _scoring_part(attention) is not None or uses_table(attention):
        return
    parts = list(attention.modules())
    if any(part._forward_hooks or part._forward_pre_hooks for part in parts):  # these may call `observe`
        return
    kinds = {kind for part in parts for kind in type(part).__mro__ if not kind.__module__.startswith("torch.nn.")}
    if not any(_may_score(kind) for kind in kinds - {object}):
        raise InputError(
            f"'{name}' must attend through torch's scaled_dot_product_attention or a function of Hugging Face's table, "
            f"for its logits to be seen, but the code of {type(attention).__name__} calls neither: add "
            "`attractor.control.observe(self, q, k, scale=..., causal=True)` to its forward pass"
        )


def _may_score(kind: type) -> bool:
    """Whether the code of the class's module may score where it is seen; true where no code can be read."""
    try:
        source = inspect.getsource(sys.modules[kind.__module__])
    except (OSError, TypeError):
        return True
    return "scaled_dot_product_attention" in source or "observe(" in source


def uses_table(attention: nn.Module) -> bool:
    """Whether the module's code knows Hugging Face's table of attention functions."""
    return any("ALL_ATTENTION_FUNCTIONS" in vars(sys.modules[kind.__module__]) for kind in type(attention).__mro__)


class ScoreObserver:
    """Pass the score inputs of the attention module to `callback` at every call, until `remove()`."""

    def __init__(self, attention: nn.Module, callback: ScoreCallback) -> None:
        part = _scoring_part(attention)
        module = attention if part is None else part[0]
        self._module = ref(module)  # callbacks may hold this observer, which must not keep the model alive
        self.callback = callback
        callbacks = _CALLBACKS.setdefault(module, [])
        callbacks.append(callback)
        if part is None and uses_table(attention):
            _wrap_table()
            finalize(module, _restore_unused_table)
        elif len(callbacks) == 1 and part is not None:
            module.register_forward_pre_hook(part[1], with_kwargs=True)
        elif len(callbacks) == 1:
            module.forward = partial(_observed_forward, module, module.forward)

    def remove(self) -> None:
        if (module := self._module()) is None:
            return
        callbacks = _CALLBACKS.get(module, [])
        callbacks[:] = [callback for callback in callbacks if callback is not self.callback]
        if callbacks:
            return
        _CALLBACKS.pop(module, None)
        hooks = module._forward_pre_hooks
        for number in [number for number, hook in hooks.items() if hook in PART_HOOKS]:
            del hooks[number], module._forward_pre_hooks_with_kwargs[number]
        _restore_forward(module)
        _restore_unused_table()


# A layer that runs its forward pass under a mode. The pass is not compiled, as a compiled graph calls no mode.
class _ScoreCalls(TorchFunctionMode):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is SDPA:
            _observe_sdpa(self.module, *args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def _observe_sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> None:
    if query.ndim == 4:  # otherwise nothing says which dimension counts heads
        _report(module, _score_inputs(query, key, scale, is_causal, attn_mask))


@torch.compiler.disable
def _observed_forward(module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if module not in _CALLBACKS:  # a copy
        return forward(*args, **kwargs)
    with _ScoreCalls(module):
        return forward(*args, **kwargs)


def _restore_forward(module: nn.Module) -> None:
    wrapped = vars(module).get("forward")
    if isinstance(wrapped, partial) and wrapped.func is _observed_forward:
        _, forward = wrapped.args
        del module.forward
        if forward != module.forward:  # someone else's wrapper of it
            module.forward = forward


# Parts that compute the scores of a layer, each with the hook that reads its arguments.
@torch.compiler.disable
def _score_hook(score: nn.Module, args: tuple[Tensor, Tensor, Tensor, Mask, Tensor], kwargs: Any) -> None:
    q, k, _, mask, _ = args
    allowed: Tensor | MaskRule | None = mask.allowed
    if mask.window is not None:
        allowed = positions_rule(window=mask.window, shift=k.shape[2] - q.shape[2])
    _report(score, ScoreInputs(q.detach(), k.detach(), cast(float, score.scale), mask.causal, allowed))


@torch.compiler.disable
def _torchtitan_hook(inner: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
    """Read q and k, B T H K, and the mask of flex attention, variable-length attention, or torch's own."""
    q, k = (x.transpose(1, 2) for x in args[:2])
    mask: Any = kwargs.get("attention_masks")
    if hasattr(mask, "cu_seq_q"):
        mask = _packed_rule(mask.cu_seq_q, q.shape[2], inner.window_size)
    causal = mask is None and kwargs.get("is_causal", True)
    _report(inner, _score_inputs(q, k, kwargs.get("scale"), causal, mask))


def _packed_rule(starts: Tensor, length: int, window: Any) -> MaskRule:
    """Return the rule of documents that follow one another in the flattened batch, and of a window (left, right)."""
    left, right = window

    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        of_query, of_key = (torch.bucketize(batch * length + x, starts, right=True) for x in (query, key))
        near = (left < 0) | (query - key <= left)
        return (of_query == of_key) & near & ((right < 0) | (key - query <= right))

    return allowed


@torch.compiler.disable
def _megatron_hook(core: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Read query and key, T B H K, and the mask, which is true where a query must not attend."""
    if kwargs.get("packed_seq_params") is not None:
        return
    q, k = (x.permute(1, 2, 0, 3) for x in args[:2])
    mask = args[3] if len(args) > 3 else kwargs.get("attention_mask")
    kind = kwargs.get("attn_mask_type") or getattr(core, "attn_mask_type", None)
    # Local attention scales once more in its softmax, where it divides the logits by the layer's number.
    scale = core.softmax_scale * (getattr(getattr(core, "scale_mask_softmax", None), "scale", None) or 1)
    causal = "causal" in getattr(kind, "name", "")
    _report(core, _score_inputs(q, k, scale, causal, None if mask is None else ~mask))


@torch.compiler.disable
def _x_transformers_hook(attend: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Read q and k, B H T K, and the mask, which is true where a query may attend, of keys or of pairs."""
    q, k = args[:2]
    mask, causal = kwargs.get("mask"), kwargs.get("causal")
    if mask is not None and mask.ndim == 2:
        mask = mask[:, None, None]
    causal = (attend.causal if causal is None else causal) and q.shape[2] > 1
    _report(attend, _score_inputs(q, k, attend.scale, causal, mask, shift=k.shape[2] - q.shape[2]))


@torch.compiler.disable
@torch.no_grad()
def _torch_hook(attention: nn.MultiheadAttention, args: Any, kwargs: dict[str, Any]) -> None:
    """Project the query and key of torch's own attention, and read its masks, true where a query may not attend."""
    named = ("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask")
    given = dict(zip(named, args, strict=False)) | kwargs
    inputs, padding, pairs = (given["query"], given["key"]), given.get("key_padding_mask"), given.get("attn_mask")
    allowed: list[Tensor] = []
    if inputs[0].is_nested:  # what TransformerEncoder makes of padded batches in evaluation
        lengths = torch.tensor([len(x) for x in inputs[0].unbind()], device=inputs[0].device)
        inputs = tuple(x.to_padded_tensor(0.0) for x in inputs)
        is_token = torch.arange(inputs[0].shape[1], device=lengths.device) < lengths[:, None, None]
        allowed.append((is_token & is_token.mT)[:, None])
    elif inputs[0].ndim == 2:
        inputs = tuple(x[None] for x in inputs)
    elif not attention.batch_first:
        inputs = tuple(x.transpose(0, 1) for x in inputs)
    weights = cast(Tensor, attention.in_proj_weight).chunk(3)
    biases = (None, None) if attention.in_proj_bias is None else attention.in_proj_bias.chunk(3)
    q, k = (
        nn.functional.linear(x, weight, bias).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)
        for x, weight, bias in zip(inputs, weights, biases, strict=False)
    )
    if padding is not None:
        allowed.append(_attends(padding, unless=True).reshape(-1, 1, 1, k.shape[2]))
    if pairs is not None:  # T S, or those of all heads of the batch
        pairs = _attends(pairs, unless=True)
        allowed.append(pairs.unflatten(0, (-1, attention.num_heads)) if pairs.ndim == 3 else pairs[None, None])
    mask = reduce(torch.logical_and, allowed) if allowed else None
    _report(attention, _score_inputs(q, k, None, False, mask))


PART_HOOKS = (_torchtitan_hook, _megatron_hook, _x_transformers_hook, _score_hook, _torch_hook)


def _scoring_part(attention: nn.Module) -> tuple[nn.Module, Callable[..., None]] | None:
    """Return the part that computes the layer's scores and its hook, or None where no such part is known."""
    if isinstance(attention, Attention):
        return attention.score, _score_hook
    if type(attention).forward is nn.MultiheadAttention.forward:
        return attention, _torch_hook
    parts = dict(attention.named_children())
    for (library, part), hook in zip(SCORING_PARTS.items(), PART_HOOKS, strict=False):
        if PROJECTIONS[library].out in parts and part in parts:
            return parts[part], hook
    return None


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


def _restore_unused_table() -> None:
    if not _WRAPPED or any(uses_table(module) for module in _CALLBACKS):
        return
    from transformers.modeling_utils import AttentionInterface

    look_up, wrapped = _WRAPPED[0]
    if AttentionInterface.get_interface is wrapped:  # someone else may have wrapped it again, and still call this one
        cast(Any, AttentionInterface).get_interface = look_up
        _WRAPPED.clear()


@torch.compiler.disable
def _observe_call(name: str, module: nn.Module, query: Tensor, key: Tensor, mask: Any, rest: dict[str, Any]) -> None:
    if module not in _CALLBACKS:
        return
    q, k = query.detach(), key.detach()
    scaling = rest.get("scaling")
    scale = q.shape[-1] ** -0.5 if scaling is None else float(scaling)
    replaced: Any = getattr(module, REPLACEMENT, None)
    if replaced is not None and isinstance(replaced.score, UniformScore):
        return
    if replaced is not None and replaced.own_scale is not None:
        scale = replaced.own_scale
    _report(module, masked_inputs(name, module, q, k, scale, mask, rest))


def masked_inputs(
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
    return ScoreInputs(q, k, scale, allowed=positions_rule(causal, window, mask))


def positions_rule(
    causal: bool = True, window: int | None = None, is_token: Tensor | None = None, shift: int = 0
) -> MaskRule:
    """Return the rule of a window and of padding (B S). Query t stands at position t + shift of the keys."""

    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        distance = query + shift - key
        rule = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
        if window is not None:
            rule = rule & (distance < window)
        if is_token is not None:
            rule = rule & (is_token[batch, key] != 0) & (is_token[batch, query] != 0)
        return rule

    return allowed
