"""Pooling in blocks of P tokens follows its definitions, also for sequences that are shifted, padded or continued."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attractor.models.block_pooling import (
    AlignedBlocks,
    BlockMemory,
    ContinuedBlocks,
    NextTokenBlocks,
    causal_pool,
    causal_upsample,
)

WIDTH = 3
PERIODS_AND_LENGTHS = [(p, t) for p in (1, 2, 4, 5) for t in (1, 4, 5, 11, 12)]


def drawn(batch: int, length: int, seed: int = 0) -> Tensor:
    return torch.randn(batch, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("period", "length"), PERIODS_AND_LENGTHS)
def test_a_block_is_the_mean_of_its_tokens_even_if_incomplete(period: int, length: int) -> None:
    x = drawn(2, length)
    blocks = [x[:, start : start + period].mean(1) for start in range(0, length, period)]
    assert torch.allclose(causal_pool(x, period), torch.stack(blocks, dim=1), atol=1e-15)


@pytest.mark.parametrize(("period", "length"), PERIODS_AND_LENGTHS)
def test_a_token_reads_the_previous_block_and_the_first_block_reads_nothing(period: int, length: int) -> None:
    y = drawn(2, -(-length // period))
    up = causal_upsample(y, period, length)
    for t in range(length):
        wanted = y[:, t // period - 1] if t >= period else torch.zeros(2, WIDTH, dtype=torch.float64)
        assert torch.equal(up[:, t], wanted)


@pytest.mark.parametrize(("period", "length"), PERIODS_AND_LENGTHS)
def test_all_blocks_but_the_last_are_read(period: int, length: int) -> None:
    x = drawn(2, length)
    blocks, nothing = AlignedBlocks(period, length, x.device), BlockMemory()
    y = blocks.pool(x, nothing)
    assert y.shape[1] == blocks.n_blocks == (length - 1) // period
    assert torch.equal(y, causal_pool(x, period)[:, : blocks.n_blocks])
    assert torch.equal(blocks.upsample(y, nothing), causal_upsample(causal_pool(x, period), period, length))


@given(st.data())
def test_padded_sequences_in_chunks_have_the_blocks_of_whole_sequences(data: st.DataObject) -> None:
    """Three sequences of different lengths are padded on the left and processed in chunks of any length. The map y -> 2
    y stands for the slow path, so that blocks do not depend on each other."""
    period = data.draw(st.integers(1, 5))
    lengths = data.draw(st.lists(st.integers(1, 17), min_size=3, max_size=3))
    longest = max(lengths)
    x = drawn(3, longest)
    real = torch.tensor([[t >= longest - n for t in range(longest)] for n in lengths])
    positions = (real.cumsum(1) - 1).clamp(min=0)
    memory, seen, found, start = BlockMemory(), None, [], 0
    while start < longest:
        end = data.draw(st.integers(start + 1, longest))
        now = slice(start, end)
        before = real[:, :start].sum(1, keepdim=True)
        blocks = ContinuedBlocks(period, positions[:, now], real[:, now], before, seen)
        found.append(blocks.upsample(2 * blocks.pool(x[:, now], memory), memory))
        seen, start = blocks.seen, end
    up = torch.cat(found, dim=1)
    for row, n in enumerate(lengths):
        wanted = causal_upsample(2 * causal_pool(x[row : row + 1, longest - n :], period), period, n)
        assert torch.allclose(up[row, longest - n :], wanted[0], atol=1e-14)
    assert seen is not None
    assert seen.sum(1).tolist() == [n // period for n in lengths]


@given(period=st.integers(1, 5), first=st.integers(1, 12), then=st.integers(0, 12), singly=st.integers(0, 12))
def test_without_padding_every_row_completes_the_same_blocks(period: int, first: int, then: int, singly: int) -> None:
    """The sequence comes in one or two chunks and then token by token."""
    ends = [first, *([first + then] if then else [])]
    ends += range(ends[-1] + 1, ends[-1] + singly + 1)
    x = drawn(2, ends[-1])
    positions = torch.arange(ends[-1]).expand(2, -1)
    memory, found = BlockMemory(), []
    for before, end in pairwise([0, *ends]):
        now = slice(before, end)
        alone = before >= first + then
        blocks = (
            NextTokenBlocks(period, before, x.device)
            if alone
            else ContinuedBlocks(period, positions[:, now], None, before)
        )
        found.append(blocks.upsample(2 * blocks.pool(x[:, now], memory), memory))
        assert blocks.positions.tolist() == list(range(before // period, end // period))
        assert blocks.seen is None  # rows need no counts of their own
    wanted = causal_upsample(2 * causal_pool(x, period), period, ends[-1])
    assert torch.allclose(torch.cat(found, dim=1), wanted, atol=1e-14)
