"""What the launches of all kernels share: padded widths, contiguous rows, and the size of the GPU."""

from functools import cache

import torch
import triton
from torch import Tensor


def padded_width(width: int, least: int = 16) -> int:
    """Return the power of two that holds `width`; matrix units take no less than 16."""
    return max(least, triton.next_power_of_2(width))


def contiguous_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


@cache
def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors, or 1 without a GPU, where kernels are interpreted."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
