"""Measures of memory have the known values of simple decays and maps, and the right invariances."""

import math

import pytest
import torch

from attractor.analysis.memory import decay_length, distance_holding, effective_memory, mean_distance

T = 12


def uniform_causal(length: int = T) -> torch.Tensor:
    return torch.ones(length, length).tril() / torch.arange(1, length + 1).unsqueeze(-1)


def falling(a: float, length: int) -> torch.Tensor:
    """Return the last row (1 T) of a causal map whose weights fall by the factor a at each step back."""
    row = torch.tensor(a, dtype=torch.float64) ** torch.arange(length - 1, -1, -1)
    return (row / row.sum()).unsqueeze(0)


def survival(log_decay: torch.Tensor) -> torch.Tensor:
    """Return prod_r a_r over r = s + 1, ..., t as a causal T x T matrix, from differences of sums."""
    total = log_decay.cumsum(-1)
    return (total.unsqueeze(-1) - total.unsqueeze(-2)).exp().tril()


@pytest.mark.parametrize("a", [0.0, 0.25, 0.9])
def test_constant_decay_holds_a_geometric_sum(a: float) -> None:
    """Criterion: the memory is (1 - a^(t+1)) / (1 - a), which is 1 at a = 0 and tends to the length of the decay."""
    log_decay = torch.full((2, 400), a, dtype=torch.float64).log()
    expected = (1 - torch.tensor(a, dtype=torch.float64) ** (torch.arange(400) + 1)) / (1 - a)
    torch.testing.assert_close(effective_memory(log_decay), expected.expand(2, -1))
    torch.testing.assert_close(decay_length(log_decay), torch.full((2, 400), 1 / (1 - a), dtype=torch.float64))
    torch.testing.assert_close(effective_memory(log_decay)[:, -1], decay_length(log_decay)[:, -1])


def test_memory_without_decay_is_the_whole_past() -> None:
    log_decay = torch.zeros(T)
    assert torch.equal(effective_memory(log_decay), torch.arange(1.0, T + 1))
    assert decay_length(log_decay).isposinf().all()


def test_length_is_exact_for_long_memories() -> None:
    """Criterion: a length of a million tokens is right to 1e-6 in fp32, where 1 - a from a rounded a is off by over
    1%."""
    log_decay = torch.tensor([math.log1p(-1e-6)])
    torch.testing.assert_close(decay_length(log_decay), torch.tensor([1e6]), rtol=1e-6, atol=0)
    assert abs(1e-6 / (1 - log_decay.exp()) - 1) > 0.01


def test_memory_is_the_sum_of_what_survives() -> None:
    log_decay = -torch.rand(3, 2, T, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(effective_memory(log_decay), survival(log_decay).sum(-1))


def test_known_maps() -> None:
    """Criterion: attention to oneself has distance 0, and attention at a fixed offset that offset. The causal mean has
    mean distance t / 2, and half of its mass lies within ceil((t + 1) / 2) - 1."""
    rows = torch.arange(T)
    for measure in (mean_distance, distance_holding):
        assert torch.equal(measure(torch.eye(T).expand(2, 3, T, T)), torch.zeros(2, 3, T))
        assert torch.equal(measure(torch.eye(T).roll(3, 0)[3:, :]), torch.full((T - 3,), 3.0))
    torch.testing.assert_close(mean_distance(uniform_causal()), rows / 2)
    assert torch.equal(distance_holding(uniform_causal()), torch.ceil((rows + 1) / 2) - 1)
    assert torch.equal(distance_holding(uniform_causal(), 1.0), rows.float())


@pytest.mark.parametrize("length", [10, 100, 1000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_ties_are_not_lost_to_rounding(length: int, dtype: torch.dtype) -> None:
    """Criterion: in any precision, half the mass of a uniform row of even length lies in exactly half of its
    positions."""
    assert distance_holding(torch.full((1, length), 1 / length, dtype=dtype)).item() == length // 2 - 1


@pytest.mark.parametrize("a", [0.3, 0.9, 0.98])
def test_falling_weights(a: float) -> None:
    """Criterion: the mean distance tends to 1 / (1 - a) - 1 = a / (1 - a), and n steps hold the share 1 - a^(n+1)."""
    row = falling(a, 2000)
    torch.testing.assert_close(mean_distance(row), decay_length(torch.tensor([a], dtype=torch.float64).log()) - 1)
    for share in (0.5, 0.9):
        assert distance_holding(row, share).item() == math.ceil(math.log(1 - share) / math.log(a)) - 1


def test_a_thin_tail_moves_the_mean_distance_only() -> None:
    row = torch.zeros(1, 1000)
    row[0, -1], row[0, 0] = 0.95, 0.05
    assert mean_distance(row).item() == pytest.approx(0.05 * 999)
    assert distance_holding(row, 0.9).item() == 0


def test_queries_of_a_cache_are_the_last_positions() -> None:
    """Criterion: the last rows of a map have the same distances alone as within the map."""
    weights = torch.rand(2, T, T, generator=torch.Generator().manual_seed(0)).tril()
    weights /= weights.sum(-1, keepdim=True)
    for measure in (mean_distance, distance_holding):
        assert torch.equal(measure(weights[:, -3:]), measure(weights)[:, -3:])


def test_distances_to_later_and_to_earlier_positions_are_measured_alike() -> None:
    weights = torch.rand(T, T, generator=torch.Generator().manual_seed(0))
    for measure in (mean_distance, distance_holding):
        torch.testing.assert_close(measure(weights.flip(0, 1)), measure(weights).flip(0))
