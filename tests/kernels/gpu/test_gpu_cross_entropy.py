"""The kernel that turns logits into their gradients equals the plain computation, and so does the loss that uses it."""

import math

import pytest
import torch
from torch import Tensor

from attractor.kernels import cross_entropy as plain
from attractor.kernels.cross_entropy import NOT_SCORED, chunked_linear_cross_entropy, linear_cross_entropy_reference
from attractor.kernels.gpu import cross_entropy as kernels
from tiers import fast_alone

N, D = 21, 8


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "COLUMNS", 16)
    monkeypatch.setattr(plain, "ROWS", 8)
    monkeypatch.setattr(plain, "HELD_ON_CPU", 0)


def case(n_classes: int, dtype: torch.dtype = torch.float64, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (scale * torch.randn(n, D, generator=generator) for n in (N, n_classes))
    targets = torch.randint(0, n_classes, (N,), generator=generator)
    targets[::5] = NOT_SCORED
    return hidden.to(dtype), weight.to(dtype), targets


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n_classes", fast_alone([2, 16, 50], 50))
def test_losses_and_gradients_of_logits_are_the_plain_ones(n_classes: int, dtype: torch.dtype) -> None:
    hidden, weight, targets = case(n_classes, dtype)
    logits = (hidden @ weight.mT).double().requires_grad_()
    expected = torch.nn.functional.cross_entropy(logits, targets, ignore_index=NOT_SCORED, reduction="sum")
    (wanted,) = torch.autograd.grad(expected, logits)
    loss, gradient = kernels.chunk_loss(hidden, weight, targets, NOT_SCORED, True)
    alone, untouched = kernels.chunk_loss(hidden, weight, targets, NOT_SCORED, False)
    close = 2 * torch.finfo(dtype).eps
    assert gradient.dtype == dtype
    assert torch.equal(loss, alone)
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient.double(), wanted, rtol=close, atol=close)
    torch.testing.assert_close(untouched.double(), logits.detach(), rtol=close, atol=close)


def test_the_loss_by_the_kernel_is_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss runs in chunks as on a GPU, with logits in the hundreds."""
    hidden, weight, targets = case(50, torch.float32, scale=8.0)
    inputs = hidden.requires_grad_(), weight.requires_grad_()
    expected = linear_cross_entropy_reference(*inputs, targets)
    wanted = torch.autograd.grad(expected, inputs)
    monkeypatch.setattr(plain, "use_kernel", lambda *_: True)
    found = chunked_linear_cross_entropy(*inputs, targets)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, inputs), wanted)


def test_nan_and_invalid_classes_make_the_loss_nan() -> None:
    """Criterion: the gradients of other positions stay finite; where all targets are ignored, the loss is 0."""
    hidden, weight, targets = case(50, torch.float32)
    hidden[3] = math.nan
    assert kernels.chunk_loss(hidden, weight, targets, NOT_SCORED, True)[0].isnan()
    gradient = kernels.chunk_loss(hidden, weight, targets, NOT_SCORED, True)[1]
    assert gradient[3].isnan().all()
    assert gradient[4:].isfinite().all()
    hidden[3] = 0.0
    for wrong in (50, -1):
        assert kernels.chunk_loss(hidden, weight, torch.full((N,), wrong), NOT_SCORED, False)[0].isnan()
    loss, gradient = kernels.chunk_loss(hidden, weight, torch.full((N,), NOT_SCORED), NOT_SCORED, True)
    assert loss == 0
    assert not gradient.any()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_on_a_gpu_at_real_shapes(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: against fp64, the error of the gradients is that of one rounding of logits and gradients."""
    monkeypatch.undo()
    generator = torch.Generator("cuda").manual_seed(0)
    hidden = torch.randn(5000, 512, generator=generator, device="cuda").to(dtype).requires_grad_()
    weight = (torch.randn(50257, 512, generator=generator, device="cuda") / 512**0.5).requires_grad_()
    targets = torch.randint(0, 50257, (5000,), generator=generator, device="cuda")
    targets[::7] = NOT_SCORED
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    expected = linear_cross_entropy_reference(*exact, targets)
    wanted = torch.autograd.grad(expected, exact)
    found = chunked_linear_cross_entropy(hidden, weight, targets)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=0)
    for x, exactly in zip(torch.autograd.grad(found, (hidden, weight)), wanted, strict=True):
        assert (x.double() - exactly).norm() < 4 * torch.finfo(dtype).eps * exactly.norm() + 1e-3 * exactly.norm()
