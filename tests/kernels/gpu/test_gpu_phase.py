"""The phase kernels agree with the exact activation, forward and backward, at any width, precision and layout."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter

from attractor.attention.couple import phase as couple
from attractor.kernels.gpu import phase as kernels
from attractor.kernels.phase import phase_activation_reference
from tiers import fast_alone

B, T, H = 2, 23, 3  # the rows fill more than one tile, the last tile in part


@pytest.fixture(autouse=True)
def products_of_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Widen bf16 before products, since the interpreter stores bf16 as bits and would multiply them as integers."""
    product = interpreter.InterpreterBuilder.create_dot

    def widened(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        if a.dtype.scalar == tl.bfloat16:
            a, b = (
                interpreter.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32) for x in (a, b)
            )
        return product(self, a, b, *rest)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", widened)


def case(width: int, dtype: torch.dtype, scale: float = 1.0, batch: int = B) -> tuple[Tensor, Tensor, Tensor]:
    """Return v as one of three adjacent parts of a projection, W, and a gradient with heads before positions in
    memory."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(batch, T, 3, H, width, generator=generator).to(dtype)[:, :, 1]
    weight = scale / width**0.5 * torch.randn(width, width, generator=generator)
    grad = torch.randn(batch, H, T, 2 * width, generator=generator).to(dtype).transpose(1, 2)
    return v.requires_grad_(), weight.requires_grad_(), grad


def found_and_exact(v: Tensor, weight: Tensor, grad: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the value and gradients by the kernels, each with its counterpart by (1) in fp64."""
    y = kernels.phase_activation(v, weight)
    wide = [x.detach().double().requires_grad_() for x in (v, weight)]
    exact = phase_activation_reference(*wide)
    found = (y, *torch.autograd.grad(y, (v, weight), grad))
    return list(zip(found, (exact, *torch.autograd.grad(exact, wide, grad.double())), strict=True))


def assert_agree(pairs: list[tuple[Tensor, Tensor]], dtype: torch.dtype, single: float = 2e-6) -> None:
    """Criterion: the norm of the error, relative to the norm of the exact result, is within the rounding of `dtype`."""
    close = {torch.float32: single, torch.bfloat16: 2**-7, torch.float16: 2**-10}[dtype]
    for found, exact in pairs:
        assert (found.double() - exact).norm() < close * exact.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", fast_alone([16, 24, 32, 100, 130], 24, 130))
def test_value_and_gradients_are_the_exact_ones(width: int, dtype: torch.dtype) -> None:
    """The widths are narrow, padded, and split into chunks; y and the gradient of v have the memory layout of
    projections."""
    v, weight, grad = case(width, dtype)
    pairs = found_and_exact(v, weight, grad)
    assert_agree(pairs, dtype)
    assert [x.dtype for x, _ in pairs] == [dtype, dtype, torch.float32]
    assert all(x.is_contiguous() for x, _ in pairs)


@pytest.mark.parametrize("width", [32, 130])
def test_large_angles_are_those_of_fp32(width: int) -> None:
    """Criterion: at angles of tens of radians y is as accurate as with W in 15 bits; with W in bf16 it is off by a
    twentieth."""
    v, weight, _ = case(width, torch.bfloat16, scale=30.0)
    exact = phase_activation_reference(v.double(), weight.double())
    for w, off in ((weight, (0.0, 0.005)), (weight.bfloat16(), (0.02, 0.2))):
        y = kernels.phase_activation(v, w.float()).double()
        assert off[0] < (y - exact).norm() / exact.norm() < off[1]


def test_any_layout_is_right() -> None:
    v, weight, grad = case(32, torch.float32)
    heads_first = v.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_()
    columns_apart = v.detach().repeat_interleave(2, dim=-1)[..., ::2].requires_grad_()
    one = torch.ones((), dtype=grad.dtype).expand(grad.shape)
    expected = [x for x, _ in found_and_exact(v, weight, one)]
    for other in (heads_first, columns_apart):
        assert [torch.equal(x, y) for (x, _), y in zip(found_and_exact(other, weight, one), expected, strict=True)]


@pytest.mark.parametrize("width", [16, 130])
def test_nan_stays_in_its_row_and_a_vector_with_huge_angles_keeps_its_norm(width: int) -> None:
    v, weight, _ = case(width, torch.float32, scale=1e9)
    v = v.detach()
    v[0, 3, 1, 2] = math.nan
    y = kernels.phase_activation(v, weight)
    lost = y.isnan().flatten(0, 2)
    assert lost[3 * H + 1].all()
    lost[3 * H + 1] = False
    assert not lost.any()
    torch.testing.assert_close(y[1].norm(dim=-1), v[1].norm(dim=-1))


def test_a_batch_may_be_empty() -> None:
    v, weight, grad = case(16, torch.float32, batch=0)
    y = kernels.phase_activation(v, weight)
    gradients = torch.autograd.grad(y, (v, weight), grad)
    assert y.shape == (0, T, H, 32)
    assert gradients[0].shape == v.shape
    assert not gradients[1].any()


def test_the_same_inputs_give_the_same_bits() -> None:
    v, weight, grad = case(24, torch.float16)
    once, again = (torch.autograd.grad(kernels.phase_activation(v, weight), (v, weight), grad) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(once, again, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("width", [16, 130])
def test_the_operators_keep_the_rules_of_torch(width: int) -> None:
    v, weight, grad = case(width, torch.float32)
    v = v[:1, :2].detach()
    torch.library.opcheck(kernels.phase_activation, (v.requires_grad_(), weight))
    torch.library.opcheck(kernels.phase_activation_backward, (v.detach(), weight.detach(), grad[:1, :2]))


def test_second_derivatives_are_the_plain_ones() -> None:
    v, weight, grad = case(16, torch.float32)
    second = []
    for activate in (kernels.phase_activation, phase_activation_reference):
        first = torch.autograd.grad(activate(v, weight), (v, weight), grad, create_graph=True)
        second.append(torch.autograd.grad(sum(x.square().sum() for x in first), (v, weight)))
    torch.testing.assert_close(*second, rtol=1e-4, atol=1e-4)


def test_where_there_is_a_gpu_the_layer_takes_the_kernel_compiled_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    v, weight, grad = case(16, torch.float32)
    asked: list[str] = []
    monkeypatch.setattr(couple, "use_kernel", lambda name, *_: not asked.append(name))
    for activate in (couple.activated, torch.compile(couple.activated, fullgraph=True, backend="aot_eager")):
        expected = kernels.phase_activation(v, weight)
        y = activate(v, weight)
        assert torch.equal(y, expected)
        found, wanted = (torch.autograd.grad(x, (v, weight), grad) for x in (y, expected))
        torch.testing.assert_close(found, wanted)
    assert asked == ["phase activation"] * 2


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("width", [32, 64, 128, 256])
def test_on_a_gpu_at_real_shapes(width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    shape = {"generator": generator, "device": "cuda"}
    v = torch.randn(8, 512, 8, width, **shape).to(dtype).requires_grad_()
    weight = (3 / width**0.5 * torch.randn(width, width, **shape)).requires_grad_()
    grad = torch.randn(8, 8, 512, 2 * width, **shape).to(dtype).transpose(1, 2)
    pairs = found_and_exact(v, weight, grad)
    assert_agree(pairs[:2], dtype, single=1e-5)  # matrix units truncate where the interpreter rounds
    assert (pairs[2][0].double() - pairs[2][1]).norm() < 2**-7 * pairs[2][1].norm()
