"""Doubly stochastic mixing and the unit sphere: limits, invariances, bounds, and the gradient at zero."""

import pytest
import torch

from attractor.equilibrium.manifold import sinkhorn, unit_sphere


def logits(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(0))


def birkhoff_defect(mixing: torch.Tensor) -> torch.Tensor:
    """Return the largest distance from 1 among the sums of rows and columns."""
    return torch.maximum(*((mixing.sum(dim) - 1).abs().amax(-1) for dim in (-1, -2)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_rows_and_columns_sum_to_one(dtype: torch.dtype) -> None:
    mixing = sinkhorn(logits(5, 4, 4, dtype=dtype))
    assert mixing.dtype == torch.promote_types(dtype, torch.float32)
    assert mixing.min() > 0
    assert birkhoff_defect(mixing).max() < 1e-3
    assert (mixing.sum(-2) - 1).abs().max() < 1e-6


def test_more_iterations_come_closer() -> None:
    """Criterion: the defect falls until only rounding is left; logits four times as large need more iterations."""
    for scale, n_enough in ((1, 200), (4, 5_000)):
        defects = [birkhoff_defect(sinkhorn(scale * logits(4, 4), n)).item() for n in (5, 20, n_enough)]
        assert defects[0] > defects[1] > defects[2]
        assert defects[2] < 1e-12


def test_a_doubly_stochastic_matrix_stays_and_offsets_change_nothing() -> None:
    mixing = sinkhorn(logits(3, 4, 4), 200)
    torch.testing.assert_close(sinkhorn(mixing.log(), 1), mixing)
    offsets = logits(3, 4, 1) + 2 * logits(3, 1, 4)
    torch.testing.assert_close(sinkhorn(logits(3, 4, 4) + offsets, 200), mixing)
    torch.testing.assert_close(sinkhorn(logits(3, 4, 4).mT, 200), mixing.mT)
    torch.testing.assert_close(sinkhorn(torch.zeros(4, 4)), torch.full((4, 4), 0.25))
    torch.testing.assert_close(sinkhorn(100 * torch.eye(4)), torch.eye(4))


def test_mixing_does_not_expand() -> None:
    """Criterion: the spectral norm is 1 in the limit, and at most 1 plus the defect before it."""
    norms = torch.linalg.matrix_norm(sinkhorn(logits(6, 5, 5), 200), 2)
    torch.testing.assert_close(norms, torch.ones(6, dtype=torch.float64))
    early = sinkhorn(20 * logits(6, 5, 5), 2)
    assert birkhoff_defect(early).min() > 0.1
    assert (torch.linalg.matrix_norm(early, 2) <= 1 + birkhoff_defect(early)).all()


def test_sinkhorn_is_differentiable() -> None:
    assert torch.autograd.gradcheck(sinkhorn, (logits(2, 3, 3).requires_grad_(), 4))


def test_directions_have_length_one_at_every_scale() -> None:
    y = logits(7, 6, dtype=torch.float32)
    for scale in (1e-30, 1e-3, 1.0, 1e30):
        direction = unit_sphere(scale * y)
        torch.testing.assert_close(direction.norm(dim=-1), torch.ones(7))
        torch.testing.assert_close(direction, unit_sphere(y))
    half = unit_sphere(1e4 * y.half())
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.float(), unit_sphere(y), atol=2e-3, rtol=0)


def test_gradients_are_tangent_and_zero_at_zero() -> None:
    y = logits(3, 4).requires_grad_()
    assert torch.autograd.gradcheck(unit_sphere, y)
    with torch.no_grad():
        y[1] = 0
    (gradient,) = torch.autograd.grad((unit_sphere(y) * logits(3, 4).flip(0)).sum(), y)
    torch.testing.assert_close((gradient * y).sum(-1), torch.zeros(3, dtype=torch.float64))
    assert gradient[0].any()
    assert not gradient[1].any()
    assert not unit_sphere(y)[1].any()
