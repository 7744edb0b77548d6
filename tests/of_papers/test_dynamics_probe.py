"""The probe of recurrent models agrees with dense Jacobians and fulfils the known bounds."""

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from attractor.analysis import Jacobian, jacobian, sphere_tangent
from attractor.models import AKOrNConfig, ItrSA, ItrSAConfig, PreNormItrSA, PreNormItrSAConfig
from attractor.models.maps import Iteration
from attractor.models.recurrent import RecurrentConfig, RecurrentModel
from attractor.tasks.sudoku import Sudoku
from attractor.train.config import TrainConfig
from papers.jacobians.probes import dynamics as probe
from papers.jacobians.probes.dynamics import (
    LONGER,
    N_BOARDS,
    correlation,
    dynamics,
    dynamics_of_run,
    leading_eigenvector,
    leading_share,
    portrait,
)
from tiers import fast_alone

SIZES = {"vocab_size": 5, "d_model": 8, "n_heads": 2, "d_ff": 16, "max_seq_len": 16, "n_iterations": 4}
N_STEPS = 4  # fewer steps than by default, since each needs a dense Jacobian
FAMILIES: dict[str, RecurrentConfig[RecurrentModel]] = {
    "unit": ItrSAConfig(**SIZES, eta=0.7),
    "rms": ItrSAConfig(**SIZES, norm="rms", eta=3.0),
    "akorn": AKOrNConfig(**SIZES, rms_norm=True),
    "prenorm": PreNormItrSAConfig(**SIZES),
}


@pytest.fixture(scope="module", autouse=True)
def shorter() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "N_STEPS", N_STEPS)
        patch.setattr(probe, "ALIGNED_AT", (0, N_STEPS))
        yield


def drawn(config: RecurrentConfig[RecurrentModel], size: float = 0.3) -> RecurrentModel:
    """Move every parameter off its start, so that attention is not nearly uniform and gains are not 1."""
    model, generator = config.build(seed=0), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += size * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def iteration_of(config: RecurrentConfig[RecurrentModel], double: bool = True) -> Iteration:
    model = drawn(config)
    tokens = torch.randint(5, (2, 9), generator=torch.Generator().manual_seed(0))
    return Iteration.of(model.double() if double else model, tokens)


@pytest.fixture(scope="module", params=fast_alone(FAMILIES, "unit"))
def measured(request: pytest.FixtureRequest) -> tuple[Iteration, dict[str, Any]]:
    iteration = iteration_of(FAMILIES[request.param])
    return iteration, dynamics(iteration)


def dense(iteration: Iteration, which: str, times: range) -> Tensor:
    orbit = iteration.orbit(N_STEPS)
    return torch.stack([jacobian(getattr(iteration, which), orbit[t], batched=True).detach() for t in times])


def test_norms_and_shares_are_those_of_the_matrices(measured: tuple[Iteration, dict[str, Any]]) -> None:
    iteration, found = measured
    for name, which in (("norm", "step"), ("norm_before", "before_norm")):
        expected = torch.linalg.matrix_norm(dense(iteration, which, range(N_STEPS)), 2)
        assert found[name]["by_step"] == pytest.approx(expected.mean(1).tolist(), rel=2e-3)
        assert found[name]["largest"] == pytest.approx(float(expected.max()), rel=2e-3)
    ends = dense(iteration, "step", range(0, N_STEPS + 1, N_STEPS))
    radii = torch.linalg.eigvals(ends).abs().amax(-1).mean(1)
    shares = ((ends - ends.mT) / 2).square().sum((-2, -1)) / ends.square().sum((-2, -1))
    for index, place in enumerate(("start", "end")):
        assert found["radius"][place] == pytest.approx(float(radii[index]), rel=2e-3)
        assert found["antisymmetric_share"][place] == pytest.approx(float(shares[index].mean()), rel=0.3)


