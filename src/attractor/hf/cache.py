"""Wrap the caches of attractor models in Hugging Face's interface, for `generate`, beam search and assisted generation.

The cache of every family consists of tensors whose first dimension is the batch. So rows of the batch are selected in
all of them alike, whatever they hold.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers.cache_utils import Cache as HuggingFaceCache
from transformers.modeling_outputs import BaseModelOutputWithPast

from attractor.errors import InputError
from attractor.models.language_model import LanguageModel, ModelCache
from attractor.models.transformer import TransformerCache

# What the installed transformers calls a cache, in arguments and in outputs: 5.24 renamed it.
CACHE_NAME = "cache" if "cache" in BaseModelOutputWithPast.__dataclass_fields__ else "past_key_values"


class AttractorCache(HuggingFaceCache):
    def __init__(self, model: LanguageModel) -> None:
        super().__init__(layers=[])  # keys and values are held by the model's own cache instead
        self.held: ModelCache = model.new_cache()
        self.config = model.config

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.held.length

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1  # the cache grows without a limit

    @property
    def is_croppable(self) -> bool:
        return isinstance(self.held, TransformerCache) and all(layer.window is None for layer in self.held.layers)

    @property
    def is_linear(self) -> list[bool]:
        """Since transformers 5.24, `generate` gives only the tokens after the cache unless all of these are true.

        Without layers, which are the model's own, all of them would be."""
        return [False]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self._change(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_select_indices(self, indices: Tensor) -> None:
        self._change(lambda x: x[indices])

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._change(lambda x: x.repeat_interleave(repeats, dim=0))

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens. Their number is given as a negative one.

        The oldest transformers that are supported give the number of tokens to keep, as a positive one."""
        if tokens_to_remove > 0:
            tokens_to_remove = min(tokens_to_remove - self.held.length, 0)
        if tokens_to_remove == 0:
            return
        if not isinstance(self.held, TransformerCache):
            raise InputError(
                f"{CACHE_NAME} must be of a Transformer to forget tokens again, as assisted generation does, got one "
                f"of {type(self.held).__name__}, whose blocks cannot be undone; generate without an assistant"
            )
        if tokens_to_remove < -self.held.length:
            raise InputError(
                f"tokens_to_remove must be at least {-self.held.length}, got {tokens_to_remove}; the number of tokens "
                "to forget is given as a negative one, and the number to keep as a positive one"
            )
        length = self.held.length + int(tokens_to_remove)  # transformers 5.17 gives a tensor
        for layer in self.held.layers:  # before any of them changes
            layer.require_croppable(length)
        for layer in self.held.layers:
            layer.crop(length)
        self.held.length = length
        if self.held.real is not None:
            self.held.real = self.held.real[:, :length]

    def reset(self) -> NoReturn:
        raise InputError(f"{CACHE_NAME} must be made anew to start again: AttractorCache(model.model)")

    def update(self, *_: Any, **__: Any) -> NoReturn:
        raise InputError(f"{CACHE_NAME} must be of the model it is given to; leave it out to start with an empty one")

    def _change(self, rows: Callable[[Tensor], Tensor]) -> None:
        with torch.no_grad():
            _with_rows(self.held, rows)


def _with_rows(held: Any, rows: Callable[[Tensor], Tensor]) -> Any:
    """Apply `rows` to every tensor of the cache, in place."""
    if isinstance(held, Tensor):
        return rows(held)
    if isinstance(held, list):
        return [_with_rows(item, rows) for item in held]
    if isinstance(held, int) or held is None:
        return held
    for name, value in list(vars(held).items()):
        setattr(held, name, _with_rows(value, rows))
    return held
