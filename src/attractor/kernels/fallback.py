"""Decide between a fused kernel and its plain reference, and log a line if a GPU must use the reference.

Kernels run on GPUs. Inputs that a kernel does not support are computed by its reference, which is correct for all
inputs and only slower. On other devices the reference is always used, without a message.
"""

import logging
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("attractor")


def functorch_active() -> bool:
    """Return whether vmap, jvp or another functorch transform is active; they support plain operations only."""
    return torch._C._are_functorch_transforms_active()


def use_kernel(kernel: str, x: Tensor, unsupported: str | None = None) -> bool:
    """Return whether `kernel` is used for inputs like `x`; `unsupported` says why the kernel cannot take them."""
    if x.device.type != "cuda":
        return False
    unsupported = unsupported or ("vmap and similar transforms need plain operations" if functorch_active() else None)
    unsupported = unsupported or _unsupported_by_device(x.dtype, x.device)
    if unsupported is not None:
        _log_once(kernel, unsupported)
    return unsupported is None


def exceeds_32_bits(*tensors: Tensor) -> bool:
    """Return whether offsets within one sequence (B is the first dimension) exceed 32 bits."""
    spans = (sum((n - 1) * stride for n, stride in zip(x.shape[1:], x.stride()[1:], strict=True)) for x in tensors)
    return max(spans) >= 2**31


def trace_time_constant(function: Callable[P, T]) -> Callable[P, T]:
    """Mark a function that a compiler calls while it traces, without tracing into it.

    torch.compiler's own decorator does the same, but imports the compiler, which takes seconds.
    """
    cast(Any, function)._dynamo_marked_constant = True
    return function


@trace_time_constant
def _unsupported_by_device(dtype: torch.dtype, device: torch.device) -> str | None:
    return _device_limit(dtype, device)


@trace_time_constant
def _log_once(kernel: str, unsupported: str) -> None:
    _log(kernel, unsupported)


@cache
def _device_limit(dtype: torch.dtype, device: torch.device) -> str | None:
    if find_spec("triton") is None:
        return "triton is not installed"
    major, minor = torch.cuda.get_device_capability(device)
    if dtype == torch.bfloat16 and major < 8:
        return f"this GPU (compute capability {major}.{minor}) has no bf16"
    return None


@cache
def _log(kernel: str, unsupported: str) -> None:
    log.warning("the fused kernel for %s is not used (%s); the plain computation runs instead", kernel, unsupported)
