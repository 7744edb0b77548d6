"""Maps of models have the states and the Jacobians of the models, whatever inputs are fixed beforehand."""

import pytest
import torch
from torch import Tensor

from attractor.analysis import Jacobian, finite_time_exponents, jacobian, sphere_tangent
from attractor.errors import InputError
from attractor.models import (
    AKOrNConfig,
    FastSlowConfig,
    ItrSAConfig,
    PreNormItrSAConfig,
    RecursiveConfig,
    TransformerConfig,
)
from attractor.models.language_model import LanguageModel
from attractor.models.maps import Iteration, layer_maps, recurrent_map
from attractor.models.recurrent import RecurrentConfig, RecurrentModel

SIZES = {"vocab_size": 7, "d_model": 8, "n_heads": 2, "d_ff": 16, "max_seq_len": 12}
RECURRENT: dict[str, RecurrentConfig[RecurrentModel]] = {
    "unit": ItrSAConfig(**SIZES, eta=0.7),
    "rms": ItrSAConfig(**SIZES, norm="rms", positions="rope"),
    "none": ItrSAConfig(**SIZES, norm="none"),
    "energy": ItrSAConfig(**SIZES, energy="multi"),
    "prenorm": PreNormItrSAConfig(**SIZES),
    "akorn": AKOrNConfig(**SIZES, gamma=0.5),
    "akorn-scaled": AKOrNConfig(**SIZES, oscillator_width=2, rms_norm=True),
    "recursive": RecursiveConfig(**SIZES, n_inner=2, halting=True),
}
NORMALISED = [name for name in RECURRENT if name not in ("none", "prenorm")]  # states of the others may have any length
LAYERED = {
    "transformer": TransformerConfig(**SIZES, n_layers=3),
    "rope": TransformerConfig(**SIZES, n_layers=3, positions="rope", attention="gqa", n_kv_heads=1),
    "fast-slow": FastSlowConfig(**SIZES, n_post=2),
    "streams": FastSlowConfig(**SIZES, streams=2),
    "forced": FastSlowConfig(**SIZES, equilibrium="forced", n_iterations=2),
    "anderson": FastSlowConfig(**SIZES, equilibrium="anderson"),
    "frozen": FastSlowConfig(**SIZES, frozen=True),
}


def drawn(model: LanguageModel) -> LanguageModel:
    """Build a model in fp64 with all parameters off their starting values, since gains of 1 and gates of 0 would hide
    mistakes."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.double().parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def tokens(n: int = 6) -> Tensor:
    return torch.randint(7, (2, n), generator=torch.Generator().manual_seed(0))


def real() -> Tensor:
    return torch.arange(6) >= torch.tensor([[0], [2]])  # the second sequence has two positions of padding


@pytest.fixture(params=RECURRENT)
def recurrent(request: pytest.FixtureRequest) -> RecurrentModel:
    model = drawn(RECURRENT[request.param].build(seed=0))
    assert isinstance(model, RecurrentModel)
    return model


@pytest.fixture(params=LAYERED)
def layered(request: pytest.FixtureRequest) -> LanguageModel:
    return drawn(LAYERED[request.param].build(seed=0))


@pytest.mark.parametrize("padded", [False, True])
def test_the_orbit_of_the_map_is_that_of_the_model(recurrent: RecurrentModel, padded: bool) -> None:
    """Criterion: after each iteration the state equals the model's, and the map's step equals the model's `step`."""
    padding = real() if padded else None
    step, x = recurrent_map(recurrent, tokens(), padding)
    stimulus = recurrent.stimulus(tokens(), padding)
    for state in recurrent.states(tokens(), 3, real=padding):
        torch.testing.assert_close(x, state)
        torch.testing.assert_close(step(x), recurrent.step(x, stimulus, padding))
        x = step(x)


def test_an_orbit_holds_the_states(recurrent: RecurrentModel) -> None:
    expected = torch.stack(list(recurrent.states(tokens(), 4)))
    torch.testing.assert_close(Iteration.of(recurrent, tokens()).orbit(4), expected)


def test_a_step_is_the_state_before_the_norm_projected_on_the_sphere(recurrent: RecurrentModel) -> None:
    """Criterion: each group is u / |u| times the gain, or u without a sphere. This holds from any state, since the
    Jacobians of both maps are compared."""
    iteration = Iteration.of(recurrent, tokens())
    x = 1.3 * iteration.start
    u, sphere = iteration.before_norm(x), iteration.sphere
    if sphere is None:
        expected = u
    else:
        grouped = u.unflatten(-1, (-1, sphere.n_channels))
        expected = (grouped / grouped.norm(dim=-1, keepdim=True)).flatten(-2) * sphere.gain
    torch.testing.assert_close(iteration.step(x), expected)