def test_exponents_are_singular_values_of_the_product(measured: tuple[Iteration, dict[str, Any]]) -> None:
    """Criterion: they follow from the dense product, restricted at the start to directions tangent to the sphere."""
    iteration, found = measured
    orbit, tangent = iteration.orbit(N_STEPS), None
    if iteration.sphere is not None:
        tangent = sphere_tangent(*iteration.sphere)
    product = jacobian(iteration.step, orbit[0], batched=True, tangent=tangent).detach()
    for each in dense(iteration, "step", range(1, N_STEPS)):
        product = each @ product
    expected = torch.linalg.svdvals(product).log()[:, :4] / N_STEPS
    assert found["exponents"]["by_rank"] == pytest.approx(expected.mean(0).tolist(), abs=2e-3)
    assert found["exponents"]["largest"] == found["exponents"]["by_rank"][0]
    assert found["exponents"]["spread"] == pytest.approx(float(expected[:, 0].std()), abs=2e-3)
    assert found["exponents"]["standard_error"] == pytest.approx(found["exponents"]["spread"] / 2**0.5)  # two boards


def test_the_entropy_beside_the_norms_is_that_of_the_attention_written_out(
    measured: tuple[Iteration, dict[str, Any]],
) -> None:
    """Criterion: softmax rows of q k' / sqrt(K), from the layer's own matrices, have this mean entropy / log T."""
    iteration, found = measured
    model, orbit = iteration.model, iteration.orbit(N_STEPS)
    if isinstance(model, PreNormItrSA):
        assert 0 < found["entropy"]["mean"] < 1
        return
    layer = model.attention

    def entropy(x: Tensor) -> Tensor:
        q, k = (linear(x).unflatten(-1, (2, 4)).transpose(1, 2) for linear in (layer.project.query, layer.project.key))
        weights = (q @ k.mT / 4**0.5).softmax(-1)
        return -(weights * weights.log()).sum(-1).mean((1, 2)) / math.log(x.shape[1])

    expected = torch.stack([entropy(x) for x in orbit[:-1]]).detach()
    assert found["entropy"]["by_step"] == pytest.approx(expected.mean(1).tolist())
    assert found["entropy"]["largest"] == pytest.approx(float(expected.max()))


def test_uniform_attention_shows_in_the_entropy_and_a_convolution_has_none() -> None:
    uniform = dynamics(iteration_of(ItrSAConfig(**SIZES, attention="uniform")))["entropy"]
    assert uniform["by_step"] == pytest.approx([1.0] * N_STEPS)
    assert "entropy" not in dynamics(iteration_of(AKOrNConfig(**SIZES, coupling="conv")))


def test_energies_quadratic_forms_and_alignment_are_those_of_dense_matrices(
    measured: tuple[Iteration, dict[str, Any]],
) -> None:
    iteration, found = measured
    model, orbit = iteration.model, iteration.orbit(N_STEPS)
    energy = torch.stack([model.energy(x, iteration.stimulus) for x in orbit])
    assert found["energy"]["by_step"] == pytest.approx(energy.mean(1).tolist())
    j, x = dense(iteration, "response", range(N_STEPS + 1)), orbit.flatten(2)
    s = (j + j.mT) / 2
    quadratic = -torch.einsum("tbi,tbij,tbj->tb", x, s, x)
    assert found["pseudo_energy"]["quadratic"] == pytest.approx(quadratic.mean(1).tolist(), abs=1e-9)
    values, vectors = torch.linalg.eigh(s)
    cosine = torch.einsum("tbi,tbi->tb", x, vectors[..., -1]).abs() / x.norm(dim=-1)
    at = found["alignment"]["steps"]
    assert found["alignment"]["by_step"] == pytest.approx(cosine.mean(1)[at].tolist(), abs=0.02)
    reached = -quadratic / (x.square().sum(-1) * values[..., -1])
    assert found["alignment"]["reached"] == pytest.approx(reached.mean(1)[at].tolist(), abs=0.01)
    attended = torch.stack([iteration.response(x) - iteration.stimulus for x in orbit]).flatten(2)
    linear = torch.cosine_similarity(attended, torch.einsum("tbij,tbj->tbi", j, x), dim=-1)
    assert found["alignment"]["linear"] == pytest.approx(linear.mean(1)[at].tolist(), abs=1e-6)


