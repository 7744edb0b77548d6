"""The kernels compile for a Hopper GPU that need not be present, and torch.compile takes layers that call them.

The tests run in processes of their own: here kernels are interpreted, and the shape checks that conftest adds to
signatures cannot be traced.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

ROOM = 227 * 1024  # bytes of shared memory that a block may have


def launch_coupling() -> None:
    from attractor.kernels.gpu.coupling import couple

    euler, mlp_only = ("force", "drift", 1.0), ("force", "push")
    for program, width, linear in ((euler, 64, False), (euler, 128, False), (euler, 32, True), (mlp_only, 32, False)):
        q, k = (torch.zeros(2, 64, 4, width, dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for _ in range(2))
        dt, norm, angle = torch.ones(4), torch.ones(width), torch.ones(64, width // 2)
        outer = torch.ones(width, width)
        given = None if program == mlp_only else dt, (None if linear else outer, outer)
        ends = couple(program, q, k, *given, q.dtype, q.dtype, (norm, norm), 1e-6, (angle, angle))
        torch.autograd.grad(ends, q, ends)


def launch_cross_entropy() -> None:
    from attractor.kernels.gpu.cross_entropy import chunk_loss

    hidden, readout = (torch.zeros(n, 64, dtype=torch.bfloat16) for n in (8, 50257))
    chunk_loss(hidden, readout, torch.zeros(8, dtype=torch.long), -100, True)


def launch_maxima() -> None:
    from attractor.kernels.gpu.maxima import largest_logits

    q, k = (torch.zeros(1, 8, 64, 64, dtype=torch.bfloat16) for _ in range(2))
    largest_logits(q, k, 0.1, torch.arange(8), True, torch.ones(1, 1, 64, 64, dtype=torch.bool))


LAUNCHES = {  # with the number of kernels that each compiles, and the bytes of registers that one may spill
    "coupling": (launch_coupling, 8, 300),
    "cross entropy": (launch_cross_entropy, 1, 0),
    "maxima": (launch_maxima, 1, 0),
}


def compile_what_is_launched(name: str) -> None:
    """Print the shared memory and the spilled registers of each kernel, in bytes, in place of running it on a GPU."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    class Hopper:
        def get_current_target(self) -> GPUTarget:
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self) -> int:
            return 0

        def get_current_stream(self, device: int) -> int:
            return 0

    launch = JITFunction.run

    def compiled(self: Any, *arguments: Any, grid: Any, warmup: bool, **constants: Any) -> None:
        kernel = launch(self, *arguments, grid=grid, warmup=True, **constants)
        print(kernel.metadata.shared, spilled(kernel.asm["cubin"]))

    driver.set_active(Hopper())
    JITFunction.run = compiled
    LAUNCHES[name][0]()


def spilled(cubin: bytes) -> int:
    from triton.backends import nvidia

    with tempfile.NamedTemporaryFile(suffix=".cubin") as binary:
        binary.write(cubin)
        binary.flush()
        reader = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
        said = subprocess.run([reader, "-res-usage", binary.name], capture_output=True, text=True, check=True).stdout
    stack = re.search(r"STACK:(\d+)", said)
    assert stack is not None
    return int(stack[1])


def printed_by_python(*arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], env=os.environ | environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", LAUNCHES)
def test_kernels_compile_for_hopper_fit_its_shared_memory_and_hardly_spill_registers(name: str) -> None:
    _, n_kernels, most_spilled = LAUNCHES[name]
    printed = printed_by_python(__file__, name, TRITON_INTERPRET="0").splitlines()
    used = [tuple(map(int, line.split())) for line in printed]
    assert len(used) == n_kernels
    assert all(shared <= ROOM and spilled <= most_spilled for shared, spilled in used), used


TRACE = """
import torch

from attractor.attention import Rope, build
from attractor.attention.couple import fused as dispatch

dispatch.fused = lambda kernel, x, against=None: against is None
layer, rope, x = build("coupled-euler", 64, 4, qk_norm=True), Rope(16), torch.randn(2, 5, 64)
found = []
for run in (layer, torch.compile(layer, fullgraph=True, backend="aot_eager")):
    out = run(x, rope=rope)[0]
    found.append([out, *torch.autograd.grad(out.square().sum(), list(layer.parameters()))])
torch.testing.assert_close(*found)
"""


@pytest.mark.slow
def test_a_layer_is_traced_whole_with_the_kernel_in_it() -> None:
    printed_by_python("-c", TRACE)


if __name__ == "__main__":
    compile_what_is_launched(sys.argv[1])
