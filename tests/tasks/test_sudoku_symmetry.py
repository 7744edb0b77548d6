"""Boards have equal hashes where a symmetry maps one to the other, and elsewhere hardly ever."""

from itertools import combinations, permutations

import numpy as np
import pytest

from attractor.tasks.sudoku import count_solutions, generate, solve
from attractor.tasks.sudoku.board import BOXES, is_solved
from attractor.tasks.sudoku.symmetry import hashes


def n_distinct(boards: np.ndarray, solutions: np.ndarray) -> int:
    return len(np.unique(hashes(boards, solutions)))


def disguise(grid: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Apply a random element of the symmetry group to the grid, or to the board with blanks."""
    size = len(grid)
    height, width = BOXES[size]

    def lines(in_band: int) -> np.ndarray:
        bands = random.permutation(size // in_band)
        return np.concatenate([band * in_band + random.permutation(in_band) for band in bands])

    if height == width and random.integers(2):
        grid = grid.T
    return np.concatenate([[0], 1 + random.permutation(size)])[grid[lines(height)][:, lines(width)]]


@pytest.mark.parametrize(("size", "n_givens", "n"), [(4, 6, 40), (6, 12, 30), (9, 30, 15), (16, 160, 2)])
def test_a_disguise_does_not_change_the_hash(size: int, n_givens: int, n: int) -> None:
    boards, solutions = generate(n, n_givens, seed=7, size=size)
    random = np.random.default_rng(0)
    disguised = np.stack([disguise(board, random) for board in boards])
    solved = solve(disguised)
    assert not np.array_equal(disguised, boards)
    assert np.array_equal(hashes(disguised, solved), hashes(boards, solutions))
    assert np.array_equal(hashes(solved, solved), hashes(solutions, solutions))
    if size > 4:
        assert n_distinct(boards, solutions) == n


def test_grids_that_differ_in_one_cycle_of_two_digits_have_different_hashes() -> None:
    """Two rows that hold the same pair of digits exchange them, so the grids share most of their rows."""
    _, grids = generate(100, 81, seed=5)
    pairs = []
    for grid in grids:
        for r, s in ((0, 1), (3, 4), (6, 7)):
            for c, d in permutations(range(9), 2):
                if grid[r, c] == grid[s, d] and grid[s, c] == grid[r, d]:
                    other = grid.copy()
                    other[[r, s], c], other[[r, s], d] = grid[[s, r], c], grid[[s, r], d]
                    pairs.append((grid, other))
    assert len(pairs) > 10
    for pair in map(np.stack, pairs):
        assert is_solved(pair).all()
        assert n_distinct(pair, pair) == 2


def test_puzzles_of_size_four_are_counted_exactly() -> None:
    """Criterion: 25,728 boards with four givens have one solution, and are 13 puzzles. Of the first 12,000 boards with
    6 to 9 givens there are 2,927 puzzles, by their canonical forms."""
    grids = np.array(
        [
            [[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]],
            [[1, 2, 3, 4], [3, 4, 1, 2], [2, 3, 4, 1], [4, 1, 2, 3]],
        ]
    )
    assert n_distinct(grids, grids) == 2
    places = np.zeros((1820, 16), dtype=int)
    np.put_along_axis(places, np.array(list(combinations(range(16), 4))), 1, axis=1)
    n_boards, n_puzzles = 0, 0
    for grid, orbit in zip(grids, [96, 192], strict=True):
        boards = places.reshape(-1, 4, 4) * grid
        boards = boards[count_solutions(boards) == 1]
        n_boards += orbit * len(boards)
        n_puzzles += n_distinct(boards, np.broadcast_to(grid, boards.shape))
    assert (n_boards, n_puzzles) == (25_728, 13)
    assert n_distinct(*generate(12_000, (6, 9), 1, 4)) == 2_927


def test_no_boards_have_no_hashes() -> None:
    none = np.zeros((0, 9, 9), dtype=int)
    assert hashes(none, none).shape == (0,)
