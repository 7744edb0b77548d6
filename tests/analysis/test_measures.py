"""Measures of attention maps have the known values of simple maps, and the right bounds and invariances."""

import math

import pytest
import torch

from attractor.analysis import attention_entropy, effective_rank, normalised_entropy, sink_mass, spectral_profile


def random_map(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(-1)


@pytest.mark.parametrize("n_keys", [1, 2, 7, 100])
def test_entropy_of_known_rows(n_keys: int) -> None:
    """Criterion: the entropy is log S nats for S equal weights, and 0 for a single one (0 log 0 = 0)."""
    uniform = torch.full((3, n_keys), 1 / n_keys, dtype=torch.float64)
    torch.testing.assert_close(attention_entropy(uniform), torch.full((3,), math.log(n_keys), dtype=torch.float64))
    assert torch.equal(attention_entropy(torch.eye(n_keys)), torch.zeros(n_keys))


def test_entropy_of_a_causal_map_by_row() -> None:
    """Criterion: row t of the uniform causal map has entropy log(t + 1), so row 0 has 0."""
    weights = torch.ones(2, 3, 6, 6, dtype=torch.float64).tril()
    weights /= weights.sum(-1, keepdim=True)
    expected = torch.arange(1, 7, dtype=torch.float64).log()
    torch.testing.assert_close(attention_entropy(weights), expected.expand(2, 3, 6))
    assert (attention_entropy(random_map(5, 5).tril())[0] >= 0).all()


def test_normalised_entropy_is_one_for_any_uniform_map() -> None:
    """Criterion: a uniform map has 1, both where rows see all positions and where they see only those up to their own.
    One-hot rows have 0, and all others the mean of H_t / log n_t. Row 0 of a causal map sees one position, so it is
    left out."""
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    uniform = causal / causal.sum(-1, keepdim=True)
    torch.testing.assert_close(normalised_entropy(uniform.expand(2, 3, 6, 6), causal), torch.ones(2, 3))
    torch.testing.assert_close(normalised_entropy(torch.full((4, 4), 0.25)), torch.tensor(1.0))
    assert normalised_entropy(torch.eye(5)).item() == 0
    mixed = torch.tensor([[1.0, 0.0], [0.2, 0.8]])
    two = -0.2 * math.log(0.2) - 0.8 * math.log(0.8)
    assert normalised_entropy(mixed).item() == pytest.approx(two / math.log(2) / 2)
    of_two = normalised_entropy(mixed, torch.ones(2, 2, dtype=torch.bool).tril())
    assert of_two.item() == pytest.approx(two / math.log(2))
    assert normalised_entropy(torch.ones(1, 1)).isnan()


def test_entropy_is_between_its_limits_and_independent_of_the_order_of_keys() -> None:
    weights = random_map(2, 4, 5, 9)
    entropy = attention_entropy(weights)
    assert entropy.shape == (2, 4, 5)
    assert ((entropy > 0) & (entropy < math.log(9))).all()
    torch.testing.assert_close(attention_entropy(weights.flip(-1)), entropy)


def test_measures_of_half_precision_are_computed_in_fp32() -> None:
    weights = random_map(2, 6, 6).bfloat16()
    for measure in (attention_entropy, effective_rank, sink_mass):
        assert measure(weights.double()).dtype == torch.float64
        assert measure(weights).dtype == torch.float32
        torch.testing.assert_close(measure(weights), measure(weights.float()))


@pytest.mark.parametrize("n", [1, 3, 8])
def test_rank_of_known_maps(n: int) -> None:
    """Criterion: the effective rank is n for n equal singular values, and 1 for a single one."""
    one_direction = torch.outer(torch.arange(1.0, n + 1), torch.linspace(1, 2, n))
    torch.testing.assert_close(effective_rank(torch.eye(n)), torch.tensor(float(n)))
    torch.testing.assert_close(effective_rank(one_direction), torch.tensor(1.0), rtol=0, atol=1e-4)


def test_rank_is_not_the_exponential_of_the_entropy() -> None:
    """Criterion: singular values 3 and 1 have rank (3 + 1)^2 / (9 + 1) = 1.6. The exponential of their entropy is
    1.755."""
    assert effective_rank(torch.diag(torch.tensor([3.0, 1.0, 0.0]))).item() == pytest.approx(1.6)
    assert math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)) == pytest.approx(1.755, abs=1e-3)


def test_the_spectrum_ignores_scale_and_rotation() -> None:
    weights = random_map(2, 3, 6, 6)
    rotation, _ = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    rank = effective_rank(weights)
    assert rank.shape == (2, 3)
    assert ((rank >= 1) & (rank <= 6)).all()
    for changed in (7.5 * weights, rotation @ weights, weights @ rotation, weights.mT):
        torch.testing.assert_close(spectral_profile(changed), spectral_profile(weights))


def test_the_slope_of_the_rank_is_that_of_an_svd_and_finite_at_zero_singular_values() -> None:
    weights = random_map(5, 7).double().requires_grad_()
    sigma = torch.linalg.svdvals(weights)
    (wanted,) = torch.autograd.grad(sigma.sum().square() / sigma.square().sum(), weights)
    (slope,) = torch.autograd.grad(effective_rank(weights), weights)
    torch.testing.assert_close(slope, wanted)
    with_zeros = torch.diag(torch.tensor([2.0, 1.0, 0.0, 0.0])).requires_grad_()
    (slope,) = torch.autograd.grad(effective_rank(with_zeros), with_zeros)
    assert slope.isfinite().all()


def test_the_spectrum_of_known_maps():
    """Criterion: a single singular value has share and gap 1; n equal ones have share 1/n and gap 0."""
    for weights, rank, share, gap in (
        (torch.ones(4, 4, dtype=torch.float64), 1.0, 1.0, 1.0),
        (torch.eye(4), 4.0, 0.25, 0.0),
        (torch.diag(torch.tensor([4.0, 1.0, 1.0])), 2.0, 2 / 3, 0.75),
    ):
        found = torch.stack(spectral_profile(weights))
        torch.testing.assert_close(found, torch.tensor([rank, share, gap], dtype=weights.dtype))


def test_sink_mass_of_known_maps() -> None:
    collapsed = torch.zeros(5, 5)
    collapsed[:, 0] = 1
    assert sink_mass(collapsed) == 1
    assert sink_mass(torch.eye(5)) == 0
    uniform = torch.tril(torch.ones(5, 5)) / torch.arange(1, 6).unsqueeze(1)
    harmonic = sum(1 / n for n in range(1, 6))
    torch.testing.assert_close(sink_mass(uniform), torch.tensor((harmonic - 1) / 4))


def test_the_first_row_and_other_maps_of_a_batch_are_no_sink() -> None:
    maps = random_map(3, 2, 6, 6)
    assert sink_mass(maps).shape == (3, 2)
    other = maps.clone()
    other[..., 0, 0] = 7
    torch.testing.assert_close(sink_mass(other), sink_mass(maps))
    torch.testing.assert_close(sink_mass(maps)[1, 1], sink_mass(maps[1, 1]))
