"""Matrix products of half-precision arrays on a CPU that has no instructions for them.

There torch multiplies number by number, which takes 14 to 36 times as long as in fp32 (LOG.md, 2026-11-28). Here the
arrays are widened to fp32 and multiplied, and the result is rounded. Instructions for half precision do the same: they
add up in fp32 and round at the end.
"""

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from attractor.kernels.fallback import trace_time_constant

# What `@`, `linear` and `einsum` come down to. A form returns the result, writes it to `out` or adds it in place (`_`).
FORMS = ("mm", "mm.out", "bmm", "bmm.out", "addmm", "addmm.out", "addmm_", "baddbmm", "baddbmm.out", "baddbmm_")


_lock = threading.Lock()
_libraries: dict[torch.dtype, torch.library.Library] = {}  # our kernels that are in place
_n_blocks: Counter[torch.dtype] = Counter()  # how many blocks need them


@contextmanager
def widened_products(dtype: torch.dtype | None, device: torch.device | str) -> Iterator[None]:
    """While the block runs, widen matrix products of this type if a CPU without instructions for it computes them.

    torch's kernels are replaced in the whole process, because torch itself calls the products of a backward pass and of
    a compiled loss. At the end of the outermost block torch's kernels are in their places again.
    """
    if dtype is None or torch.device(device).type != "cpu" or has_instructions(dtype):
        yield
        return
    with _lock:
        if not _n_blocks[dtype]:
            _libraries[dtype] = _widen_products(dtype)
        _n_blocks[dtype] += 1
    try:
        yield
    finally:
        with _lock:
            _n_blocks[dtype] -= 1
            if not _n_blocks[dtype]:
                del _libraries[dtype]  # which undoes what it registered


def has_instructions(dtype: torch.dtype) -> bool:
    """Return whether this CPU has instructions for matrix products of this type."""
    ask = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }.get(dtype)
    return ask is None or bool(ask())


@trace_time_constant
def has_matrix_unit() -> bool:
    """Return whether this CPU multiplies whole tiles of bf16 in one instruction (AMX), which torch 2.11 cannot say."""
    known: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(known.get("amx_bf16", False))


def _widen_products(dtype: torch.dtype) -> torch.library.Library:
    """Let torch compute matrix products of this half precision in fp32 on CPUs, for as long as the library exists.

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
