"""Boards are drawn with lines between boxes, and parsed from cells in a row."""

import functools

import numpy as np
import pytest

from attractor.errors import InputError
from attractor.tasks.sudoku import generate, show
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


def test_givens_of_another_size_are_refused() -> None:
    with pytest.raises(InputError, match=r"givens must have the shape of the board, \(4, 4\), got \(6, 6\)"):
        show(puzzle(4)[1], puzzle(6)[0])
