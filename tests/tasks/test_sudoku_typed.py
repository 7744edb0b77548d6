"""Puzzles typed by a person are read in every notation, and errors name the place."""

import functools
import re

import numpy as np
import pytest

from attractor.errors import InputError
from attractor.tasks.sudoku import answer, generate, parse_puzzle, show
from attractor.tasks.sudoku.board import BOXES, SIZES, candidates, is_solved
from attractor.tasks.sudoku.formats import SYMBOLS
from attractor.tasks.sudoku.solver import MOST_GUESSES, search

N_GIVENS = {4: 5, 6: 12, 9: 28, 16: 150}
BLANK = "." * 81


@functools.cache
def puzzle(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a board and its solution."""
    boards, solutions = generate(1, N_GIVENS[size], seed=0, size=size)
    return boards[0], solutions[0]


def text_of(board: np.ndarray, blank: str = ".") -> str:
    return "".join(blank if cell == 0 else SYMBOLS[cell] for cell in board.ravel())


def with_cells(**cells: str) -> str:
    """Return an empty board of 81 cells with some digits by row and column, such as r1c4="5"."""
    found = list(BLANK)
    for place, symbol in cells.items():
        row, column = map(int, re.findall(r"\d+", place))
        found[9 * (row - 1) + column - 1] = symbol
    return "".join(found)


@pytest.mark.parametrize("size", SIZES)
def test_every_way_of_writing_a_board_is_read(size: int) -> None:
    board, _ = puzzle(size)
    for blank in "0._*":
        line = text_of(board, blank)
        lines = [line[i : i + size] for i in range(0, len(line), size)]
        for text in (
            line,
            f"  {line}\n",
            line.lower(),
            "\r\n".join(lines),
            "\n\n".join(" ".join(row) for row in lines),
        ):
            assert np.array_equal(parse_puzzle(text), board)
        assert np.array_equal(parse_puzzle("+-----+\n" + "\n".join(f"| {row} |" for row in lines)), board)


@pytest.mark.parametrize("size", SIZES)
def test_a_displayed_board_can_be_read_again(size: int) -> None:
    board, solution = puzzle(size)
    assert np.array_equal(parse_puzzle(show(board)), board)
    assert np.array_equal(parse_puzzle(show(solution, board)), solution)


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "puzzle must have 16, 36, 81 or 256 cells, got 0, 16 too few for 4 x 4; write a blank as one of 0 . _ *"),
        (BLANK[:-1], "got 80, 44 too many for 6 x 6 and 1 too few for 9 x 9; write"),
        ("." * 300, "got 300, 44 too many for 16 x 16; write"),
        ("\n".join(["5--------"] * 9), r"got 9, 7 too few for 4 x 4; .* since | - + ' only separate"),
        ("\n".join([BLANK[:9]] * 4 + ["---", BLANK[:8]] + [BLANK[:9]] * 4), "line 6 has 8 where others have 9"),
        (with_cells(r3c5="x"), r"digits 1 to 9 and blanks \(0 . _ \*\) at size 9, got 'x' in row 3, column 5"),
        (with_cells(r9c1="A"), "got 'A' in row 9, column 1"),
        ("." * 6 + "5" + "." * 9, "digits 1 to 4 and blanks .* got '5' in row 2, column 3"),
        ("." * 16 + "g" + "." * 238 + "h", "digits 1 to 9 and A to G and .* got 'h' in row 16, column 16"),
        (with_cells(r2c4="5", r2c9="5"), "row 2 has 5 twice, at columns 4 and 9; correct one"),
        (with_cells(r2c4="5", r8c4="5"), "column 4 has 5 twice, at rows 2 and 8; correct one"),
        (with_cells(r4c7="1", r6c8="1"), "a box has 1 twice, at row 4, column 7 and at row 6, column 8"),
        ("5....." + "..5..." + "." * 24, "a box has 5 twice, at row 1, column 1 and at row 2, column 3"),
    ],
)
def test_an_error_names_its_place(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_puzzle(text)


@pytest.mark.parametrize("size", SIZES)
def test_a_puzzle_with_one_solution_has_that_answer(size: int) -> None:
    board, solution = puzzle(size)
    found = answer(board)
    assert np.array_equal(found.solution, solution)
    assert found.note is None


def test_one_of_several_solutions_is_shown_with_a_note() -> None:
    board = parse_puzzle("21...." + "." * 30)
    solution, note, is_undecided = answer(board)
    assert not is_undecided
    assert is_solved(solution[None]).all()
    assert solution[0, :2].tolist() == [2, 1]
    assert note is not None
    assert note.startswith("these 2 givens leave several solutions")


def test_a_puzzle_without_a_solution_is_refused() -> None:
    nowhere = parse_puzzle("12345678." + "." * 27 + "........9" + "." * 36)
    with pytest.raises(InputError, match="puzzle must have a solution, but no way to fill its 72 blanks"):
        answer(nowhere)
    nowhere[4, 0] = 1
    with pytest.raises(InputError, match="column 1 has 1 twice, at rows 1 and 5"):
        answer(nowhere)


def test_a_puzzle_that_is_not_decided_in_time_has_its_solution_or_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: a solution that was found is shown with a note; without one, a line says that the search ended."""
    board = parse_puzzle("21...." + "." * 30)
    monkeypatch.setitem(MOST_GUESSES, 6, 20)
    with pytest.raises(
        InputError, match=r"^puzzle must be decided within 20 guesses, but the search of these 2 givens"
    ):
        answer(board)
    first_solution = next(n for n in range(20, 200) if search(candidates(board[None]), 2, n).n_solutions[0] == 1)
    monkeypatch.setitem(MOST_GUESSES, 6, first_solution)
    found = answer(board)
    assert is_solved(found.solution[None]).all()
    assert found.is_undecided
    assert (
        found.note
        == f"the search ended after {first_solution} guesses, so there may be other solutions; more givens exclude them"
    )


def test_givens_of_another_size_are_refused() -> None:
    with pytest.raises(InputError, match=r"givens must have the shape of the board, \(4, 4\), got \(6, 6\)"):
        show(puzzle(4)[1], puzzle(6)[0])
