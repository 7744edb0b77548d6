"""Whether a fused kernel may be used, and one line of log where it may not.

A kernel is for GPUs; what it cannot take is computed by its plain twin, which is right for everything and only slower.
Elsewhere the twin is the rule, and nothing is said.
"""

import logging
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

log = logging.getLogger("attractor")


def transformed() -> bool:
    """Whether vmap, jvp or their kind is at work, which know plain operations only."""
    return torch._C._are_functorch_transforms_active()


def fused(kernel: str, x: Tensor, against: str | None = None) -> bool:
    """Whether `kernel` is used for what `x` stands for; `against` is the kernel's own reason not to be."""
    if x.device.type != "cuda":
        return False
    against = against or ("vmap and its kind transform plain operations only" if transformed() else None)
    against = against or _of_device(x.dtype, x.device)
    if against is not None:
        _say_once(kernel, against)
    return against is None


@cache
def _of_device(dtype: torch.dtype, device: torch.device) -> str | None:
    if find_spec("triton") is None:
        return "triton is not installed"
    major, minor = torch.cuda.get_device_capability(device)
    if dtype == torch.bfloat16 and major < 8:
        return f"this GPU (compute capability {major}.{minor}) has no bf16"
    return None


@cache
def _say_once(kernel: str, against: str) -> None:
    log.warning("the fused kernel for %s is not used, and the plain computation is: %s", kernel, against)
