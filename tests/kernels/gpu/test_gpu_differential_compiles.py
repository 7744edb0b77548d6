"""The kernels for differential attention and largest logits compile for a Hopper GPU, which need not be present, and
spill no registers."""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_kernels import printed_by_python

SIZES = ((32, 64), (64, 64))  # widths of scored queries and of values: half heads and whole heads
ROOM = 227 * 1024  # bytes of shared memory a block may have


def compiled(kernel: Any, tensors: dict[str, str], constants: dict[str, Any]) -> tuple[int, int]:
    """Return the bytes of spilled registers and of shared memory, for column strides of 1 and other strides divisible
    by 16."""
    import triton
    from triton.backends import nvidia
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    options = {name: constants.pop(name) for name in ("num_warps", "num_stages")}
    constants |= {name: 1 for name in kernel.arg_names if name.endswith("_column")}
    signature, divisible = {}, {}
    for place, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name in ("factor", "scale"):
            signature[name] = "fp32"
        else:
            signature[name] = tensors.get(name, "i32")
            divisible[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, divisible)
    done = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as binary:
        binary.write(done.asm["cubin"])
        binary.flush()
        reader = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
        said = subprocess.run([reader, "-res-usage", binary.name], capture_output=True, text=True, check=True).stdout
    stack = re.search(r"STACK:(\d+)", said)
    assert stack is not None
    return int(stack[1]), done.metadata.shared


def compile_all() -> None:
    from attractor.kernels.gpu import differential, maxima
    from attractor.kernels.gpu.differential_kernels import forward_kernel, key_kernel, query_kernel

    half = dict.fromkeys(("q", "k", "v", "context", "second", "grad", "g_q", "g_k", "g_v"), "*bf16")
    tensors = half | {"by": "*fp32", "z": "*fp32", "d": "*fp32"}
    for score, value in SIZES:
        q, k = (torch.empty(1, 2, 8, 64, score, dtype=torch.bfloat16, device="meta") for _ in range(2))
        v = torch.empty(1, 8, 64, value, dtype=torch.bfloat16, device="meta")
        tiles = differential._tiles(q, v)
        for kernel, tile in ((forward_kernel, tiles.forward), (query_kernel, tiles.query), (key_kernel, tiles.key)):
            print(*compiled(kernel, tensors, differential._constants(q, k, v, tile)))
    tensors |= {"allowed": "*u8", "heads": "*i64", "block_maxima": "*fp32"}
    rows, keys, warps, stages = maxima.NARROW
    constants = {"n_heads": 8, "n_key_heads": 8, "width": 64, "full_width": 64, "row_block": rows, "key_block": keys}
    constants |= {"causal": True, "masked": True, "num_warps": warps, "num_stages": stages}
    print(*compiled(maxima.maxima_kernel, tensors, constants))


@pytest.mark.slow
def test_the_kernels_compile_and_spill_no_registers() -> None:
    used = [tuple(map(int, line.split())) for line in printed_by_python(__file__).splitlines()]
    assert len(used) == 3 * len(SIZES) + 1
    assert all(spilled == 0 and shared <= ROOM for spilled, shared in used), used


if __name__ == "__main__":
    compile_all()
