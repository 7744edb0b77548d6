"""Compute the matrix by which a linear layer or an embedding acts, also if an adapter or a quantiser wraps the layer.

Some computations need a matrix instead of a layer's output: kernels, products of two matrices, and a readout that is
tied to the embedding. LoRA adapters, quantisation and offloading put a layer in the place of the original one, and
change its output without changing `weight`. The matrix is then the layer's output for unit vectors (or all tokens):

    W = layer(I)'                                                                                           (1)

Gradients reach the adapter through (1). If an adapter has dropout, (1) draws it once for all positions.
"""

from typing import cast

import torch
from torch import Tensor, nn

from attractor.attention.sigma_reparam import SigmaLinear
from attractor.kernels.precision import without_autocast

NEARLY_ZERO = 1e-18  # changes no number that it is added to; rows of zeros have no norm, by which DoRA divides
FORWARDS = {nn.Linear.forward, nn.Embedding.forward, SigmaLinear.forward}  # they compute with `weight` alone


def acting_weight(layer: nn.Module, n_tokens: int | None = None) -> Tensor:
    """Return W: outputs x inputs of a linear layer without bias, or tokens x width of an embedding of `n_tokens`."""
    if _is_original(layer):
        weight = cast(Tensor, layer.weight)
        return layer.sigma(weight) if isinstance(layer, SigmaLinear) else weight
    stored = getattr(layer, "weight", None)  # quantised layers have a method of this name
    device, dtype = torch.device("cpu"), torch.get_default_dtype()
    if isinstance(stored, Tensor):
        # Offloading leaves a weight without data, and moves the layer's input to where it computes.
        device = device if stored.is_meta else stored.device
        dtype = stored.dtype if stored.is_floating_point() else dtype
    if n_tokens is not None:
        return layer(torch.arange(n_tokens, device=device))
    units = torch.eye(cast(int, layer.in_features), dtype=dtype, device=device)
    with without_autocast(units):
        return layer(units).mT  # (1)


def _is_original(layer: nn.Module) -> bool:
    """Return whether the layer's output is that of its `weight` alone. Hooks are assumed to observe only."""
    return type(layer).forward in FORWARDS and "forward" not in vars(layer)
