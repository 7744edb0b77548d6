"""Regularizers of attention's weights have known values and exact gradients, and refuse layers where they mean
nothing."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from attractor import attention
from attractor.attention import PRESETS
from attractor.control.regularize import (
    REGULARIZERS,
    Regularizer,
    Spectral,
    iterated,
    linear_maps,
    multi_energy_gap,
    single_energy_gap,
    singular_vectors,
    spectral_excess,
    squared_norms,
)
from attractor.errors import InputError
from attractor.models import AKOrNConfig, FastSlowConfig, ItrSAConfig, PreNormItrSAConfig, TransformerConfig
from attractor.models.energy import MultiHeadEnergy, SingleHeadEnergy, symmetric
from tiers import tiered

D, H = 16, 4
WEIGHTLESS = "uniform"  # the preset that has neither queries nor keys


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def orthogonal(n: int, seed: int = 0) -> Tensor:
    return torch.linalg.qr(random(n, n, seed=seed)).Q


def layer_of(name: str = "standard", n_heads: int = H, **changes: Any) -> attention.Attention:
    torch.manual_seed(0)
    return attention.build(name, D, n_heads, **changes).double()


def give(layer: nn.Module, **matrices: Tensor) -> None:
    """Set the weights of some maps of a layer, in the layout of `nn.Linear`."""
    maps = linear_maps(layer)  # type: ignore[arg-type]
    with torch.no_grad():
        for name, matrix in matrices.items():
            maps[name].weight.copy_(matrix)


def exact(layer: nn.Module) -> Tensor:
    """Compute (1) by singular values."""
    maps = linear_maps(layer).values()  # type: ignore[arg-type]
    norms = torch.stack([torch.linalg.matrix_norm(linear.weight, ord=2) ** 2 for linear in maps])
    return spectral_excess(norms, [linear.bias for linear in maps if linear.bias is not None])


def test_spectral_of_known_matrices_and_biases() -> None:
    """Criterion: orthogonal maps cost 0, c times orthogonal maps (c^2 - 1)^2 each, and a query, key or value bias of
    length r costs r^4."""
    layer = layer_of(qkv_bias=True)
    maps = linear_maps(layer)
    assert list(maps) == ["query", "key", "value", "out"]
    for name in ("query", "key", "value"):
        nn.init.zeros_(maps[name].bias)
    give(layer, **{name: orthogonal(D, seed) for seed, name in enumerate(maps)})
    assert Spectral(layer)().item() == pytest.approx(0.0, abs=1e-24)
    give(layer, query=1.5 * orthogonal(D), out=0.5 * orthogonal(D))
    assert Spectral(layer)().item() == pytest.approx(1.25**2 + 0.75**2)
    nn.init.constant_(maps["value"].bias, 2.0)
    assert Spectral(layer)().item() == pytest.approx(1.25**2 + 0.75**2 + (4.0 * D) ** 2)


def test_spectral_is_invariant_to_rotations_of_inputs_and_outputs() -> None:
    layer = layer_of()
    before = Spectral(layer)()
    give(
        layer,
        **{name: orthogonal(D, 1) @ linear.weight @ orthogonal(D, 2) for name, linear in linear_maps(layer).items()},
    )
    torch.testing.assert_close(Spectral(layer)(), before)


@pytest.mark.parametrize("preset", tiered(sorted(PRESETS.keys() - {WEIGHTLESS})))
def test_value_and_gradient_are_those_of_singular_values_in_every_preset(preset: str) -> None:
    """Criterion: they agree to 1e-8 in fp64 for every parameter; only maps between x and q, k, v or out have a
    gradient."""
    layer = layer_of(preset)
    found, wanted = Spectral(layer)(), exact(layer)
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=0)
    given = list(layer.parameters())
    gradients = [torch.autograd.grad(value, given, allow_unused=True) for value in (found, wanted)]
    for ours, theirs in zip(*gradients, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    named = {id(parameter) for linear in linear_maps(layer).values() for parameter in linear.parameters()}
    assert {id(p) for p, gradient in zip(given, gradients[0], strict=True) if gradient is not None} == named


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    shape=st.sampled_from([(64, 64), (64, 16), (16, 64), (96, 33)]),
    gap=st.sampled_from([0.0, 1e-6, 1e-4, 1e-3, 1e-2, 0.1]),
)
def test_the_first_call_is_exact_wherever_singular_values_lie(seed: int, shape: tuple[int, int], gap: float) -> None:
    """Criterion: the value is exact to 1e-5 in fp32, with three singular values within the gap."""
    left, values, right = torch.linalg.svd(random(*shape, seed=seed), full_matrices=False)
    values[:3] = values[0] * (1 - gap * torch.arange(3))
    matrix = (left @ values.diag() @ right).float().unsqueeze(0)
    found = squared_norms(matrix, iterated(matrix, singular_vectors(matrix))).sqrt()
    assert float(found) == pytest.approx(float(values[0]), rel=1e-5)


def test_the_estimate_follows_moving_weights_and_crossing_singular_values() -> None:
    """Criterion: the value is within 1e-3 of the exact one and never above it, at each of 200 steps. The second
    singular value rises past the first at one percent a step, and all others drift."""
    left, values, right = torch.linalg.svd(random(48, 48))
    values[0], values[1:] = 4.0, values[1:] / 7
    layer = attention.build("standard", 48, H).double()
    spectral = Spectral(layer)
    drift = torch.zeros(48, 48, dtype=torch.float64)
    for step in range(200):
        values[1] = 2.0 * 1.01**step
        drift += 2e-3 * random(48, 48, seed=step)
        give(layer, query=left @ values.diag() @ right + drift)
        spectral()
        (vectors, weight) = spectral.vectors[""]["query.weight"], layer.project.query.weight.detach()
        found = (weight @ vectors[:, 0]).norm() / torch.linalg.matrix_norm(weight, ord=2)
        assert 1 - 1e-3 < float(found) < 1 + 1e-12, step


def test_a_matrix_of_zeros_is_penalised_and_measured_again_when_it_becomes_nonzero() -> None:
    layer = layer_of()
    spectral = Spectral(layer)
    give(layer, query=torch.zeros(D, D))
    spectral().backward()
    assert all(bool(p.grad.isfinite().all()) for p in layer.parameters() if p.grad is not None)
    give(layer, query=random(D, D))
    for _ in range(60):
        found = spectral()
    torch.testing.assert_close(found, exact(layer), rtol=1e-3, atol=0)


@pytest.mark.parametrize("second", [0.0, 1e-30, 1e-3, 0.5])
@pytest.mark.parametrize("largest", [1e-8, 1.0, 1e4])
def test_in_fp32_matrices_may_be_flat_small_or_large(largest: float, second: float) -> None:
    """Criterion: the value is exact to 1e-6 and never above, at the first call and 20 calls later. The matrix has two
    nonzero singular values of any ratio."""
    values = torch.zeros(D, dtype=torch.float64)
    values[:2] = torch.tensor([largest, second * largest])
    matrix = (orthogonal(D) @ values.diag() @ orthogonal(D, 1)).float().unsqueeze(0)
    vectors = singular_vectors(matrix)
    for _ in range(20):
        vectors = iterated(matrix, vectors)
        assert squared_norms(matrix.double(), vectors.double()).sqrt().item() == pytest.approx(largest, rel=1e-6)


def test_the_penalty_is_computed_in_fp32_for_any_precision_of_the_model() -> None:
    """Criterion: autocast changes no bit, and bf16 weights give the value of the same weights in fp32."""
    layer = layer_of().float()
    found = Spectral(layer)()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(Spectral(layer)(), found)
    halves = layer.bfloat16()
    found = Spectral(halves)()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact(halves.float()), rtol=1e-5, atol=0)


def test_a_restored_state_continues_to_the_bit() -> None:
    """Criterion: a regularizer with a loaded state gives the next values of the saved one; the saved state is a
    copy."""
    layer = layer_of("mla")
    spectral, other = Spectral(layer), Spectral(layer)
    for step in range(5):
        spectral()
        give(layer, down=random(*layer.project.down.weight.shape, seed=step))
    stored = spectral.state_dict()
    values = [spectral() for _ in range(3)]
    assert not torch.equal(other(), values[0])
    other.load_state_dict(stored)
    assert all(torch.equal(other(), value) for value in values)


def test_single_energy_is_zero_where_attention_is_that_of_an_energy() -> None:
    """Criterion: a plain layer that computes the model with a built-in energy, up to rounding, has penalty 0."""
    energy = SingleHeadEnergy(D, 1).double()
    matrix = symmetric(energy.query.weight.mT @ energy.key.weight).detach()
    turn = orthogonal(D, 3)
    layer = layer_of(n_heads=1)
    give(layer, query=turn @ matrix, key=turn, value=turn @ matrix, out=turn.mT)
    x = random(2, 5, D)
    torch.testing.assert_close(layer(x, causal_mask=False)[0], energy(x)[0])
    assert REGULARIZERS["energy-single"](layer)().item() == pytest.approx(0.0, abs=1e-24)


def test_single_energy_compares_with_the_symmetric_part_in_the_right_order() -> None:
    """Criterion: W_V W_O = sym(W_Q W_K') costs 0 for any W_Q and W_K. An antisymmetric addition to W_V W_O counts in
    full, also where W_V and W_O do not commute."""
    query, key, value, skew = random(D, D), random(D, D, seed=1), random(D, D, seed=2), random(D, D, seed=3)
    skew = skew - skew.mT
    wanted = symmetric(query.mT @ key)
    out = torch.linalg.solve(value.mT, wanted).mT  # solves W_V W_O = wanted
    assert single_energy_gap(query, key, value, out).item() == pytest.approx(0.0, abs=1e-20)
    out = torch.linalg.solve(value.mT, wanted + skew).mT
    assert single_energy_gap(query, key, value, out).item() == pytest.approx(float(skew.square().sum()))
    assert single_energy_gap(query, key, value, out.mT).item() > 1.0
    turned = single_energy_gap(orthogonal(D) @ query, orthogonal(D) @ key, value, out)
    torch.testing.assert_close(turned, single_energy_gap(query, key, value, out))


def test_multi_energy_of_attention_with_an_energy_is_the_distance_of_its_heads_from_projections() -> None:
    """The model with a built-in energy has W_V = U S and W_O = U', so the gap is sum_h |S_h - 1|^2, which is 0 for S =
    1. A plain layer computes the same function."""
    energy = MultiHeadEnergy(D, H).double()
    x = random(2, 5, D)
    for strength in (energy.strength.detach().clone(), torch.eye(D // H).expand(H, -1, -1)):
        with torch.no_grad():
            energy.strength.copy_(strength)
        maps = energy.maps()
        assert maps.basis is not None
        layer = layer_of()
        give(layer, query=maps.query.mT, key=maps.basis.mT, value=maps.query.mT, out=maps.basis)
        torch.testing.assert_close(layer(x, causal_mask=False)[0], energy(x)[0])
        wanted = (symmetric(energy.strength) - torch.eye(D // H)).square().sum().item()
        assert REGULARIZERS["energy-multi"](layer)().item() == pytest.approx(wanted, abs=1e-24)
    assert wanted == 0.0


def test_multi_energy_is_invariant_to_a_rotation_within_a_head_and_not_across_heads() -> None:
    value, out = random(D, D), random(D, D, seed=1)
    before = multi_energy_gap(value, out)
    inside = torch.block_diag(*(orthogonal(D // H, seed) for seed in range(H)))
    torch.testing.assert_close(multi_energy_gap(inside @ value, out @ inside.mT), before)
    assert not torch.isclose(multi_energy_gap(inside @ value, out), before)


def test_gradients_are_exact() -> None:
    four = [random(4, 4, seed=seed).requires_grad_() for seed in range(4)]
    assert torch.autograd.gradcheck(single_energy_gap, four)
    assert torch.autograd.gradcheck(multi_energy_gap, four[:2])
    assert torch.autograd.gradcheck(
        lambda s, *b: spectral_excess(s, b), [random(3).requires_grad_(), *(w[0] for w in four)]
    )


SMALL = {"vocab_size": 20, "d_model": 16, "max_seq_len": 9}
RECURRENT = {**SMALL, "n_iterations": 2}
MODELS: dict[str, Any] = {
    "fast and slow": FastSlowConfig(**SMALL, d_ff=8),
    "itrsa": ItrSAConfig(**RECURRENT, n_heads=2),
    "itrsa, one head": ItrSAConfig(**RECURRENT, n_heads=1),
    "itrsa of the authors of akorn": PreNormItrSAConfig(**RECURRENT, n_heads=2, d_ff=8),
    "akorn": AKOrNConfig(**RECURRENT, n_heads=2, d_ff=8),
}


@pytest.mark.parametrize("model", MODELS)
def test_the_penalty_of_a_model_is_the_sum_over_its_layers_with_gradients_for_their_weights_alone(model: str) -> None:
    built = MODELS[model].build(seed=0)
    layers = [module for module in built.modules() if isinstance(module, attention.Attention)]
    spectral = Spectral(built)
    assert len(spectral.layers) == len(layers) > 0
    spectral().backward()
    torch.testing.assert_close(spectral(), sum(exact(layer) for layer in layers), rtol=1e-4, atol=0)
    given = {name for name, parameter in built.named_parameters() if parameter.grad is not None}
    assert given == {f"{layer}.{place}" for layer, place in places(spectral)}


def places(regularizer: Regularizer) -> set[tuple[str, str]]:
    stages = {"out": "output"}
    return {
        (layer, f"{stages.get(name.split('.')[0], 'project')}.{name}")
        for layer, weights in regularizer.layers.items()
        for name in weights
    }


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("spectral", {"name": "uniform"}, "without queries and keys"),
        ("spectral", {"sigma_reparam": True}, "divided by their norm"),
        ("energy-single", {}, "there are 4 heads"),
        ("energy-multi", {"name": "mqa"}, "share the values of 1"),
        ("energy-multi", {"name": "uniform"}, "without queries and keys"),
        ("energy-multi", {"name": "mla"}, "made from a latent"),
        ("energy-multi", {"name": "psiqrh"}, "made from a latent"),
        ("energy-multi", {"name": "coupled-euler"}, "coupled before they are scored"),
        ("energy-multi", {"name": "phase"}, "coupled before they are scored"),
        ("energy-multi", {"qk_norm": True}, "no bilinear form"),
        ("energy-multi", {"softcap": 5.0}, "no bilinear form"),
        ("energy-multi", {"name": "differential"}, "the score is differential"),
        ("energy-multi", {"name": "decay"}, "the score is decayed"),
        ("energy-multi", {"name": "gated"}, "the output is gated"),
        ("energy-multi", {"name": "short-conv"}, "mix in other positions or layers"),
        ("energy-multi", {"name": "value-residual"}, "mix in other positions or layers"),
        ("energy-single", {"name": "gated", "n_heads": 1}, "the output is gated"),
        ("spectral", {"n_heads": 1, "orthogonal_values": True}, "orthogonal matrix"),
        ("energy-single", {"n_heads": 1, "orthogonal_values": True}, "orthogonal matrix"),
    ],
)
def test_layers_without_the_weights_are_refused_with_the_reason(name: str, changes: dict[str, Any], says: str) -> None:
    model = nn.ModuleDict({"first": layer_of(**changes)})
    with pytest.raises(InputError, match=f"regularizer must be another.*{says}.*as in 'first', got '{name}'; "):
        REGULARIZERS[name](model)


def test_a_model_without_attention_is_refused() -> None:
    with pytest.raises(InputError, match=r"must have attention layers of attractor for .* 'spectral', got Linear"):
        Spectral(nn.Linear(2, 2))


def test_orthogonal_values_stay_orthogonal_and_the_penalty_takes_the_matrix_that_acts() -> None:
    """Criterion: W_V and W_O are orthogonal for any free matrices; with W_O = W_V' the penalty is 0, and uniform
    attention maps every row to the mean row."""
    layer = layer_of(orthogonal_values=True)
    free = random(D, D, seed=3) * 5
    with torch.no_grad():
        layer.project.value.weight.copy_(free)
        unit = torch.eye(D, dtype=torch.float64)
        matrix = layer.project.value(unit).T
        torch.testing.assert_close(matrix @ matrix.T, unit)
        layer.output.out.weight.copy_(-free)  # the transpose of an orthogonal matrix has the opposite A
        give(layer, query=torch.zeros(D, D, dtype=torch.float64))
        x = random(2, 5, D)
        torch.testing.assert_close(layer(x, False)[0], x.mean(1, keepdim=True).expand_as(x))
    penalty = REGULARIZERS["energy-multi"](layer)
    assert penalty().item() == pytest.approx(0, abs=1e-20)
    other = random(D, D, seed=4)
    with torch.no_grad():
        layer.output.out.weight.copy_(other)
        acting = layer.output.out(unit)
    torch.testing.assert_close(acting @ acting.T, unit)
    assert penalty().item() == pytest.approx(float((matrix - acting).square().sum()))
    penalty().backward()
    assert layer.project.value.weight.grad.abs().max() > 0


def test_orthogonal_values_need_a_square_matrix() -> None:
    with pytest.raises(InputError, match="orthogonal_values must be False unless heads have d_model=16 values"):
        layer_of(n_kv_heads=2, orthogonal_values=True)
    stored = ItrSAConfig(d_model=16, n_heads=4, orthogonal_values=True)
    assert ItrSAConfig.from_dict({key: x for key, x in stored.to_dict().items() if key != "family"}) == stored
    assert "orthogonal_values" not in ItrSAConfig().to_dict()


def test_a_spectral_penalty_recovers_from_weights_that_are_not_finite() -> None:
    """Criterion: after the weights are restored, the penalty is that of a new regularizer; its state follows a change
    of dtype."""
    model = TransformerConfig(vocab_size=31, d_model=16, n_heads=2, n_layers=1, d_ff=16, max_seq_len=8).build(0)
    penalty = REGULARIZERS["spectral"](model)
    before = penalty().item()
    good = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        model.layers[0].attention.project.query.weight.fill_(torch.nan)
    penalty()
    model.load_state_dict(good)
    assert penalty().item() == pytest.approx(before, rel=1e-4)
    assert REGULARIZERS["spectral"](model.double())().item() == pytest.approx(penalty().item(), rel=1e-4)


@pytest.mark.parametrize("name", ["spectral", "energy-multi"])
def test_matrices_that_something_changes_before_they_act_are_refused(name: str) -> None:
    model = TransformerConfig(vocab_size=31, d_model=16, n_heads=2, n_layers=1, d_ff=16, max_seq_len=8).build(0)
    torch.nn.utils.parametrizations.weight_norm(model.layers[0].attention.project.value)
    with pytest.raises(
        InputError, match=r"^regularizer must be None where an adapter or a parametrization changes a m"
    ):
        REGULARIZERS[name](model)
