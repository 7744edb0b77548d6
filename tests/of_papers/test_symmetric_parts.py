"""The oscillatory share and the quadratic form of a Jacobian are those of its matrix."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from papers.jacobians.probes.symmetric_parts import oscillatory_share, quadratic_form


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def turn(angle: float) -> Tensor:
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, -s], [s, c]], dtype=torch.float64)


def linear(matrix: Tensor) -> tuple[Any, Tensor]:
    return (lambda x: (matrix @ x.unsqueeze(-1)).squeeze(-1)), torch.zeros(matrix.shape[:-1], dtype=matrix.dtype)


def test_the_quadratic_form_is_that_of_the_matrix() -> None:
    matrix, v = normal(2, 12, 12), normal(5, 2, 12, seed=1)
    step, x = linear(matrix)
    form = torch.einsum("kbi,bij,kbj->kb", v, matrix, v)
    torch.testing.assert_close(quadratic_form(step, x, v, batched=True), form)
    torch.testing.assert_close(quadratic_form(step, x, v[0], batched=True), form[0])
    torch.testing.assert_close(quadratic_form(step, x, v), form.sum(-1))


def test_share_of_known_maps() -> None:
    """Criterion: the share is 0 for symmetric and zero matrices, 1 for a quarter turn, and sin^2 for a rotation."""
    symmetric = normal(9, 9)
    for matrix, expected in (
        (symmetric + symmetric.T, 0.0),
        (turn(math.pi / 2), 1.0),
        (turn(0.4), math.sin(0.4) ** 2),
        (torch.zeros(3, 3), 0.0),
    ):
        found = oscillatory_share(*linear(matrix))
        assert found.share.item() == pytest.approx(expected, abs=1e-12)
        assert found.standard_error.item() == 0


def test_the_error_of_a_probed_share_matches_its_standard_error() -> None:
    """Criterion: over 60 seeds, the root mean square of error over standard error is 1 within a third."""
    matrix = normal(200, 200) @ torch.diag(torch.linspace(0, 2, 200, dtype=torch.float64))
    true = ((matrix - matrix.T) / 2).square().sum() / matrix.square().sum()
    estimates = [oscillatory_share(*linear(matrix), n_probes=32, seed=seed) for seed in range(60)]
    scores = torch.stack([(estimate.share - true) / estimate.standard_error for estimate in estimates])
    assert 2 / 3 < scores.square().mean().sqrt() < 4 / 3


def test_as_many_probes_as_dimensions_are_exact() -> None:
    """Criterion: as many probes as dimensions give the exact share; with one probe fewer it is an estimate close to
    it."""
    matrix = normal(64, 64)
    exact = oscillatory_share(*linear(matrix), n_probes=64)
    probed = oscillatory_share(*linear(matrix), n_probes=63)
    assert exact.share.item() == pytest.approx(float(((matrix - matrix.T) / 2).square().sum() / matrix.square().sum()))
    assert 0 < probed.standard_error < 0.02
    assert abs(probed.share - exact.share) < 4 * probed.standard_error


@pytest.mark.parametrize("size", [1e-25, 1e22])
def test_squares_that_overflow_or_vanish_do_no_harm(size: float) -> None:
    step, x = linear(size * turn(math.pi / 2).float())
    assert float(oscillatory_share(step, x).share) == pytest.approx(1.0)
