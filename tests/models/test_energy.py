"""Attention that descends an energy: its gradient, its sign, its parametrisation, and matrices for which it fails."""

from typing import Any

import pytest
import torch
from torch import Tensor

from attractor.attention import Rope
from attractor.attention.hooks import capture
from attractor.errors import InputError
from attractor.models import ItrSAConfig
from attractor.models.energy import ENERGIES, EnergyAttention, cayley, pseudo_energy, symmetric

KINDS = {"single": 1, "multi": 4}  # number of heads
D = 16


def built(kind: str, seed: int = 0) -> EnergyAttention:
    torch.manual_seed(seed)
    layer = ENERGIES[kind](D, KINDS[kind]).double()
    with torch.no_grad():  # large enough that attention differs from a mean
        for parameter in layer.parameters():
            parameter.mul_(3)
    return layer


def states(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_the_energy_falls_along_attention_whatever_the_weights(kind: str) -> None:
    """Criterion: the inner product of the energy's gradient, by autograd, with attention's output is what (6)
    states."""
    for seed in range(5):
        layer = built(kind, seed)
        x = states(8, 6, D, seed=seed).requires_grad_()
        (gradient,) = torch.autograd.grad(layer.energy(x).sum(), x)
        with torch.no_grad():
            moved, _ = layer(x)
            maps = layer.maps()
            q = (x @ maps.query).unflatten(-1, (layer.n_heads, -1)).transpose(1, 2)
            k = (x if maps.basis is None else x @ maps.basis).unflatten(-1, (layer.n_heads, -1)).transpose(1, 2)
            powers = (layer.scale * q @ k.mT).exp()
            sums = powers.sum(-1)
            by_head = powers / sums.unsqueeze(-1) @ q
            expected = -2 * layer.scale * (sums * by_head.square().sum(-1)).sum((1, 2))
        slope = (gradient * moved).sum((1, 2))
        torch.testing.assert_close(slope, expected)
        assert (slope < 0).all()


def test_with_one_head_every_token_moves_against_its_own_gradient() -> None:
    layer, x = built("single"), states(4, 6, D).requires_grad_()
    (gradient,) = torch.autograd.grad(layer.energy(x).sum(), x)
    moved, _ = layer(x)
    torch.testing.assert_close(torch.cosine_similarity(gradient, moved, dim=-1), -torch.ones(4, 6).double())


@pytest.mark.parametrize("kind", KINDS)
def test_the_energy_falls_along_small_euler_steps(kind: str) -> None:
    shape: dict[str, Any] = {"d_model": D, "n_heads": KINDS[kind], "max_seq_len": 16}
    config = ItrSAConfig(**shape, energy=kind, norm="none", inject=False, blank=None, eta=0.01)
    model = config.build(seed=0).double().eval()
    tokens = torch.randint(0, 10, (4, 16), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        energies = torch.stack([model.attention.energy(state) for state in model.states(tokens, 50)])
    assert (energies.diff(dim=0) < 0).all()


def test_heads_are_projections_on_orthogonal_subspaces_and_the_matrices_symmetric() -> None:
    maps = built("multi").maps()
    assert maps.basis is not None
    torch.testing.assert_close(maps.basis.mT @ maps.basis, torch.eye(D).double())
    for head in range(4):
        columns = slice(4 * head, 4 * (head + 1))
        matrix = maps.query[:, columns] @ maps.basis[:, columns].mT
        torch.testing.assert_close(matrix, matrix.mT)
        assert torch.linalg.matrix_rank(matrix) == 4
    (single, basis) = built("single").maps()
    assert basis is None
    assert torch.equal(single, single.mT)


def test_cayley_is_orthogonal_for_any_matrix_also_in_single_precision_and_large() -> None:
    for size in (0.0, 1.0, 100.0):
        basis = cayley(size * states(64, 64).float())
        torch.testing.assert_close(basis.mT @ basis, torch.eye(64), atol=2e-4, rtol=0)
    assert torch.equal(cayley(torch.zeros(5, 5)), torch.eye(5))


@pytest.mark.parametrize("kind", KINDS)
def test_the_layer_keeps_the_contract_of_attention(kind: str) -> None:
    layer, x = built(kind), states(2, 6, D)
    with capture("logits", "weights", "q_coupled", "k_coupled") as seen:
        watched, aux_loss = layer(x)
    out, _ = layer(x, maps=layer.maps())
    assert torch.equal(watched, out)
    assert aux_loss == 0
    (logits,), (weights,) = seen["logits"], seen["weights"]
    torch.testing.assert_close(logits, logits.mT)
    torch.testing.assert_close(weights, logits.softmax(-1))
    torch.testing.assert_close(layer.energy(x), -logits.exp().sum((1, 2, 3)))
    real = torch.tensor([[False, True, True, True, True, True]] * 2)
    padded, _ = layer(x, causal_mask=real[:, None, None, :].expand(-1, 1, 6, -1))
    torch.testing.assert_close(padded[:, 1:], layer(x[:, 1:])[0])
    with pytest.raises(InputError, match="rope must be None for attention with an energy"):
        layer(x, rope=Rope(4))


def test_the_energy_of_a_single_head_refuses_several_heads() -> None:
    with pytest.raises(InputError, match="n_heads must be 1 under the energy of a single head, got 4"):
        ENERGIES["single"](D, 4)


def slopes(matrix: Tensor, x: Tensor) -> Tensor:
    """Return <dE/dX, dX> of one head with W_V = sym(A), sample by sample; it is negative where the energy falls."""
    x = x.clone().requires_grad_()
    logits = x @ matrix @ x.mT
    (gradient,) = torch.autograd.grad(-logits.exp().sum(), x)
    motion = logits.softmax(-1) @ x @ symmetric(matrix)
    return (gradient * motion).sum((-2, -1)).detach()


def test_a_symmetric_matrix_never_raises_the_energy_and_an_asymmetric_one_sometimes_does() -> None:
    """The sample has 20,000 draws of two tokens in the plane with lengths of about 2."""
    matrices, x = states(20_000, 2, 2, seed=3), 2 * states(20_000, 2, 2, seed=4)
    mostly_turning = symmetric(matrices) + 4 * (matrices - matrices.mT)
    kinds = (symmetric(matrices), matrices, mostly_turning)
    never, sometimes, often = (float((slopes(matrix, x) > 0).double().mean()) for matrix in kinds)
    assert 0 == never < sometimes < min(often, 0.5)


def test_pseudo_energy_is_the_trace_over_real_positions() -> None:
    x, y = states(3, 5, D), states(3, 5, D, seed=1)
    expected = torch.stack([-torch.trace(a.mT @ b) for a, b in zip(x, y, strict=True)])
    torch.testing.assert_close(pseudo_energy(x, y), expected)
    real = torch.tensor([True, True, True, False, False]).expand(3, 5)
    torch.testing.assert_close(pseudo_energy(x, y, real), pseudo_energy(x[:, :3], y[:, :3]))


@pytest.mark.parametrize("norm", ["unit", "rms"])
@pytest.mark.parametrize(("energy", "n_heads"), [("single", 1), ("multi", 4)])
def test_initial_logits_are_as_wide_as_those_of_other_attention(norm: str, energy: str, n_heads: int) -> None:
    """Criterion: logits of random states have a standard deviation of 1/3 without an energy, and of 1/5 to 1/2 with."""
    shape: dict[str, Any] = {"d_model": 64, "max_seq_len": 16, "norm": norm}
    deviations = []
    for kind in (None, energy):
        model = ItrSAConfig(**shape, n_heads=n_heads, energy=kind).build(seed=0)
        states = model.normalised(torch.randn(8, 16, 64, generator=torch.Generator().manual_seed(0)))
        with torch.no_grad(), capture("q_coupled", "k_coupled") as seen:
            model.step(states, torch.zeros_like(states))
        (q,), (k,) = seen["q_coupled"], seen["k_coupled"]
        deviations.append(float((q @ k.mT * model.attention.scale).std()))
    assert deviations[0] == pytest.approx(1 / 3, rel=0.1)
    assert 0.2 < deviations[1] < 0.5