def test_the_share_of_a_state_in_the_leading_eigenvectors_is_that_of_a_known_spectrum() -> None:
    """Criterion: where 20 of 1,000 eigenvalues are equal and above the others, it is the share of the state's square in
    their span; where all differ, it grows with the state's part there."""
    generator = torch.Generator().manual_seed(0)
    apart = torch.cat([torch.full((20,), 3.0), torch.linspace(-1, 1, 980)]).double()
    evenly = torch.linspace(1, -1, 1_000).double()
    x = torch.randn(4, 1_000, generator=generator, dtype=torch.float64)
    x[:2, :20] *= 10
    share = x[:, :20].square().sum(1) / x.square().sum(1)
    torch.testing.assert_close(leading_share(lambda z: apart * z, x), share, rtol=0, atol=0.01)
    estimated = leading_share(lambda z: evenly * z, x)
    assert (estimated[:2] > 0.5).all()
    assert (estimated[2:] < 0.1).all()


def test_proposition_5_1_holds_and_is_an_inequality(measured: tuple[Iteration, dict[str, Any]]) -> None:
    """Criterion: the bound holds for random models with random gains. Norms are dense, so neither side is an
    estimate."""
    iteration, found = measured[0], measured[1]["bound"]
    if not isinstance(iteration.model, ItrSA):
        assert found == {}
        return
    assert found["holds"] == 1
    assert found["ratio"] > 1.05
    assert iteration.sphere is not None
    least = torch.stack([iteration.before_norm(x).norm(dim=-1).amin(1) for x in iteration.orbit(N_STEPS - 1)])
    within = torch.linalg.matrix_norm(dense(iteration, "response", range(N_STEPS)), 2)
    allowed = iteration.sphere.gain.abs().max() / least * (1 + iteration.model.config.eta * within)
    norms = torch.linalg.matrix_norm(dense(iteration, "step", range(N_STEPS)), 2)
    assert (norms <= allowed).all()
    assert found["by_step"] == pytest.approx(allowed.mean(1).tolist(), rel=2e-3)
    assert found["least_length"] == pytest.approx(least.mean(1).tolist())
    expected = (allowed * least / least.min() / norms).mean().detach()
    assert found["one_radius"]["radius"] == pytest.approx(float(least.min().detach()))
    assert found["one_radius"]["ratio"] == pytest.approx(float(expected), rel=4e-3)
    assert found["one_radius"]["ratio"] > found["ratio"]


def test_the_leading_eigenvector_is_found_where_there_are_few_others() -> None:
    """Criterion: it equals the dense one. Uniform attention has a Jacobian of rank at most D, so a Krylov space is soon
    exhausted; without any response the only eigenvalue is 0."""
    iteration = iteration_of(ItrSAConfig(**SIZES, attention="uniform"), double=False)
    x = iteration.start
    v, theta, residual = leading_eigenvector(Jacobian(iteration.response, x, batched=True))
    dense = jacobian(iteration.response, x, batched=True).detach()
    values, vectors = torch.linalg.eigh((dense + dense.mT) / 2)
    torch.testing.assert_close(theta, values[:, -1], rtol=1e-4, atol=0)
    torch.testing.assert_close((v * vectors[..., -1]).sum(-1).abs(), torch.ones(2), rtol=0, atol=1e-3)
    assert (residual < 1e-3 * theta).all()
    assert leading_eigenvector(Jacobian(lambda x: 0 * x, x, batched=True))[1].tolist() == [0, 0]


def test_a_linear_response_has_exactly_the_energy_of_its_linearisation() -> None:
    """Criterion: a convolution is linear, so the energy is -x'S x - x'y(0), and the correlation over time is 1."""
    found = dynamics(iteration_of(AKOrNConfig(**SIZES, coupling="conv")))
    assert found["pseudo_energy"]["affine"] == pytest.approx(found["energy"]["by_step"])
    assert found["pseudo_energy"]["affine_correlation"] == pytest.approx(1.0)


def test_a_response_to_normalised_states_has_no_quadratic_form(measured: tuple[Iteration, dict[str, Any]]) -> None:
    """Criterion: it hardly changes along x, so J x = 0 and there is no correlation."""
    iteration, found = measured[0], measured[1]["pseudo_energy"]
    if isinstance(iteration.model, PreNormItrSA):
        assert found["quadratic"] == pytest.approx([0.0] * (N_STEPS + 1), abs=1e-4)
        assert found["correlation"] is None
    else:
        assert -1 <= found["correlation"] <= 1


