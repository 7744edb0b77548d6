"""The integration that recomputes its states equals the plain one, forward and backward, and keeps only the start."""

import pytest
import torch
from torch import Tensor

from attractor.attention.couple.euler import Euler
from attractor.attention.couple.leapfrog import Leapfrog
from attractor.kernels import coupling
from attractor.kernels.coupling import Program, apply_force, integrate, integrate_reference
from saved_tensors import n_kept

B, T, J, K = 2, 5, 3, 4
PROGRAMS = {
    "euler": Euler().program,
    "two euler steps": Euler(n_steps=2).program,
    "leapfrog": Leapfrog(n_steps=1).program,
    "three leapfrog steps": Leapfrog(n_steps=3).program,
}
every_program = pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)


@pytest.fixture(autouse=True, params=[36, coupling.PIECE], ids=["in pieces", "whole"])
def piece(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Integrate three positions at a time, across the ends of sequences and with one left over, or all at once."""
    monkeypatch.setattr(coupling, "PIECE", request.param)


def case(groups: int = 1, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(B, T, J, groups, K), (B, T, J, 1, K), (J, groups, 1), (K, K), (K, K)]
    tensors = [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]
    tensors[2] = tensors[2].abs() + 0.1
    return [x.requires_grad_() for x in tensors]


def plainly(program: Program, q: Tensor, k: Tensor, dt: Tensor, inner: Tensor, outer: Tensor) -> tuple[Tensor, Tensor]:
    return integrate_reference(program, q, k, dt, lambda q: apply_force(q, inner, outer))


def weighted(outputs: tuple[Tensor, Tensor]) -> Tensor:
    """Return a scalar in which every entry of both outputs has another weight."""
    weights = torch.linspace(-1, 1, outputs[0].numel(), dtype=outputs[0].dtype).view(outputs[0].shape)
    return (outputs[0] * weights).sum() + (outputs[1] * weights.cos()[:, :, :, :1]).sum()


@every_program
@pytest.mark.parametrize("groups", [1, 4])
def test_values_and_gradients_equal_the_reference(program: Program, groups: int) -> None:
    inputs = case(groups)
    expected, found = plainly(program, *inputs), integrate(program, *inputs)
    torch.testing.assert_close(found, expected)
    wanted = torch.autograd.grad(weighted(expected), inputs)
    torch.testing.assert_close(torch.autograd.grad(weighted(found), inputs), wanted)


@pytest.mark.parametrize("which", [0, 1], ids=["q alone", "k alone"])
def test_gradients_are_right_where_only_one_result_is_used(which: int) -> None:
    inputs, program = case(4), PROGRAMS["three leapfrog steps"]
    wanted = torch.autograd.grad(plainly(program, *inputs)[which].square().sum(), inputs)
    found = torch.autograd.grad(integrate(program, *inputs)[which].square().sum(), inputs)
    torch.testing.assert_close(found, wanted)


@pytest.mark.slow
@every_program
def test_second_derivatives_are_right(program: Program) -> None:
    inputs = [x[:1, :2] if x.dim() == 5 else x for x in case(2)]
    assert torch.autograd.gradcheck(lambda *x: integrate(program, *x), inputs)
    assert torch.autograd.gradgradcheck(lambda *x: integrate(program, *x), inputs)


@every_program
def test_only_the_start_is_kept(program: Program) -> None:
    """Criterion: of tensors as large as q, two are kept however many steps are taken; autograd alone would keep
    more."""
    inputs = case()
    assert n_kept(lambda: integrate(program, *inputs), inputs[0].numel()) == 2
    assert n_kept(lambda: plainly(program, *inputs), inputs[0].numel()) > 2


@every_program
def test_autocast_multiplies_in_half_and_keeps_the_state_in_fp32(program: Program) -> None:
    q, k, dt, inner, outer = case(1, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = integrate(program, q, k, dt, inner, outer)
        expected = plainly(program, q, k, dt, inner, outer)
        moved = integrate(program, q, k + 1000, dt * 1e-3, inner, outer)[1]
        assert moved.sub(k + 1000).abs().max() > 0  # a state in bf16 would not move
    assert all(x.dtype == torch.float32 for x in found)
    torch.testing.assert_close(found, expected, rtol=5e-2, atol=5e-2)
    weighted(found).backward()
    whole = torch.autograd.grad(weighted(plainly(program, q, k, dt, inner, outer)), (q, k, dt, inner, outer))
    for x, exact in zip((q, k, dt, inner, outer), whole, strict=True):
        assert x.grad is not None
        assert x.grad.dtype == torch.float32
        assert (x.grad - exact).norm() < 0.05 * exact.norm()


def test_vmap_over_models_stacks_their_weights() -> None:
    """Criterion: a batch of weights gives the value and gradients that each set of weights gives alone."""
    q, k, dt, inner, outer = (x.detach() for x in case())
    stacks = torch.stack([inner, inner + 1]), torch.stack([outer, outer - 1])

    def loss(one: Tensor, other: Tensor) -> Tensor:
        return weighted(integrate(PROGRAMS["leapfrog"], q, k, dt, one, other))

    found = torch.func.vmap(torch.func.grad_and_value(loss, argnums=(0, 1)))(*stacks)
    for i in range(2):
        gradients, value = torch.func.grad_and_value(loss, argnums=(0, 1))(stacks[0][i], stacks[1][i])
        torch.testing.assert_close(found[1][i], value)
        torch.testing.assert_close((found[0][0][i], found[0][1][i]), gradients)


def test_gradients_of_weights_are_added_up_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: with weights in bf16, many pieces are as exact as one."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 512, 2, 1, 8), (2, 512, 2, 1, 8), (2, 1, 1), (8, 8), (8, 8)]
    q, k, dt, inner, outer = (torch.randn(shape, generator=generator) for shape in shapes)
    half = [q, k, dt.abs(), inner.bfloat16(), outer.bfloat16()]

    def of_weights(inputs: list[Tensor]) -> list[Tensor]:
        inputs = [x.clone().requires_grad_() for x in inputs]
        found = torch.autograd.grad(weighted(integrate(PROGRAMS["euler"], *inputs)), inputs[3:])
        return [x.double() for x in found]

    exact, errors = of_weights([x.double() for x in half]), {}
    for pieces in (1, 64):
        monkeypatch.setattr(coupling, "PIECE", 2 * 512 * 16 // pieces)
        pairs = zip(exact, of_weights(half), strict=True)
        errors[pieces] = max(float((a - b).norm() / a.norm()) for a, b in pairs)
    assert errors[64] < 1.5 * errors[1]
