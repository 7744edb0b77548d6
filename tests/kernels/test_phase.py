"""The phase activation that keeps cosines and sines equals the plain one in value and in every kind of derivative."""

import pytest
import torch
from torch import Tensor

from attractor.analysis.jacobian import load_forward_mode
from attractor.kernels.phase import phase_activation, phase_activation_reference
from saved_tensors import n_kept

B, T, H, K = 2, 5, 3, 4


def case(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = (B, T, H, K), (K, K)
    v, weight = (torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes)
    return v.requires_grad_(), weight.requires_grad_()


def test_values_and_gradients_equal_the_reference() -> None:
    """The rows of the input and of its gradient are not adjacent in memory."""
    v, weight = case()
    apart = torch.stack([v, v], dim=-2).detach()[..., 0, :].requires_grad_()
    weights = torch.linspace(-1, 1, B * T * H * 2 * K, dtype=torch.float64).view(B, H, T, 2 * K).transpose(1, 2)
    expected = phase_activation_reference(v, weight)
    wanted = torch.autograd.grad(expected, (v, weight), weights)
    found = phase_activation(apart, weight)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, (apart, weight), weights), wanted)


def test_second_derivatives_are_right() -> None:
    v, weight = case()
    inputs = v[:1, :2, :1].detach().requires_grad_(), weight
    assert torch.autograd.gradcheck(phase_activation, inputs)
    assert torch.autograd.gradgradcheck(phase_activation, inputs)


def test_only_cosines_sines_and_the_input_are_kept() -> None:
    v, weight = case()
    assert n_kept(lambda: phase_activation(v, weight), v.numel()) == 3
    assert n_kept(lambda: phase_activation_reference(v, weight), v.numel()) > 3


@pytest.mark.parametrize("where", ["autocast", "tensors"])
def test_half_precision_rounds_the_result_alone(where: str) -> None:
    """Criterion: in bf16, with angles of tens of radians, value and gradients are the exact ones, rounded."""
    v, weight = (x.detach() for x in case(torch.bfloat16))
    weight = 30 * weight.float()
    half = v.requires_grad_(), (weight.bfloat16() if where == "tensors" else weight).requires_grad_()
    exact = [x.detach().double().requires_grad_() for x in half]
    expected = phase_activation_reference(*exact)
    wanted = torch.autograd.grad(expected.square().sum() + expected.sum(), exact)
    with torch.autocast("cpu", torch.bfloat16, enabled=where == "autocast"):
        found = phase_activation(*half)
    assert found.dtype == torch.bfloat16
    gradients = torch.autograd.grad(found.float().square().sum() + found.float().sum(), half)
    for x, like, value in zip((found, *gradients), (v, *half), (expected, *wanted), strict=True):
        assert x.dtype == like.dtype
        assert (x.double() - value).norm() < 2**-7 * value.norm()


def test_directional_derivatives_are_right() -> None:
    v, weight = (x.detach() for x in case())
    load_forward_mode()
    found, wanted = (
        torch.func.jvp(activate, (v, weight), (v.cos(), weight.sin()))[1]
        for activate in (phase_activation, phase_activation_reference)
    )
    torch.testing.assert_close(found, wanted)


def test_models_side_by_side_each_have_their_own_phases() -> None:
    v, weight = case()
    weights = torch.stack([weight, -2 * weight]).detach().requires_grad_()
    found = torch.func.vmap(phase_activation, in_dims=(None, 0))(v, weights)
    expected = torch.stack([phase_activation_reference(v, w) for w in weights])
    torch.testing.assert_close(found, expected)
    wanted = torch.autograd.grad(expected.square().sum() + expected[1].sum(), (v, weights))
    torch.testing.assert_close(torch.autograd.grad(found.square().sum() + found[1].sum(), (v, weights)), wanted)


def test_compiled_in_one_graph() -> None:
    inputs = case(torch.float32)
    compiled = torch.compile(phase_activation, fullgraph=True, backend="aot_eager")
    expected, found = phase_activation(*inputs), compiled(*inputs)
    torch.testing.assert_close(found, expected)
    wanted = torch.autograd.grad(expected.sum(), inputs)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), inputs), wanted)