def test_correlation_is_over_time_and_leaves_out_constant_series() -> None:
    t = torch.arange(5.0).unsqueeze(1)
    still = torch.ones(5, 1)
    assert correlation(torch.cat([t, t, t], 1), torch.cat([-2 * t, t + 7, still], 1)) == pytest.approx(0.0)
    assert correlation(still, t) is None


def test_states_that_overflow_have_no_dynamics() -> None:
    model = drawn(ItrSAConfig(**SIZES, norm="none"), size=1e15)
    assert dynamics(Iteration.of(model, torch.zeros(1, 16, dtype=torch.long))) == {}


@pytest.fixture(scope="module")
def sudoku() -> TrainConfig:
    task = Sudoku(n_boards=40, n_valid_boards=12, board_size=4)
    return TrainConfig(
        model=ItrSAConfig(**SIZES), task=task, seq_len=16, n_steps=1, batch_size=8, warmup_steps=0, eval_batches=1
    )


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of directions of every product with a Jacobian, in both modes."""
    seen: list[int] = []

    def counting(usual: Callable[[Jacobian, Tensor], Tensor]) -> Callable[[Jacobian, Tensor], Tensor]:
        def counted(self: Jacobian, block: Tensor) -> Tensor:
            seen.append(len(block))
            return usual(self, block)

        return counted

    for name in ("_forward", "_backward"):
        monkeypatch.setattr(Jacobian, name, counting(getattr(Jacobian, name)))
    return seen


@pytest.mark.slow
def test_a_run_is_measured_on_its_own_boards(sudoku: TrainConfig, products: list[int]) -> None:
    """Criterion: energies are those of the first boards, and accuracies those of a pass with as many iterations, whose
    number is restored. A quarter of the steps takes no more products than stated."""
    model, task = drawn(sudoku.model), sudoku.build_task()
    with torch.no_grad():
        found = dynamics_of_run(model, sudoku)["dynamics"]
    json.dumps(found, allow_nan=False)
    assert 200 < sum(products) < 7000 / 4
    assert model.n_iterations == SIZES["n_iterations"]
    (batch,) = task.valid_batches(N_BOARDS, 1)
    tokens = torch.from_numpy(batch.inputs)
    with torch.no_grad():
        energies = [float(model.energy(x, model.stimulus(tokens)).mean()) for x in model.states(tokens, N_STEPS)]
    assert found["energy"]["by_step"] == pytest.approx(energies, rel=1e-5)
    for part in task.valid_sets:
        (batch,) = task.valid_batches(8, 1, part)
        inputs = torch.from_numpy(batch.inputs)
        for n_iterations in LONGER:
            predicted = model(inputs, n_iterations=n_iterations)[0].argmax(-1).numpy()
            for measure, value in task.measure(batch.targets, predicted).items():
                assert found["accuracy"][part][measure][str(n_iterations)] == pytest.approx(value)


def test_other_models_have_no_iteration(base: TrainConfig) -> None:
    assert dynamics_of_run(base.model.build(0), base) == {}


def test_a_phase_portrait_keeps_the_plane_of_an_orbit_and_its_finite_states() -> None:
    """Criterion: a circle in a random plane of 20 dimensions is returned as a circle with all of its variance. States
    from the first overflow on are left out."""
    plane, _ = torch.linalg.qr(torch.randn(20, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    turn = torch.linspace(0, 2 * torch.pi, 17, dtype=torch.float64)[:-1]
    circle = (torch.stack([turn.cos(), turn.sin()], -1) @ plane.T).view(16, 1, 4, 5)
    found = portrait(circle)
    assert found["share"] == pytest.approx(1)
    radii = torch.tensor(found["orbits"][0]).norm(dim=-1)
    assert torch.allclose(radii, torch.ones(16, dtype=radii.dtype), atol=1e-6)
    grown = circle.clone()
    grown[10:] = 1e12
    assert len(portrait(grown)["orbits"][0]) == 10
