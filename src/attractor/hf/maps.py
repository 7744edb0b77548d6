"""Layers of Hugging Face's causal models as maps of the residual stream: h -> Layer_l(h), one after another.

The layers are found by structure: the one list of modules that is as long as the model's configuration says it is deep
and lies in no other (`model.layers`, `transformer.h`, `gpt_neox.layers`, ...). What else they are called with, such as
masks and rotations, is what the model itself gives them in one pass over the tokens, without a cache. The states are
its `output_hidden_states`, but for the last one, which those show after the last norm; what is done to the stream
between layers would be in no map, so a model that does anything there is refused.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attractor.errors import InputError
from attractor.models.maps import LayerMaps, StateMap, Step, require_evaluation

STREAM = "hidden_states"  # the argument, where it has a name


def layer_maps(model: nn.Module, tokens: Tensor, layers: str | None = None, **inputs: Any) -> LayerMaps:
    """`layers` names the list of layers where it is not found; `inputs` go to the model, as an attention_mask does."""
    require_evaluation(model)
    stack = decoder_layers(model) if layers is None else named_layers(model, layers)
    called: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    left: list[Tensor] = []
    hooks = [
        layer.register_forward_pre_hook(lambda _, args, kwargs: called.append((args, kwargs)), with_kwargs=True)
        for layer in stack
    ]
    hooks += [layer.register_forward_hook(lambda _, args, out: left.append(stream_of(out))) for layer in stack]
    try:
        with torch.no_grad():
            model(input_ids=tokens, use_cache=False, **inputs)
    finally:
        for hook in hooks:
            hook.remove()
    entered = [kwargs[STREAM] if STREAM in kwargs else args[0] for args, kwargs in called]
    in_turn = len(entered) == len(stack) and all(map(torch.equal, left[:-1], entered[1:]))
    if not in_turn:
        raise InputError(
            f"layers must each be called once and read what the one before wrote, those of {type(model).__name__} do "
            "not; study a step of your own making with attractor.analysis"
        )
    steps: list[Step] = [partial(_through, layer, *call) for layer, call in zip(stack, called, strict=True)]
    return LayerMaps(tuple(steps), (*entered, left[-1]))


def block_map(model: nn.Module, layer: int, tokens: Tensor, **inputs: Any) -> StateMap:
    """One layer, counted from 0, and the state that enters it."""
    return layer_maps(model, tokens, **inputs).block(layer)


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    outermost = {name: module for name, module in lists.items() if not _inside_another(name, lists)}
    n_layers = _depth(model)
    found = [module for module in outermost.values() if len(module) == n_layers]
    if len(found) != 1:
        seen = ", ".join(f"'{name}' of {len(module)}" for name, module in outermost.items()) or "none"
        raise InputError(
            f"model must have one list of num_hidden_layers={n_layers} layers, got {type(model).__name__} with lists "
            f"{seen}; name it: layer_maps(model, tokens, layers='...')"
        )
    return found[0]


def named_layers(model: nn.Module, name: str) -> nn.ModuleList:
    module = dict(model.named_modules()).get(name)
    if not isinstance(module, nn.ModuleList):
        lists = [f"'{name}'" for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
        raise InputError(
            f"layers must name a list of modules of {type(model).__name__}, got '{name}'; "
            f"there are {', '.join(lists) or 'none'}"
        )
    return module


def stream_of(out: Any) -> Tensor:
    """What a layer returns first, if it returns several things."""
    return out[0] if isinstance(out, tuple) else out


def _through(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], h: Tensor) -> Tensor:
    if STREAM in kwargs:
        return stream_of(layer(*args, **kwargs | {STREAM: h}))
    return stream_of(layer(h, *args[1:], **kwargs))


def _inside_another(name: str, lists: Mapping[str, nn.Module]) -> bool:
    return any(name.startswith(f"{other}.") for other in lists)


def _depth(model: nn.Module) -> int | None:
    config: Any = getattr(model, "config", None)
    if config is None:
        return None
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    return getattr(text, "num_hidden_layers", None)
