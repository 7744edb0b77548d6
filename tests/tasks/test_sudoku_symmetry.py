"""Canonical grids: the same for all disguises of a grid, and for nothing else."""

from itertools import permutations, product
from math import isqrt

import numpy as np
import pytest

from attractor.errors import InputError
from attractor.tasks.sudoku import canonical, count_distinct, generate
from attractor.tasks.sudoku.board import is_solved


def disguise(grid: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The grid under a random element of the symmetry group."""
    size = len(grid)
    box = isqrt(size)

    def lines() -> np.ndarray:
        return np.concatenate([band * box + random.permutation(box) for band in random.permutation(box)])

    if random.integers(2):
        grid = grid.T
    return np.concatenate([[0], 1 + random.permutation(size)])[grid[lines()][:, lines()]]


def cyclic(size: int) -> np.ndarray:
    """Every row is the one above shifted by a box: a grid with many symmetries of its own."""
    box = isqrt(size)
    rows, columns = np.indices((size, size))
    return (box * (rows % box) + rows // box + columns) % size + 1


@pytest.mark.parametrize(("size", "n"), [(4, 30), (9, 100), (16, 10)])
def test_a_disguise_does_not_change_the_canonical_grid(size: int, n: int) -> None:
    _, grids = generate(n, size**2, seed=0, size=size)
    random = np.random.default_rng(0)
    forms = canonical(grids)
    for _ in range(3):
        assert np.array_equal(canonical(np.stack([disguise(grid, random) for grid in grids])), forms)


def test_the_canonical_grid_of_a_symmetric_one_is_the_same_too() -> None:
    random = np.random.default_rng(1)
    disguises = np.stack([disguise(cyclic(9), random) for _ in range(40)])
    assert count_distinct(disguises) == 1


@pytest.mark.parametrize("size", [4, 9])
def test_a_canonical_grid_is_a_grid_and_its_own(size: int) -> None:
    forms = canonical(generate(50, size**2, seed=3, size=size)[1])
    assert is_solved(forms).all()
    assert np.array_equal(canonical(forms), forms)


def test_all_grids_of_size_four_are_two_sudokus() -> None:
    """Exact in both directions: an invariant that is too weak gives one, a form that is not invariant more than two."""
    rows = list(permutations(range(1, 5)))
    candidates = np.array(list(product(rows, repeat=4)))
    grids = candidates[is_solved(candidates)]
    assert len(grids) == 288
    assert count_distinct(grids) == 2


def test_a_thousand_boards_permuted_from_a_few_are_not_a_thousand() -> None:
    _, grids = generate(5, 81, seed=4)
    random = np.random.default_rng(2)
    assert count_distinct(grids) == 5
    assert count_distinct(np.stack([disguise(grids[i % 5], random) for i in range(1000)])) == 5


def test_grids_that_differ_in_one_cycle_of_two_digits_are_told_apart() -> None:
    """Nearly equal grids, which share most of their rows: swap the digits in two rows where they hold the same."""
    _, grids = generate(200, 81, seed=5)
    pairs = []
    for grid in grids:
        for r, s in ((0, 1), (3, 4), (6, 7)):
            for c, d in permutations(range(9), 2):
                if grid[r, c] == grid[s, d] and grid[s, c] == grid[r, d]:
                    other = grid.copy()
                    other[[r, s], c], other[[r, s], d] = grid[[s, r], c], grid[[s, r], d]
                    pairs.append((grid, other))
    assert len(pairs) > 10
    for grid, other in pairs[:10]:
        assert is_solved(other[None]).all()
        assert count_distinct(np.stack([grid, other])) == 2


def test_what_is_no_full_grid_is_refused() -> None:
    boards, solutions = generate(3, 40, seed=6)
    with pytest.raises(InputError, match="grid 1 is not"):
        canonical(np.stack([solutions[0], boards[1], solutions[2]]))


def test_a_grid_with_too_many_symmetries_is_refused_at_once() -> None:
    """In this one every pair of rows of a band, and of columns of a stack, exchanges digits in pairs."""
    rows, columns = np.indices((16, 16))
    grid = ((4 * (rows % 4) + rows // 4) ^ columns) + 1
    with pytest.raises(InputError, match="at most 1,000,000 trials"):
        canonical(grid[None])


def test_no_grids_have_no_canonical_grids() -> None:
    assert canonical(np.empty((0, 9, 9), dtype=int)).shape == (0, 9, 9)
