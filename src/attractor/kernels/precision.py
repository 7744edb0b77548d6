"""Autocast, asked about in one place: devices without it (meta) have no half precision to speak of."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """The half precision that products with `x` are cast to here, or None outside autocast."""
    kind = x.device.type
    # Compilers before torch 2.12 cannot look into the first question, which they have no need of.
    if (torch.compiler.is_compiling() or torch.amp.is_autocast_available(kind)) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return None


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Products with `x` in here keep the precision they are given."""
    return torch.autocast(x.device.type, enabled=False) if autocast_dtype(x) is not None else nullcontext()
