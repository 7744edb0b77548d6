"""Cast modules; enter, query and leave autocast of products to half precision, which the meta device does not have."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from attractor.kernels.wide_products import widened_products

M = TypeVar("M", bound=nn.Module)
CASTS = {
    torch.float64: nn.Module.double,
    torch.float32: nn.Module.float,
    torch.bfloat16: nn.Module.bfloat16,
    torch.float16: nn.Module.half,
}
HALF_PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}


@contextmanager
def autocast(device: torch.device | str, precision: str) -> Iterator[None]:
    """Compute matrix products inside in this precision; in fp32 nothing is cast."""
    dtype = HALF_PRECISIONS.get(precision)
    if dtype is None:
        yield
        return
    with widened_products(dtype, device), torch.autocast(torch.device(device).type, dtype):
        yield


def quick_products(device: torch.device | str, precision: str) -> AbstractContextManager[None]:
    """Compute products of this precision in the quickest way, also in a backward pass, which lies outside autocast."""
    return widened_products(HALF_PRECISIONS.get(precision), device)


def autocast_dtype(x: Tensor) -> torch.dtype | None:
    """Return the half precision that autocast gives to products with `x`, or None outside autocast."""
    kind = x.device.type
    # Compilers before torch 2.12 cannot trace `is_autocast_available`, and do not need it.
    if (torch.compiler.is_compiling() or torch.amp.is_autocast_available(kind)) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return None


def without_autocast(x: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which products with `x` keep the precision of their operands."""
    return torch.autocast(x.device.type, enabled=False) if autocast_dtype(x) is not None else nullcontext()


def cast_module(module: M, dtype: torch.dtype) -> M:
    """Cast the real numbers of a module. `Module.to` would cut complex ones, such as rotations, to their real parts."""
    return CASTS[dtype](module)
