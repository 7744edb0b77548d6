"""A solved board has no conflicts, and other boards have those that a count cell by cell finds."""

from itertools import product

import numpy as np
import pytest

from attractor.tasks.sudoku import conflicts, generate, n_broken_units
from attractor.tasks.sudoku.board import BOXES, SIZES


def units_of(size: int) -> list[list[tuple[int, int]]]:
    """Return the cells of every row, column and box."""
    height, width = BOXES[size]
    rows = [[(r, c) for c in range(size)] for r in range(size)]
    columns = [[(r, c) for r in range(size)] for c in range(size)]
    corners = product(range(0, size, height), range(0, size, width))
    boxes = [[(top + r, left + c) for r in range(height) for c in range(width)] for top, left in corners]
    return rows + columns + boxes


@pytest.mark.parametrize("size", SIZES)
def test_conflicts_equal_a_count_cell_by_cell(size: int) -> None:
    boards = np.random.default_rng(0).integers(0, size + 1, (6, size, size))
    cells, units = np.zeros_like(boards), np.zeros(len(boards), dtype=int)
    for n, board in enumerate(boards):
        for unit in units_of(size):
            digits = [board[place] for place in unit if board[place]]
            units[n] += len(set(digits)) < len(digits)
            for place in unit:
                cells[n][place] += digits.count(board[place]) > 1
    assert np.array_equal(conflicts(boards), cells)
    assert np.array_equal(n_broken_units(boards), units)


@pytest.mark.parametrize(("size", "n_givens"), [(4, 6), (6, 14), (9, 30), (16, 150)])
def test_solutions_and_their_boards_have_none(size: int, n_givens: int) -> None:
    for boards in generate(3, n_givens, seed=0, size=size):
        assert not conflicts(boards).any()
        assert not n_broken_units(boards).any()


def test_one_changed_cell_conflicts_in_its_units_and_with_the_cells_it_repeats() -> None:
    _, solutions = generate(1, 81, seed=1)
    wrong = solutions.copy()
    wrong[0, 4, 7] = wrong[0, 4, 7] % 9 + 1
    found = conflicts(wrong)[0]
    assert found[4, 7] == 3
    repeated = np.argwhere(found > 0)
    assert (wrong[0][tuple(repeated.T)] == wrong[0, 4, 7]).all()
    assert found.sum() == 3 + 3, "one other cell in each of three units"
    assert n_broken_units(wrong).tolist() == [3]


def test_no_boards_have_no_conflicts() -> None:
    nothing = np.empty((0, 9, 9), dtype=int)
    assert conflicts(nothing).shape == (0, 9, 9)
    assert n_broken_units(nothing).shape == (0,)
