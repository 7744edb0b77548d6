"""Lyapunov exponents of systems with known exponents: linear maps, rotations, and the Henon and logistic maps."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attractor.analysis import error_between_orbits, finite_time_exponents, lyapunov, lyapunov_spectrum, sphere_tangent
from attractor.analysis.lyapunov import DENSE_UP_TO
from attractor.errors import InputError


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def henon(x: Tensor) -> Tensor:
    return torch.stack([1 - 1.4 * x[..., 0] ** 2 + x[..., 1], 0.3 * x[..., 0]], dim=-1)


def logistic(x: Tensor) -> Tensor:
    return 4 * x * (1 - x)


def with_eigenvalues(values: Tensor, n: int) -> Tensor:
    """Build a matrix in a random basis with the given eigenvalues, and 0 otherwise, that is not normal."""
    core = torch.diag(torch.cat([values, torch.zeros(n - len(values), dtype=values.dtype)])) + normal(n, n).triu(1) / n
    basis = torch.linalg.qr(normal(n, n, seed=1)).Q
    return basis @ core @ basis.T


@pytest.mark.slow
def test_henon() -> None:
    """Criterion: after 20,000 steps the largest exponent is within 0.01 of 0.419, and the sum is the log determinant,
    log 0.3."""
    found = lyapunov(henon, torch.zeros(2, dtype=torch.float64), n_steps=20_000)
    assert found.exponents[0].item() == pytest.approx(0.419, abs=0.01)
    assert found.exponents.sum().item() == pytest.approx(math.log(0.3), abs=1e-9)
    assert abs(found.exponents[0] - 0.4192) < 4 * found.within_orbit[0]
    assert found.within_orbit[0] < 0.005
    assert found.running.shape == (20, 2)
    torch.testing.assert_close(found.running[-1], found.exponents)


def test_logistic_map_at_four() -> None:
    """Criterion: the exponent is log 2, both for one state that is a number and for sixteen states in a batch, whose
    mean is within four standard errors."""
    found = lyapunov_spectrum(logistic, torch.tensor(0.3, dtype=torch.float64), n_steps=3_000, k=1)
    assert found.item() == pytest.approx(math.log(2), abs=5e-3)
    starts = torch.linspace(0.1, 0.4, 16, dtype=torch.float64).unsqueeze(-1)
    many = lyapunov(logistic, starts, n_steps=2_000, k=1, batched=True)
    assert many.exponents.shape == (16, 1)
    errors = many.exponents - math.log(2)
    assert errors.abs().max() < 0.01
    assert abs(many.mean - math.log(2)) < 4 * many.standard_error < 0.004
    assert not torch.equal(many.exponents, many.exponents[:1].expand(16, 1))


@pytest.mark.parametrize("n", [6, DENSE_UP_TO, DENSE_UP_TO + 1, 60])
def test_linear_maps(n: int) -> None:
    """Criterion: exponents are log |eigenvalue| to 1e-6, from dense matrices (small systems) and from directions
    (larger)."""
    values = torch.tensor([1.2, -0.9, 0.5, 0.25], dtype=torch.float64)
    matrix = with_eigenvalues(values, n)
    found = lyapunov(lambda x: matrix @ x, torch.zeros(n, dtype=torch.float64), n_steps=300, k=3, n_transient=100)
    torch.testing.assert_close(found.exponents, values.abs().log()[:3], rtol=0, atol=1e-6)
    assert found.within_orbit.max() < 1e-6


def test_rotations_neither_grow_nor_shrink() -> None:
    c, s = math.cos(0.7), math.sin(0.7)
    rotation = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    for scale in (1.0, 0.9):
        found = lyapunov_spectrum(lambda x, m=scale * rotation: m @ x, torch.ones(2).double(), 500)
        torch.testing.assert_close(found, torch.full((2,), math.log(scale), dtype=torch.float64), rtol=0, atol=1e-12)


def test_samples_are_their_own_systems() -> None:
    """Criterion: samples with different parameters each have the exponents that they have alone."""
    b = torch.tensor([0.3, 0.2, 0.1], dtype=torch.float64)

    def step(x: Tensor, b: Tensor = b) -> Tensor:
        return torch.stack([1 - 1.4 * x[..., 0] ** 2 + x[..., 1], b * x[..., 0]], dim=-1)

    found = lyapunov_spectrum(step, torch.zeros(3, 2, dtype=torch.float64), 400, n_transient=50, batched=True)
    torch.testing.assert_close(found.sum(-1), b.log())
    alone = lyapunov_spectrum(lambda x: step(x, b[1]), torch.zeros(2, dtype=torch.float64), 400, n_transient=50)
    torch.testing.assert_close(found[1], alone, rtol=0, atol=1e-9)


@pytest.mark.parametrize("hidden", [lambda x: x.item(), None], ids=["cannot-be-vectorised", "at-once"])
def test_both_methods_for_a_small_system_agree_under_any_limit_of_memory(hidden: Callable | None) -> None:
    """Criterion: a step that cannot be vectorised over states has the same exponents, computed more slowly."""

    def step(x: Tensor) -> Tensor:
        if hidden:
            assert hidden(x.detach()[0]) < 9
        return henon(x)

    x = torch.zeros(2, dtype=torch.float64)
    expected = lyapunov_spectrum(henon, x, n_steps=60, n_transient=10)
    for limit in ({}, {"max_bytes": 100}):
        torch.testing.assert_close(lyapunov_spectrum(step, x, n_steps=60, n_transient=10, **limit), expected)


@pytest.mark.parametrize("n_rows", [3, 12], ids=["small", "large"])
def test_normalised_maps(n_rows: int) -> None:
    """Criterion: rows converge to the leading eigenvector, and other directions shrink by the ratio of eigenvalues. The
    radius of each row has minus infinity, which the tangent space leaves out."""
    values = torch.tensor([1.0, 0.7, 0.4, 0.2], dtype=torch.float64)
    basis = torch.linalg.qr(normal(4, 4)).Q
    symmetric = basis @ torch.diag(values) @ basis.T
    x = normal(n_rows, 4, seed=2)

    def step(x: Tensor) -> Tensor:
        y = x @ symmetric
        return y / y.norm(dim=-1, keepdim=True)

    expected = values[1:].log().repeat_interleave(n_rows)
    options = {"n_steps": 60, "n_transient": 100}
    for tangent in (None, sphere_tangent()):
        found = lyapunov(step, x, k=3 * n_rows, tangent=tangent, **options)
        torch.testing.assert_close(found.exponents, expected, rtol=0, atol=1e-6)
    everything = lyapunov(step, x, k=4 * n_rows, **options)
    assert everything.exponents[3 * n_rows :].isneginf().all()
    assert not everything.within_orbit.isnan().any()
    assert not everything.running.isnan().any()
    with pytest.raises(InputError, match=f"k must be at most {3 * n_rows}, the dimension of the tangent space"):
        lyapunov(step, x, k=3 * n_rows + 1, tangent=sphere_tangent(), **options)


def test_a_shift_loses_one_direction_at_each_step() -> None:
    shift = torch.diag(torch.ones(5), 1).double()
    found = lyapunov(lambda x: shift @ x, torch.ones(6).double(), n_steps=10, k=6, n_transient=0)
    assert found.exponents.isneginf().all()
    early = lyapunov(lambda x: shift @ x, torch.ones(6).double(), n_steps=2, k=6, n_transient=0)
    assert early.exponents.isneginf().sum() == 2


def test_finite_time_exponents_tend_to_the_lyapunov_exponent() -> None:
    """Criterion: for a matrix far from normal, 16 steps stretch although the limit is log 0.9, and 300 steps come
    within 0.02 of it."""
    matrix = torch.tensor([[0.9, 5.0], [0.0, 0.8]], dtype=torch.float64)
    step, x = (lambda x: matrix @ x), torch.zeros(2, dtype=torch.float64)
    limit = lyapunov_spectrum(step, x, n_steps=200, k=1).item()
    assert limit == pytest.approx(math.log(0.9))
    short, long = (finite_time_exponents(step, x, n_steps, k=1).item() for n_steps in (16, 300))
    assert short > 0 > limit
    assert long == pytest.approx(limit, abs=0.02)


def test_a_spectrum_of_one_step() -> None:
    found = lyapunov(lambda x: 2 * x, torch.ones(3), n_steps=1, k=3, n_transient=0)
    torch.testing.assert_close(found.exponents, torch.full((3,), math.log(2)))
    assert torch.equal(found.within_orbit, torch.zeros(3))


def test_the_standard_error_comes_from_the_spread_between_orbits() -> None:
    """Criterion: x' = s x with a constant s has the exponents 0 and log s at x = 0. Within an orbit nothing varies, and
    between orbits the exponents are as far apart as the values of s. A single orbit has no standard error."""
    values = torch.tensor([0.5, 2.0, 4.0], dtype=torch.float64)
    starts = torch.stack([values, torch.zeros(3, dtype=torch.float64)], dim=-1)

    def step(state: Tensor) -> Tensor:
        s, x = state.unbind(-1)
        return torch.stack([s, s * x], dim=-1)

    found = lyapunov(step, starts, n_steps=40, n_transient=100, batched=True)
    expected = torch.stack([values.log().clamp(min=0), values.log().clamp(max=0)], dim=-1)
    torch.testing.assert_close(found.exponents, expected)
    assert found.within_orbit.max() < 1e-12
    torch.testing.assert_close(found.mean, expected.mean(0))
    torch.testing.assert_close(found.standard_error, expected.std(0) / 3**0.5)
    alone = lyapunov(step, starts[0], n_steps=40, n_transient=100)
    assert alone.standard_error.isnan().all()
    torch.testing.assert_close(alone.mean, alone.exponents)
    lost = torch.tensor([[0.1, -torch.inf], [0.3, -torch.inf]])
    torch.testing.assert_close(error_between_orbits(lost), torch.tensor([0.1, 0.0]))
