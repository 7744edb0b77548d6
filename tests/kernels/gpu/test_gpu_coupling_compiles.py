"""The coupling kernels compile for a GPU that need not be present, and torch.compile takes layers that call them.

The tests run in processes of their own: here kernels are interpreted, and the shape checks that conftest adds to
signatures cannot be traced.
"""

import subprocess
import sys

import pytest
from compiled_kernels import printed_by_python

COMPILE = """
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from attractor.kernels.gpu.coupling import couple


class Hopper:
    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def compiled(self, *args, grid, warmup, **constants):
    print(launch(self, *args, grid=grid, warmup=True, **constants).metadata.shared)


triton.runtime.driver.set_active(Hopper())
launch, JITFunction.run = JITFunction.run, compiled
EULER, MLP_ONLY = ("force", "drift", 1.0), ("force", "push")
for program, width, linear in ((EULER, 64, False), (EULER, 128, False), (EULER, 32, True), (MLP_ONLY, 32, False)):
    q, k = (torch.zeros(2, 64, 4, width, dtype=torch.bfloat16).transpose(1, 2).requires_grad_() for _ in range(2))
    dt, norm, angle = torch.ones(4), torch.ones(width), torch.ones(64, width // 2)
    outer = torch.ones(width, width)
    given = None if program == MLP_ONLY else dt, (None if linear else outer, outer)
    ends = couple(program, q, k, *given, q.dtype, q.dtype, (norm, norm), 1e-6, (angle, angle))
    torch.autograd.grad(ends, q, ends)
"""


@pytest.mark.slow
def test_the_kernels_compile_for_hopper_and_fit_its_shared_memory() -> None:
    """The operators' own launches compile the kernels and stop before a GPU would be needed."""
    shared = [int(line) for line in printed_by_python("-c", COMPILE).split()]
    assert len(shared) == 2 * 4
    assert max(shared) <= 227 * 1024


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
    done = subprocess.run([sys.executable, "-c", TRACE], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
