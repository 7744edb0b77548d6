"""The recomputing kick equals the plain one, forward and backward, and keeps nothing but its queries."""

import pytest
import torch
from torch import Tensor

from attractor.kernels.coupling import mlp_kick, mlp_kick_reference

B, T, J, K = 2, 5, 3, 4


def case(groups: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(B, T, J, 1, K), (B, T, J, groups, K), (J, groups, 1), (K, K), (K, K)]
    tensors = [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]
    tensors[2] = tensors[2].abs() + 0.1
    return [x.requires_grad_() for x in tensors]


@pytest.mark.parametrize("groups", [1, 4])
def test_value_and_gradients_equal_the_reference(groups: int) -> None:
    inputs = case(groups)
    expected, found = mlp_kick_reference(*inputs), mlp_kick(*inputs)
    torch.testing.assert_close(found, expected)
    weight = torch.randn(expected.shape, dtype=torch.float64)
    wanted = torch.autograd.grad((expected * weight).sum(), inputs)
    torch.testing.assert_close(torch.autograd.grad((found * weight).sum(), inputs), wanted)


@pytest.mark.parametrize("groups", [1, 4])
def test_second_derivatives_are_right(groups: int) -> None:
    inputs = case(groups)
    assert torch.autograd.gradcheck(mlp_kick, inputs)
    assert torch.autograd.gradgradcheck(mlp_kick, inputs)


def test_nothing_is_kept_for_the_backward_pass_but_the_queries() -> None:
    """Of tensors as large as q, q alone; autograd keeps four more."""
    kept: list[Tensor] = []

    def note(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    inputs = case(1)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        mlp_kick(*inputs)
    large = [x for x in kept if x.numel() == inputs[1].numel()]
    assert [x.data_ptr() for x in large] == [inputs[1].data_ptr()]


def test_autocast_multiplies_in_half_and_keeps_the_state_in_fp32() -> None:
    k, q, dt, inner, outer = case(1, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = mlp_kick(k, q, dt, inner, outer)
        expected = mlp_kick_reference(k, q, dt, inner, outer)
        assert found.dtype == torch.float32
        assert mlp_kick(k + 1000, q, dt * 1e-3, inner, outer).sub(k + 1000).abs().max() > 0  # bf16 would lose it
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    found.sum().backward()
    assert all(x.grad is not None and x.grad.dtype == torch.float32 for x in (k, q, dt, inner, outer))


def test_vmap_over_models_stacks_their_weights() -> None:
    """Many seeds at once: a batch of weights gives what each of them gives alone."""
    k, q, dt, inner, outer = (x.detach() for x in case(1))
    stacks = torch.stack([inner, inner + 1]), torch.stack([outer, outer - 1])
    found = torch.func.vmap(lambda one, other: mlp_kick(k, q, dt, one, other))(*stacks)
    for i in range(2):
        torch.testing.assert_close(found[i], mlp_kick_reference(k, q, dt, stacks[0][i], stacks[1][i]))
