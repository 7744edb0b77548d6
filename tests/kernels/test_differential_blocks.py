"""The difference of two attentions in blocks equals the plain one, forward and backward."""

import pytest
import torch
from torch import Tensor

from attractor.kernels import differential_blocks
from attractor.kernels.differential import differential_attention_reference
from attractor.kernels.differential_blocks import differential_attention_in_blocks

SCALE = 0.6


def case(batch: int, heads: int, kv_heads: int, length: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(batch, 2 * heads, length, 3), (batch, 2 * kv_heads, length, 3), (batch, kv_heads, length, 6)]
    drawn = [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]
    by = torch.rand(heads, 1, 1, generator=generator, dtype=dtype)
    return [x.requires_grad_() for x in (*drawn, by)]


@pytest.fixture(params=[(2, 10**6), (5, 100), (100, 10**6)], ids=["many blocks", "one sequence a time", "one block"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, numbers = request.param
    monkeypatch.setattr(differential_blocks, "ROWS", rows)
    monkeypatch.setattr(differential_blocks, "NUMBERS", numbers)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("by_token", [False, True])
@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (3, 1)])
def test_values_and_gradients_equal_the_reference(heads: int, kv_heads: int, by_token: bool) -> None:
    *inputs, by = case(3, heads, kv_heads, 11)
    inputs.append(torch.rand(3, heads, 11, 1, dtype=torch.float64).requires_grad_() if by_token else by)
    expected, found = (f(*inputs, SCALE) for f in (differential_attention_reference, differential_attention_in_blocks))
    torch.testing.assert_close(found, expected)
    weight = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).view(expected.shape)
    wanted = torch.autograd.grad((expected * weight).sum(), inputs)
    torch.testing.assert_close(torch.autograd.grad((found * weight).sum(), inputs), wanted)


@pytest.mark.usefixtures("blocks")
def test_gradients_after_a_position_are_exactly_zero() -> None:
    inputs = case(1, 2, 2, 9)
    found = differential_attention_in_blocks(*inputs, SCALE)
    grad_q, *before = torch.autograd.grad(found[:, :, 4].sum(), inputs[:3])
    for grad in (grad_q, *before):
        assert (grad[:, :, 5:] == 0).all()
    assert (grad_q[:, :, :4] == 0).all()
    assert (grad_q[:, :, 4] != 0).all()
    for grad in before:
        assert (grad[:, :, :5] != 0).all()


def test_second_derivatives_are_right() -> None:
    inputs = case(1, 1, 1, 3)
    assert torch.autograd.gradcheck(lambda *x: differential_attention_in_blocks(*x, SCALE), inputs)
    assert torch.autograd.gradgradcheck(lambda *x: differential_attention_in_blocks(*x, SCALE), inputs)


def test_half_precision_is_near_the_exact_result() -> None:
    exact = case(2, 4, 2, 40)
    halves = [x.detach().to(torch.bfloat16 if i < 3 else torch.float32).requires_grad_() for i, x in enumerate(exact)]
    expected, found = differential_attention_reference(*exact, SCALE), differential_attention_in_blocks(*halves, SCALE)
    assert found.dtype == torch.bfloat16
    assert (found - expected).norm() < 0.02 * expected.norm()
    wanted = torch.autograd.grad(expected.square().sum(), exact)
    for grad, right in zip(torch.autograd.grad(found.float().square().sum(), halves), wanted, strict=True):
        assert (grad - right).norm() < 0.03 * right.norm()


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("varied", [(0, 1, 2, 3), (0,), (1,), (2,), (3,)])
def test_vmap_over_models_gives_the_results_of_each_model(varied: tuple[int, ...]) -> None:
    """Criterion: models may differ in all inputs or in some; values and gradients are those of each model alone."""
    inputs = [x.detach() for x in case(2, 2, 2, 6)]
    stacked = [torch.stack([x, x * 1.5]) if i in varied else x for i, x in enumerate(inputs)]

    def both(*x: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        return torch.func.grad_and_value(
            lambda *x: differential_attention_in_blocks(*x, SCALE).square().sum(), (0, 1, 2, 3)
        )(*x)

    found = torch.func.vmap(both, tuple(0 if i in varied else None for i in range(4)))(*stacked)
    for model in range(2):
        alone = [x[model] if i in varied else x for i, x in enumerate(stacked)]
        alone = [x.clone().requires_grad_() for x in alone]
        expected = differential_attention_reference(*alone, SCALE).square().sum()
        torch.testing.assert_close(found[1][model], expected)
        wanted = torch.autograd.grad(expected, alone)
        torch.testing.assert_close(tuple(grad[model] for grad in found[0]), wanted)
