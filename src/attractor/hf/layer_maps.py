"""Represent the layers of Hugging Face's causal models as maps of the residual stream, h -> Layer_l(h).

The layers are the only outermost list of modules whose length is the configured depth (`model.layers`, `transformer.h`,
`gpt_neox.layers`, ...). Their other arguments, such as masks and rotations, are recorded in one pass over the tokens
without a cache. The states are the model's `output_hidden_states`, except that the last one is taken before the final
norm. A model that changes the stream between layers is refused, since no map would contain that change.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attractor.errors import InputError
from attractor.models.maps import LayerMaps, Step, require_evaluation

STREAM = "hidden_states"  # the name of the argument, where it is passed by keyword


def layer_maps(model: nn.Module, tokens: Tensor, layers: str | None = None, **inputs: Any) -> LayerMaps:
    """Return the maps and states of all layers.

    `layers` names the list of layers where the structure does not tell; `inputs`, such as an attention_mask, go to the
    model."""
    require_evaluation(model)
    stack = decoder_layers(model) if layers is None else named_layers(model, layers)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    outputs: list[Tensor] = []
    hooks = [
        layer.register_forward_pre_hook(lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True)
        for layer in stack
    ]
    hooks += [layer.register_forward_hook(lambda _, args, out: outputs.append(stream_of(out))) for layer in stack]
    try:
        with torch.no_grad():
            model(input_ids=tokens, use_cache=False, **inputs)
    finally:
        for hook in hooks:
            hook.remove()
    states = [kwargs[STREAM] if STREAM in kwargs else args[0] for args, kwargs in calls]
    if len(states) != len(stack) or not all(map(torch.equal, outputs[:-1], states[1:])):
        raise InputError(
            f"layers must each be called once and read what the one before wrote, and those of {type(model).__name__} "
            "do not; study a step of your own making with attractor.analysis"
        )
    steps: list[Step] = [partial(_through, layer, *call) for layer, call in zip(stack, calls, strict=True)]
    return LayerMaps(tuple(steps), (*states, outputs[-1]))


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    outermost = {
        name: module for name, module in lists.items() if not any(name.startswith(f"{other}.") for other in lists)
    }
    config: Any = getattr(model, "config", None)
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    n_layers = getattr(text, "num_hidden_layers", None)
    candidates = [module for module in outermost.values() if len(module) == n_layers]
    if len(candidates) != 1:
        sizes = ", ".join(f"'{name}' of {len(module)}" for name, module in outermost.items()) or "none"
        raise InputError(
            f"model must have one list of num_hidden_layers={n_layers} layers, got {type(model).__name__} with lists "
            f"{sizes}; name it: layer_maps(model, tokens, layers='...')"
        )
    return candidates[0]


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
    """Return the residual stream, which is the first of several outputs of a layer."""
    return out[0] if isinstance(out, tuple | list) else out


def _through(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], h: Tensor) -> Tensor:
    if STREAM in kwargs:
        return stream_of(layer(*args, **kwargs | {STREAM: h}))
    return stream_of(layer(h, *args[1:], **kwargs))
