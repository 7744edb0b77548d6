"""Matrix products of half-precision arrays on a CPU that has no instructions for them.

There torch multiplies number by number, which takes 14 to 36 times as long as in fp32 (LOG.md, 2026-11-28). Here the
arrays are widened to fp32 and multiplied, and the result is rounded. Instructions for half precision do the same: they
add up in fp32 and round at the end.
"""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

# What `@`, `linear` and `einsum` come down to. A form returns the result, writes it to `out` or adds it in place (`_`).
FORMS = ("mm", "mm.out", "bmm", "bmm.out", "addmm", "addmm.out", "addmm_", "baddbmm", "baddbmm.out", "baddbmm_")


def widen_slow_products(dtype: torch.dtype, device: torch.device | str) -> None:
    """Widen matrix products of this type if they are to run on a CPU without instructions for it."""
    if torch.device(device).type == "cpu" and not has_instructions(dtype):
        widen_products(dtype)


def has_instructions(dtype: torch.dtype) -> bool:
    """Return whether this CPU has instructions for matrix products of this type."""
    ask = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }.get(dtype)
    return ask is None or bool(ask())


@cache
def widen_products(dtype: torch.dtype) -> torch.library.Library:
    """Let torch compute matrix products of this half precision in fp32, on CPUs and for the rest of this process.

    torch's kernels are replaced, because torch itself calls the products of a backward pass and of a compiled loss.
    Products of all other types still reach the kernels that were there before.
    """
    library = torch.library.Library("aten", "IMPL")
    kernels = {form: torch.library.get_kernel(f"aten::{form}", "CPU") for form in FORMS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that kernels are replaced
        for form in FORMS:
            returning = kernels[form.removesuffix(".out").removesuffix("_")]
            library.impl(form, _widened(form, kernels[form], returning, dtype), "CPU", with_keyset=True)
    return library


def _widened(form: str, plain: Any, returning: Any, dtype: torch.dtype) -> Callable[..., Tensor]:
    """Return the kernel that stands in for `plain`; `returning` is the form that returns a new array."""

    def product(keys: Any, *arrays: Tensor, **options: Any) -> Tensor:
        out = options.get("out", arrays[0] if form.endswith("_") else None)
        if any(array.dtype is not dtype for array in (*arrays, *([] if out is None else [out]))):
            kept: Tensor = plain.call_boxed(keys, *arrays, **options)  # refuses arrays of several types
            return kept
        options.pop("out", None)
        result: Tensor = returning.call_boxed(keys, *(array.float() for array in arrays), **options)
        return result.to(dtype) if out is None else out.resize_(result.shape).copy_(result)

    return product
