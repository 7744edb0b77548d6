"""The lumpability defect has known values for simple chains, and the right bounds and invariances."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from attractor.errors import InputError
from papers.fast_slow.probes.lumpability import lumpability_profile


def distributions(*shape: int, seed: int = 0) -> Tensor:
    """Draw rows that sum to one and differ widely."""
    return (3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).softmax(-1)


def blocks_of(length: int, block: int) -> list[range]:
    return [range(start, min(start + block, length)) for start in range(0, length, block)]


def lifted(length: int, block: int, causal: bool = False) -> Tensor:
    """Build a lumpable map: a random chain moves mass between blocks, and each row spreads it differently within
    them."""
    blocks = blocks_of(length, block)
    chain = distributions(len(blocks), len(blocks))
    if causal:
        chain = chain.tril() / chain.tril().sum(-1, keepdim=True)
    weights = torch.zeros(length, length, dtype=torch.float64)
    for row in range(length):
        for number, other in enumerate(blocks):
            spread = distributions(len(other), seed=100 * row + number)
            if causal and row in other:
                spread[torch.tensor(other) > row] = 0
                spread /= spread.sum()
            weights[row, list(other)] = chain[row // block, number] * spread
    return weights


def causal(length: int) -> Tensor:
    weights = distributions(length, length).tril()
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize(("length", "block"), [(12, 4), (12, 1), (12, 12), (11, 4), (10, 3), (5, 8)])
@pytest.mark.parametrize("is_causal", [False, True])
def test_lifted_chains_have_no_defect(length: int, block: int, is_causal: bool) -> None:
    """Criterion: a chain that is lumpable by construction has a defect below 1e-14, with whole and partial last blocks.
    Moving the mass of one row to another block makes it positive."""
    weights = lifted(length, block, is_causal)
    torch.testing.assert_close(weights.sum(-1), torch.ones(length, dtype=torch.float64))
    found = lumpability_profile(weights, block)
    assert found.defect < 1e-14
    assert found.of_departures < 1e-7  # rounding weighs more if few departures remain
    if 1 < block < length:
        moved = weights.clone()
        moved[1] = moved[1].roll(block)
        assert lumpability_profile(moved, block).defect > 1e-3


def test_defect_is_zero_only_where_the_condition_holds() -> None:
    """Criterion: the defect of a mixture of a lumpable and a random map grows with the random share from 0."""
    lumpable, random = lifted(12, 4), distributions(12, 12)
    shares = (0.0, 0.01, 0.1, 0.5, 1.0)
    defects = [lumpability_profile((1 - share) * lumpable + share * random, 4).defect for share in shares]
    assert defects[0] < 1e-14
    assert all(more > less + 1e-4 for less, more in pairwise(defects))
    torch.testing.assert_close(defects[1] / defects[4], torch.tensor(0.01, dtype=torch.float64))


def test_definition_by_hand() -> None:
    """Criterion: the defect equals a sum over pairs of blocks, the form of Kemeny and Snell, with a shorter last
    block."""
    weights, total, on_diagonal = distributions(10, 10), 0.0, 0.0
    blocks = blocks_of(10, 4)
    for rows in blocks:
        for columns in blocks:
            mass = [sum(weights[i, j].item() for j in columns) for i in rows]
            scatter = sum((of_row - sum(mass) / len(mass)) ** 2 for of_row in mass)
            total += scatter
            on_diagonal += scatter * (rows == columns)
    found = lumpability_profile(weights, 4)
    assert found.defect.item() == pytest.approx((total / 10 / (1 - 1 / 3)) ** 0.5)
    assert found.diagonal_share.item() == pytest.approx(on_diagonal / total)


def test_uniform_causal_attention() -> None:
    """Criterion: with blocks of two, rows 2 and 3 of four give their own block 1/3 and 1/2. So all deviations are 1/12,
    half of them on the diagonal. Departures are spread evenly over earlier blocks and have no defect."""
    weights = torch.ones(4, 4, dtype=torch.float64).tril() / torch.arange(1, 5).unsqueeze(-1)
    found = lumpability_profile(weights, 2)
    assert found.defect.item() == pytest.approx((4 / 12**2 / 4 / (1 - 1 / 2)) ** 0.5)
    assert found.diagonal_share.item() == pytest.approx(0.5)
    larger = torch.ones(23, 23, dtype=torch.float64).tril() / torch.arange(1, 24).unsqueeze(-1)
    assert lumpability_profile(larger, 5).defect > 0.05
    assert lumpability_profile(larger, 5).of_departures < 1e-7


@pytest.mark.parametrize(("length", "block"), [(16, 4), (32, 4), (12, 6)])
def test_largest_defect_is_one(length: int, block: int) -> None:
    """Criterion: the defect is 1 if each row sends all its mass to one block, and rows of a block evenly to different
    ones."""
    n_blocks = len(blocks_of(length, block))
    weights = torch.zeros(length, length, dtype=torch.float64)
    for row in range(length):
        weights[row, (row % block % n_blocks) * block] = 1
    assert lumpability_profile(weights, block).defect.item() == pytest.approx(1)


def test_all_parts_lie_between_zero_and_one() -> None:
    """Criterion: for maps from nearly uniform to one-hot, causal or not, no part is undefined at any block length."""
    for sharpness in (0.01, 1.0, 30.0, 1e4):
        logits = sharpness * torch.randn(20, 13, 13, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        above = torch.ones(13, 13, dtype=torch.bool).triu(1)
        for weights in (logits.softmax(-1), logits.masked_fill(above, float("-inf")).softmax(-1), torch.eye(13)):
            for block in (1, 2, 3, 5, 12, 13, 40):
                for part in lumpability_profile(weights, block):
                    assert ((part >= 0) & (part <= 1 + 1e-12)).all(), (sharpness, block)


@pytest.mark.parametrize("weights", [distributions(12, 12), causal(12)], ids=["full", "causal"])
def test_order_within_blocks_does_not_matter_and_across_does(weights: Tensor) -> None:
    within = torch.tensor([2, 0, 3, 1, 7, 4, 5, 6, 8, 11, 10, 9])
    across = torch.arange(12).view(3, 4).T.flatten()
    before = lumpability_profile(weights, 4)
    for part, permuted in zip(before, lumpability_profile(weights[within][:, within], 4), strict=True):
        torch.testing.assert_close(part, permuted)
    for part, permuted in zip(before, lumpability_profile(weights[within], 4), strict=True):  # only rows are permuted
        torch.testing.assert_close(part, permuted)
    assert abs(lumpability_profile(weights[across][:, across], 4).defect - before.defect) > 1e-2


def test_maps_of_a_batch_are_measured_separately() -> None:
    maps = distributions(3, 2, 9, 9).float()
    together = lumpability_profile(maps, 4)
    for part, alone in zip(together, lumpability_profile(maps[2, 1], 4), strict=True):
        assert part.shape == (3, 2)
        torch.testing.assert_close(part[2, 1], alone)


@pytest.mark.parametrize(
    ("weights", "block", "message"),
    [
        *((torch.eye(4), n, f"^block must be an integer of at least 1, got {n}; ") for n in (0, -2, 2.5)),
        (torch.ones(3, 4), 2, r"^weights must be square maps, got \(3, 4\); "),
    ],
)
def test_what_has_no_blocks_is_refused(weights: Tensor, block: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        lumpability_profile(weights, block)
