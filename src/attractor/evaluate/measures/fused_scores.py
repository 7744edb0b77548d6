"""Observe the score inputs of attention modules that compute their softmax themselves: those of Falcon and BLOOM.

Such a module projects queries, keys and values with one matrix, `query_key_value`, and does not use the table of
attention functions of transformers. Its score inputs follow from the output of that matrix and from its arguments:

    Falcon, rotary    logits = q k' / sqrt(K) + mask,    q and k rotated
    Falcon, ALiBi     logits = q k' / sqrt(K) + mask,    which contains ALiBi / sqrt(K); eager attention adds it again
    BLOOM             logits = q k' / sqrt(K) + ALiBi + mask

Falcon has one key head (`multi_query`), a key head for each group (`new_decoder_architecture`), or one for each query
head. Whether its MLP runs in parallel does not matter here. A call with a cache is not observed, since its keys are not
those of one projection.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from attractor.attention.foreign_projections import PROJECTIONS
from attractor.control.score_inputs import ScoreCallback, ScoreInputs

Arguments = dict[str, Any]


class FusedObserver:
    """Pass the score inputs to `callback` at every call during which `is_active()`, until `remove()`."""

    def __init__(self, attention: nn.Module, callback: ScoreCallback, is_active: Callable[[], bool]) -> None:
        self.attention, self.callback, self.is_active = attention, callback, is_active
        self._signature = inspect.signature(attention.forward)
        self._arguments: Arguments = {}
        self._hooks = [
            attention.register_forward_pre_hook(self._note_arguments, with_kwargs=True),
            attention.get_submodule(PROJECTIONS["gpt-neox"].query).register_forward_hook(self._observe),
        ]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _note_arguments(self, _: nn.Module, args: tuple[Any, ...], kwargs: Arguments) -> None:
        self._arguments = self._signature.bind(*args, **kwargs).arguments

    def _observe(self, _: nn.Module, __: tuple[Any, ...], projected: Tensor) -> None:
        arguments, self._arguments = self._arguments, {}
        if self.is_active() and arguments.get("layer_past") is None:
            read = READERS[type(self.attention).__name__]
            self.callback(self.attention, read(self.attention, projected.detach(), arguments))


def _falcon(attention: Any, projected: Tensor, arguments: Arguments) -> ScoreInputs:
    q, k, _ = (heads.transpose(1, 2) for heads in attention._split_heads(projected))
    alibi, mask = arguments.get("alibi"), arguments.get("attention_mask")
    if alibi is None:
        q, k = sys.modules[type(attention).__module__].apply_rotary_pos_emb(q, k, *arguments["position_embeddings"])
    elif attention.config._attn_implementation != "sdpa" or arguments.get("output_attentions"):
        bias = alibi.view(len(q), q.shape[1], 1, -1) * attention.inv_norm_factor
        mask = bias if mask is None else mask + bias
    return ScoreInputs(q, k, attention.inv_norm_factor, causal=mask is None and q.shape[2] > 1, allowed=mask)


def _bloom(attention: Any, projected: Tensor, arguments: Arguments) -> ScoreInputs:
    q, k, _ = attention._reshape(projected)
    bias = arguments["alibi"].view(len(q), q.shape[1], 1, -1)
    mask = arguments.get("attention_mask")
    return ScoreInputs(q, k, attention.inv_norm_factor, allowed=bias if mask is None else mask + bias)


READERS: dict[str, Callable[[Any, Tensor, Arguments], ScoreInputs]] = {
    "FalconAttention": _falcon,
    "BloomAttention": _bloom,
}
