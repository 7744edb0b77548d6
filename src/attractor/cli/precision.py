"""Number formats by the names that options have for them."""

from typing import TYPE_CHECKING

from attractor.errors import unknown

if TYPE_CHECKING:
    import torch

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}


def dtype_of(name: str | None) -> "torch.dtype | None":
    if name is None:
        return None
    if name not in DTYPES:
        raise unknown("dtype", name, DTYPES)
    import torch

    dtype = getattr(torch, DTYPES[name])
    assert isinstance(dtype, torch.dtype)
    return dtype
