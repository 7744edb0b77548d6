"""Boards are drawn, parsed and checked cell by cell, and of several answers that of the lowest energy is taken."""

import functools
from itertools import product

import numpy as np
import pytest

from attractor.tasks.sudoku import conflicts, generate, n_broken_units, show
from attractor.tasks.sudoku.board import BOXES, SIZES, SYMBOLS
from attractor.tasks.sudoku.formats import parse

N_GIVENS = {4: 5, 6: 12, 9: 28, 16: 150}


@functools.cache
def puzzle(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a board and its solution."""
    boards, solutions = generate(1, N_GIVENS[size], seed=0, size=size)
    return boards[0], solutions[0]


@pytest.mark.parametrize("size", SIZES)
def test_cells_in_a_row_are_a_board(size: int) -> None:
    board, _ = puzzle(size)
    cells = "".join(SYMBOLS[cell] for cell in board.ravel())
    for written in (cells, cells.replace(".", "0"), cells.lower()):
        assert np.array_equal(parse(written), board)


@pytest.mark.parametrize("size", SIZES)
def test_lines_separate_boxes_and_filled_digits_are_marked(size: int) -> None:
    board, solution = puzzle(size)
    height, width = BOXES[size]
    lines = show(solution, board).splitlines()
    assert len(lines) == size + size // height - 1
    rules = [i for i, line in enumerate(lines) if "-" in line]
    assert rules == [height + i * (height + 1) for i in range(size // height - 1)]
    crosses = {i for i, sign in enumerate(lines[rules[0]]) if sign == "+"}
    assert len(crosses) == size // width - 1
    for i, line in enumerate(lines):
        assert {place for place, sign in enumerate(line) if sign in "+|"} == crosses, f"line {i}"
    assert show(solution, board).count("'") == (board == 0).sum()
    assert "'" not in show(board, board) + show(solution)


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
    assert conflicts(boards[:0]).shape == (0, size, size)
    assert n_broken_units(boards[:0]).shape == (0,)


@pytest.mark.parametrize(("size", "n_givens"), [(4, 6), (6, 14), (9, 40)])
def test_solutions_and_their_boards_have_none(size: int, n_givens: int) -> None:
    for boards in generate(3, n_givens, seed=0, size=size):
        assert not conflicts(boards).any()
        assert not n_broken_units(boards).any()
