"""Eigenvalues of Jacobians agree with known values and dense solvers."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attractor.analysis import (
    Effort,
    eigenvalues,
    estimate_eigenvalues,
    jacobian_norm,
    leading_eigenvalues,
    spectral_radius,
    sphere_tangent,
)
from attractor.errors import InputError

N_LARGE = 520  # too large to be solved as a dense matrix


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(angle: float, scale: float = 1.0) -> Tensor:
    c, s = math.cos(angle), math.sin(angle)
    return scale * torch.tensor([[c, -s], [s, c]], dtype=torch.float64)


def orthogonal(n: int, seed: int = 0) -> Tensor:
    return torch.linalg.qr(normal(n, n, seed=seed)).Q


def with_spectrum(blocks: list[Tensor], n: int, slope: float = 0.0) -> Tensor:
    """Build a matrix in a random basis with the eigenvalues of the blocks, and 0 otherwise. It is normal if `slope` is
    0."""
    core = torch.zeros(n, n, dtype=torch.float64)
    small = torch.block_diag(*blocks)
    core[: len(small), : len(small)] = small
    core = core + slope * normal(n, n, seed=5).triu(2) / n**0.5
    basis = orthogonal(n)
    return basis @ core @ basis.T


def linear(matrix: Tensor) -> tuple:
    if matrix.ndim == 2:
        return (lambda x: matrix @ x), torch.zeros(len(matrix), dtype=matrix.dtype)
    return (lambda x: (matrix @ x.unsqueeze(-1)).squeeze(-1)), torch.zeros(matrix.shape[:-1], dtype=matrix.dtype)


def same_values(found: Tensor, expected: Tensor, atol: float) -> None:
    """Assert that both hold the same set of values. Their order is free, since pairs and ties have none."""
    distances = (found.unsqueeze(-1) - expected).abs()
    assert distances.amin(-1).max() < atol
    assert distances.amin(-2).max() < atol


@pytest.mark.parametrize("angle", [0.1, 0.7, math.pi / 2, 3.0])
@pytest.mark.parametrize("n_pairs", [1, 300])
def test_scaled_rotation_has_its_scale_for_radius(angle: float, n_pairs: int) -> None:
    """Criterion: the radius is 0.9, where power iteration oscillates, also for 300 copies, whose Krylov spaces are
    planes."""
    step, x = linear(torch.block_diag(*[rotation(angle, 0.9)] * n_pairs))
    assert spectral_radius(step, x).item() == pytest.approx(0.9, rel=1e-9)


def test_nilpotent_maps_have_radius_zero_whatever_their_norm() -> None:
    """Criterion: the radius is exactly 0 if the matrix is strictly triangular in some order of the coordinates."""
    shift = torch.diag(torch.full((9,), 5.0), 1)
    shuffled = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    for matrix in (shift, shift.T, shift[shuffled][:, shuffled], torch.zeros(10, 10), normal(10, 10).float().triu(1)):
        assert spectral_radius(*linear(matrix)).item() == 0
    assert jacobian_norm(*linear(shift)).item() == pytest.approx(5.0)


@pytest.mark.parametrize("slope", [0.0, 3.0], ids=["normal", "far-from-normal"])
def test_large_maps_with_known_leading_eigenvalues(slope: float) -> None:
    """Criterion: leading eigenvalues, real ones and pairs, are right to 1e-6. This holds far from normal, too,
    where the norm is over twice the radius."""
    blocks = [rotation(1.2, 0.95), torch.tensor([[-0.9]], dtype=torch.float64), rotation(0.2, 0.8), 0.7 * torch.eye(1)]
    step, x = linear(with_spectrum(blocks, N_LARGE, slope))
    first, second = 0.95 * complex(math.cos(1.2), math.sin(1.2)), 0.8 * complex(math.cos(0.2), math.sin(0.2))
    found = leading_eigenvalues(step, x, k=5, effort=Effort(tolerance=1e-9))
    expected = torch.tensor([first, first.conjugate(), -0.9, second, second.conjugate()], dtype=torch.complex128)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    if slope:
        assert jacobian_norm(step, x) > 2 * found[0].abs()


def test_samples_are_solved_side_by_side() -> None:
    """Criterion: samples with pairs, with real eigenvalues and with a zero matrix have the values that they have
    alone."""
    cases = [
        with_spectrum([rotation(1.0, 0.9), rotation(0.3, 0.6)], N_LARGE),
        with_spectrum([torch.diag(torch.tensor([0.5, -0.4, 0.3, 0.2], dtype=torch.float64))], N_LARGE, slope=1.0),
        torch.zeros(N_LARGE, N_LARGE, dtype=torch.float64),
    ]
    step, x = linear(torch.stack(cases))
    found = leading_eigenvalues(step, x, k=4, batched=True)
    assert found.shape == (3, 4)
    for matrix, values in zip(cases, found, strict=True):
        same_values(values, eigenvalues(*linear(matrix))[:4], atol=1e-5)
    radii = torch.tensor([0.9, 0.5, 0.0], dtype=torch.float64)
    torch.testing.assert_close(spectral_radius(step, x, batched=True), radii, rtol=0, atol=1e-6)


def test_search_that_is_cut_short_warns() -> None:
    matrix = normal(N_LARGE, N_LARGE)
    said = r"relative residual is .* after 40 products; give an Effort with a larger max_iterations"
    with pytest.warns(RuntimeWarning, match=said):
        spectral_radius(*linear(matrix), effort=Effort(max_iterations=50))


def test_eigenvalues_of_a_small_nonlinear_map() -> None:
    """Criterion: the eigenvalues are those of the derivative at the point, with none for directions outside a tangent
    space."""
    matrix, x = normal(6, 6), normal(6, seed=1)
    derivative = (1 - (matrix @ x).tanh().square()).unsqueeze(-1) * matrix
    same_values(eigenvalues(lambda x: (matrix @ x).tanh(), x), torch.linalg.eigvals(derivative), 1e-12)
    # A fixed point of Ax / |Ax| is an eigenvector for lambda_1. The eigenvalues there are lambda_i / lambda_1.
    symmetric = matrix @ matrix.T
    values, vectors = torch.linalg.eigh(symmetric)
    found = eigenvalues(lambda x: symmetric @ x / (symmetric @ x).norm(), vectors[:, -1], tangent=sphere_tangent())
    expected = (values[:-1].flip(0) / values[-1]).to(torch.complex128)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("n_rows", [4, 130])
def test_a_tangent_space_has_no_eigenvalues_for_its_normals(n_rows: int) -> None:
    """Criterion: rows of four channels that move half way to a fixed point have three eigenvalues of 0.5 each, from
    the dense matrix and by Krylov-Schur."""
    x = F.normalize(normal(n_rows, 4), dim=-1)

    def step(y: Tensor) -> Tensor:
        return F.normalize(x + 0.5 * (y - x), dim=-1)

    found = leading_eigenvalues(step, x, k=10, tangent=sphere_tangent())
    torch.testing.assert_close(found.real, torch.full((10,), 0.5, dtype=torch.float64))
    if n_rows == 4:
        assert eigenvalues(step, x, tangent=sphere_tangent()).shape == (12,)
        with pytest.raises(InputError, match="k must be at most 12, the dimension of the tangent space, got 13"):
            leading_eigenvalues(step, x, k=13, tangent=sphere_tangent())


@pytest.mark.parametrize("size", [1e-25, 1e22])
def test_squares_that_overflow_or_vanish_do_no_harm(size: float) -> None:
    """Criterion: the eigenvalues of a scaled map, in fp32, are those of the map, scaled."""
    matrix = torch.randn(600, 600, generator=torch.Generator().manual_seed(0)) / 600**0.5
    found = estimate_eigenvalues(lambda x: (size * matrix) @ x, torch.zeros(600), k=2).values
    exact = estimate_eigenvalues(lambda x: matrix @ x, torch.zeros(600), k=2).values
    torch.testing.assert_close(found.abs() / size, exact.abs(), rtol=1e-3, atol=0)
