"""Read puzzles as people type them, answer them, and draw boards in plain text.

A cell is a digit (A to G for 10 to 16) or a blank: 0 . _ or *. Spaces, line breaks and | - + ' only separate cells. So
a puzzle may be one long line, nine lines, or a drawing by `show`. The number of cells determines the size.
"""

from collections import Counter
from itertools import product
from typing import NamedTuple

import numpy as np

from attractor.errors import InputError
from attractor.tasks.sudoku.board import BOXES, SIZES, as_boards, candidates, digits
from attractor.tasks.sudoku.conflicts import conflicts, units_of_cells
from attractor.tasks.sudoku.formats import SYMBOLS
from attractor.tasks.sudoku.solver import most_guesses, search

BLANKS = "0._*"
SEPARATORS = "|-+'"
FILLED = "'"  # follows a digit that is not a given


class Answer(NamedTuple):
    """A solution (size x size), and a note if there are other solutions, or may be."""

    solution: np.ndarray
    note: str | None
    is_undecided: bool = False  # the search ended before it could exclude other solutions


def parse_puzzle(text: str) -> np.ndarray:
    """Parse the board (size x size, 0 is blank) of a text. An error names the place of what is wrong."""
    lines = [[c for c in line if not c.isspace() and c not in SEPARATORS] for line in text.splitlines()]
    cells = [c for line in lines for c in line]
    size = next((size for size in SIZES if size * size == len(cells)), None)
    if size is None:
        raise _wrong_length(lines, len(cells))
    values = {symbol: digit for digit, symbol in enumerate(SYMBOLS[: size + 1])} | dict.fromkeys(BLANKS, 0)
    for place, cell in enumerate(cells):
        if cell.upper() not in values:
            row, column = divmod(place, size)
            allowed = "1 to 9 and A to G" if size > 9 else f"1 to {size}"
            raise InputError(
                f"puzzle must hold digits {allowed} and blanks ({' '.join(BLANKS)}) at size {size}, got '{cell}' in "
                f"row {row + 1}, column {column + 1}; correct that cell"
            )
    board = np.array([values[cell.upper()] for cell in cells]).reshape(size, size)
    _refuse_contradiction(board)
    return board


def answer(board: np.ndarray) -> Answer:
    """Solve a board (size x size). It is an error if no solution is found; several solutions give a note."""
    boards = as_boards(np.asarray(board)[None])
    _refuse_contradiction(boards[0])
    masks = candidates(boards)
    n_guesses, n_givens = most_guesses(masks), np.count_nonzero(boards)
    result = search(masks, limit=2, n_guesses=n_guesses)
    is_undecided = bool(result.undecided[0])
    if is_undecided and not result.n_solutions[0]:
        raise InputError(
            f"puzzle must be decided within {n_guesses:,} guesses, but the search of these {n_givens} givens found no "
            "solution by then; check or add givens"
        )
    if not result.n_solutions[0]:
        raise InputError(
            f"puzzle must have a solution, but no way to fill its {np.count_nonzero(boards == 0)} blanks keeps the "
            "rules; check its givens"
        )
    note = None
    if is_undecided:
        note = (
            f"the search ended after {n_guesses:,} guesses, so there may be other solutions; more givens exclude them"
        )
    elif result.n_solutions[0] > 1:
        note = (
            f"these {n_givens} givens leave several solutions, of which this is one; more givens make it the only one"
        )
    return Answer(digits(result.solutions)[0], note, is_undecided)


def show(board: np.ndarray, givens: np.ndarray | None = None) -> str:
    """Draw a board (size x size) with lines between boxes, dots for blanks, and a ' after digits that are no givens."""
    cells = as_boards(np.asarray(board)[None])[0]
    given = cells if givens is None else as_boards(np.asarray(givens)[None])[0]
    if given.shape != cells.shape:
        raise InputError(f"givens must have the shape of the board, {cells.shape}, got {given.shape}; give its puzzle")
    height, width = BOXES[len(cells)]
    drawn = [
        [SYMBOLS[cell] + (FILLED if cell != of_givens else " ") for cell, of_givens in zip(*pair, strict=True)]
        for pair in zip(cells, given, strict=True)
    ]
    rows = ["| ".join("".join(row[i : i + width]) for i in range(0, len(row), width)).rstrip() for row in drawn]
    bands = ["\n".join(rows[i : i + height]) for i in range(0, len(rows), height)]
    rule = "+".join(["-" * (2 * width)] + ["-" * (2 * width + 1)] * (len(cells) // width - 1))
    return f"\n{rule}\n".join(bands)


def _wrong_length(lines: list[list[str]], n_cells: int) -> InputError:
    smaller = [size for size in SIZES if size * size < n_cells][-1:]
    larger = [size for size in SIZES if size * size > n_cells][:1]
    nearest = [f"{n_cells - size * size} too many for {size} x {size}" for size in smaller]
    nearest += [f"{size * size - n_cells} too few for {size} x {size}" for size in larger]
    lengths = {number: len(line) for number, line in enumerate(lines, start=1) if line}
    usual = max(Counter(lengths.values()).items(), key=lambda item: item[1], default=(0, 0))[0]
    odd = [f"line {number} has {n} where others have {usual}, " for number, n in lengths.items() if n != usual][:1]
    *others, last = (str(size * size) for size in SIZES)
    return InputError(
        f"puzzle must have {', '.join(others)} or {last} cells, got {n_cells}, {' and '.join(nearest)}; {''.join(odd)}"
        f"write a blank as one of {' '.join(BLANKS)}, since {' '.join(SEPARATORS)} only separate"
    )


def _refuse_contradiction(board: np.ndarray) -> None:
    if not conflicts(board[None]).any():
        return
    size, cells = len(board), board.ravel()
    for unit, digit in product(range(3 * size), range(1, size + 1)):
        places = np.flatnonzero((units_of_cells(size) == unit).any(axis=0) & (cells == digit))
        if len(places) > 1:
            raise InputError(
                "puzzle must hold a digit once in each row, column and box, but "
                f"{_twice(SYMBOLS[digit], unit // size, *divmod(places[:2], size))}; correct one of the two"
            )


def _twice(symbol: str, kind: int, rows: np.ndarray, columns: np.ndarray) -> str:
    (row, other_row), (column, other_column) = rows + 1, columns + 1
    in_row = f"row {row} has {symbol} twice, at columns {column} and {other_column}"
    in_column = f"column {column} has {symbol} twice, at rows {row} and {other_row}"
    in_box = f"a box has {symbol} twice, at row {row}, column {column} and at row {other_row}, column {other_column}"
    return (in_row, in_column, in_box)[kind]