@pytest.mark.parametrize("recurrent", NORMALISED, indirect=True)
def test_the_jacobian_has_no_component_along_the_normal_of_the_sphere(recurrent: RecurrentModel) -> None:
    """Criterion: the Jacobian maps directions with a component along the normal to directions without one."""
    iteration = Iteration.of(recurrent, tokens())
    assert iteration.sphere is not None
    tangent, x = sphere_tangent(*iteration.sphere), iteration.step(iteration.start)
    directions = torch.randn(3, *x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(2))
    moved = Jacobian(iteration.step, x, batched=True).jvp(directions)
    torch.testing.assert_close(tangent(iteration.step(x), moved), moved)
    assert (tangent(x, directions) - directions).abs().max() > 0.1


def test_the_energy_is_minus_the_product_of_state_and_response(recurrent: RecurrentModel) -> None:
    iteration = Iteration.of(recurrent, tokens())
    x = iteration.start
    energy = -(x * iteration.response(x)).sum((1, 2))
    torch.testing.assert_close(recurrent.energy(x, recurrent.stimulus(tokens())), energy)


@pytest.mark.parametrize("padded", [False, True])
def test_the_layers_in_sequence_are_the_model(layered: LanguageModel, padded: bool) -> None:
    """Criterion: the last state is the input of the model's last norm."""
    padding = real() if padded else None
    maps = layer_maps(layered, tokens(), padding)
    last = layered.joined(maps.states[-1]) if hasattr(layered, "joined") else maps.states[-1]
    torch.testing.assert_close(layered.norm(last), layered.hidden(tokens(), real=padding)[0])
    torch.testing.assert_close(maps.whole().step(maps.states[0]), maps.states[-1])


def test_a_block_starts_from_its_input(layered: LanguageModel) -> None:
    maps = layer_maps(layered, tokens())
    for layer in range(len(maps.steps)):
        step, start = maps.block(layer)
        torch.testing.assert_close(start, maps.states[layer])
        torch.testing.assert_close(step(start), maps.states[layer + 1])


@pytest.mark.parametrize("family", ["rope", "streams"])
def test_singular_values_of_the_whole_are_those_of_the_product(family: str) -> None:
    """Criterion: they equal those of the product of dense Jacobians, layer by layer."""
    maps = layer_maps(drawn(LAYERED[family].build(seed=0)), tokens(4))
    product = torch.eye(maps.states[0][0].numel(), dtype=torch.float64)
    for step, state in zip(maps.steps, maps.states, strict=False):
        product = jacobian(step, state, batched=True) @ product
    step, start = maps.whole()
    found = finite_time_exponents(step, start, n_steps=1, k=2, batched=True)
    torch.testing.assert_close(found, torch.linalg.svdvals(product)[:, :2].log(), rtol=0, atol=2e-3)


def test_causal_layers_pass_nothing_back() -> None:
    """Criterion: the Jacobian over depth is exactly block triangular in the positions and nonzero below the
    diagonal."""
    model = drawn(LAYERED["transformer"].build(seed=0))
    j = jacobian(*layer_maps(model, tokens(5)).whole(), batched=True)[0].unflatten(1, (5, -1)).unflatten(0, (5, -1))
    size = j.abs().amax((1, 3))
    assert size.triu(1).max() == 0 < size.tril().max()
    assert (size[4] > 0).all()


@pytest.mark.parametrize("family", ["unit", "transformer"])
def test_a_model_in_training_mode_is_refused(family: str) -> None:
    model = (RECURRENT | LAYERED)[family].build(seed=0)
    with pytest.raises(InputError, match=r"evaluation mode, got training mode; call model\.eval\(\)"):
        recurrent_map(model, tokens()) if family == "unit" else layer_maps(model, tokens())


def test_a_model_without_layers_is_refused_with_the_map_it_has() -> None:
    with pytest.raises(InputError, match="got ItrSA; a recurrent model has one map: recurrent_map"):
        layer_maps(RECURRENT["unit"].build(seed=0).eval(), tokens())
    with pytest.raises(InputError, match="layer must be from 0 to 2, got 3"):
        layer_maps(LAYERED["transformer"].build(seed=0).eval(), tokens()).block(3)
