"""The variational projector learns stationary distributions, and its result depends on its seed alone."""

import pytest
import torch

from attractor.equilibrium.master_equation import check, closed_classes, stationary
from papers.fast_slow.probes.projector import GeneratorFamily, ProjectorFit, fit_projector

TINY = {"n_train": 64, "n_held_out": 32, "n_steps": 5, "batch_size": 16}


def controls(*shape: int, seed: int = 7) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def fit() -> ProjectorFit:
    return fit_projector(GeneratorFamily())


def test_each_y_gives_an_irreducible_generator_that_is_smooth_in_y() -> None:
    family = GeneratorFamily(n_states=5, n_controls=3, seed=2)
    y = controls(2, 4, 3)
    generators = family(y)
    assert generators.shape == (2, 4, 5, 5)
    check(generators)
    assert closed_classes(generators[1, 2]) == [list(range(5))]
    torch.testing.assert_close(generators[1, 2], family(y[1, 2]))
    assert torch.autograd.gradcheck(family, y[0, :1].requires_grad_())
    assert not torch.equal(generators, GeneratorFamily(n_states=5, n_controls=3, seed=3)(y))


@pytest.mark.parametrize("n_controls", [1, 4, 16])
def test_strength_is_the_standard_deviation_of_log_rates(n_controls: int) -> None:
    """Criterion: over y, log rates have the given standard deviation for any number of controls. The variance is
    averaged over rates and over nine families."""
    generators = torch.stack(
        [GeneratorFamily(6, n_controls, 0.5, seed)(controls(500, n_controls)) for seed in range(9)]
    )
    log_rates = generators[:, :, ~torch.eye(6, dtype=torch.bool)].log()
    assert float(log_rates.var(1).mean() ** 0.5) == pytest.approx(0.5, rel=0.15)


@pytest.mark.slow
def test_the_fit_is_far_better_than_any_constant(fit: ProjectorFit) -> None:
    """Criterion: the error is below 0.035 and below an eighth of the best constant's, and that of an untrained network
    is larger. The error of this fit is 0.024; remark 31 reports 0.031. The best constant has an error of 0.35."""
    assert fit.error_after < 0.035
    assert fit.error_after < fit.error_of_constant / 8
    assert fit.error_before > fit.error_of_constant


@pytest.mark.slow
def test_outputs_are_distributions_close_to_the_stationary_ones(fit: ProjectorFit) -> None:
    """Criterion: on new y, outputs are positive and sum to one, and their error is the reported one. No entry is off by
    more than half of the summed error."""
    y = controls(3, 200, 4)
    with torch.no_grad():
        found = fit.projector(y)
    assert (found > 0).all()
    torch.testing.assert_close(found.sum(-1), torch.ones(3, 200, dtype=torch.float64))
    off = (found - stationary(GeneratorFamily()(y))).abs()
    assert float(off.sum(-1).mean()) == pytest.approx(fit.error_after, rel=0.2)
    assert (off.amax(-1) <= off.sum(-1) / 2 + 1e-12).all()


def test_no_constant_beats_the_reported_best_constant() -> None:
    fit = fit_projector(GeneratorFamily(n_states=4), **TINY)
    y = controls(96, 4, seed=0)[64:]  # the y that this fit held out
    p = stationary(GeneratorFamily(n_states=4)(y))
    candidates = torch.cat([p, p.mean(0, keepdim=True), controls(500, 4, seed=1).softmax(-1)])
    errors = (candidates[:, None] - p).abs().sum(-1).mean(1)
    assert errors.min() >= fit.error_of_constant
    assert errors.min() < 1.2 * fit.error_of_constant


def test_the_seed_decides_the_fit_and_the_callers_generator_stays() -> None:
    before = torch.get_rng_state()
    first, again, other = (fit_projector(GeneratorFamily(n_states=4), **TINY, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert first[1:] == again[1:]
    assert first[1:] != other[1:]
    assert torch.equal(first.projector(controls(9, 4)), again.projector(controls(9, 4)))
