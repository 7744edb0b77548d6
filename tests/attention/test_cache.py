"""The cache returns what was appended, whatever the chunks; its storage grows by doubling; its rows can be
reordered."""

from itertools import pairwise

import pytest
import torch

from attractor.attention import Cache, build
from attractor.errors import InputError


@pytest.mark.parametrize("chunks", [[9], [1] * 9, [4, 1, 4], [1, 7, 1]], ids=str)
def test_everything_appended_comes_back(chunks: list[int]) -> None:
    """Criterion: after every append, keys and values equal the concatenation so far, though their widths and heads
    differ."""
    keys, values = torch.randn(2, 3, 9, 4), torch.randn(2, 1, 9, 6)
    cache, end = Cache(), 0
    for k, v in zip(keys.split(chunks, dim=2), values.split(chunks, dim=2), strict=True):
        held_keys, held_values = cache.append(k, v)
        end += k.shape[2]
        assert cache.length == end
        assert torch.equal(held_keys, keys[:, :, :end])
        assert torch.equal(held_values, values[:, :, :end])


def test_storage_is_reallocated_a_logarithmic_number_of_times() -> None:
    """Criterion: 100 appends of one position move the storage at most 8 times (at capacities 1, 2, 4, ... 128)."""
    cache, addresses = Cache(), []
    for _ in range(100):
        addresses.append(cache.append(torch.zeros(1, 1, 1, 2))[0].untyped_storage().data_ptr())
    moves = 1 + sum(before != after for before, after in pairwise(addresses))
    assert moves <= 8


def test_numbers_are_those_of_one_sequence_without_spare_room() -> None:
    cache = Cache()
    assert cache.n_numbers == 0
    for n in range(1, 6):
        cache.append(torch.zeros(7, 3, 1, 4), torch.zeros(7, 2, 1, 5))
        assert cache.n_numbers == n * (3 * 4 + 2 * 5)


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("rows", [[1, 0, 2], [2, 2, 0], [1]], ids=["permuted", "branched", "finished"])
def test_reordered_rows_continue_other_sequences(rows: list[int], window: int | None) -> None:
    """Criterion: decoding after a reorder equals the full pass over the selected sequences."""
    torch.manual_seed(0)
    layer = build("standard", 8, 2, window=window).double()
    past, new = torch.randn(3, 9, 8, dtype=torch.float64), torch.randn(len(rows), 2, 8, dtype=torch.float64)
    cache = layer.new_cache()
    layer(past, cache=cache)
    cache.reorder(torch.tensor(rows))
    found, _ = layer(new, cache=cache)
    whole, _ = layer(torch.cat([past[rows], new], dim=1))
    torch.testing.assert_close(found, whole[:, 9:])
    assert cache.length == 11


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("shape", [(1, 2, 1, 4), (2, 1, 1, 4), (2, 2, 1, 3)])
def test_a_cache_takes_no_positions_of_another_shape_and_gives_none_that_it_lacks(
    window: int | None, shape: tuple[int, ...]
) -> None:
    """Criterion: an error, where torch would repeat the one sequence, head or number; the cache is unchanged."""
    cache = Cache(window)
    cache.append(torch.zeros(2, 2, 3, 4))
    with pytest.raises(InputError, match=r"^cache must be given 2 sequences of 2 heads of width 4, as it holds, got "):
        cache.append(torch.ones(shape))
    for length in (-1, 4):
        with pytest.raises(InputError, match=f"length must be from 0 to the 3 cached positions, got {length}"):
            cache.crop(length)
    assert cache.length == 3
