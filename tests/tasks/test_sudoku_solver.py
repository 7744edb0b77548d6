"""The solver agrees with plain backtracking for every batch."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attractor.errors import InputError
from attractor.tasks.sudoku import count_solutions, generate, solve
from attractor.tasks.sudoku.board import candidates, digits, is_solved
from attractor.tasks.sudoku.propagate import propagate
from attractor.tasks.sudoku.solver import MOST_GUESSES, search

SMALL = st.lists(st.sampled_from([0, 0, 0, 1, 2, 3, 4]), min_size=16, max_size=16)
ENDLESS = ".....5.8....6.1.43..........1.5........1.6...3.......553.....61........4........."  # without a solution
HARD = "100007090030020008009600500005300900010080002600004000300000010040000007007000300"


def board_of(text: str) -> np.ndarray:
    return np.array(list(text.replace(".", "0")), dtype=int).reshape(9, 9)


def backtrack(board: np.ndarray) -> int:
    """Count the solutions of a board of size 4 or 6, whose boxes have two rows, by trying every digit."""
    blanks = np.argwhere(board == 0)
    if not len(blanks):
        return int(is_solved(board[None])[0])
    row, column = blanks[0]
    size, width = len(board), len(board) // 2
    box = board[row // 2 * 2 :, column // width * width :][:2, :width]
    free = set(range(1, size + 1)) - set(board[row]) - set(board[:, column]) - set(box.ravel())
    count = 0
    for digit in free:
        board[row, column] = digit
        count += backtrack(board)
    board[row, column] = 0
    return count


@settings(deadline=None, max_examples=60)
@given(st.lists(SMALL, min_size=1, max_size=6))
def test_solutions_are_counted_as_backtracking_counts_them(cells: list[list[int]]) -> None:
    boards = np.array(cells).reshape(-1, 4, 4)
    assert count_solutions(boards, limit=300).tolist() == [backtrack(board.copy()) for board in boards]


def test_boxes_of_two_rows_and_three_columns_are_counted_as_backtracking_counts_them() -> None:
    boards, _ = generate(20, 12, seed=0, size=6)
    random = np.random.default_rng(0)
    boards = boards * (random.random(boards.shape) < 0.9)  # such boards have several solutions
    row, column, digit = random.integers(0, 6, (3, 10))
    boards[np.arange(10), row, column] = digit + 1  # such boards often have no solution
    counts = [backtrack(board.copy()) for board in boards]
    assert count_solutions(boards, limit=10_000).tolist() == counts
    assert min(counts) == 0
    assert max(counts) > 1


@pytest.mark.parametrize("limit", [1, 2, 17, 288, 289])
def test_a_count_stops_at_its_limit(limit: int) -> None:
    assert count_solutions(np.zeros((1, 4, 4), dtype=int), limit).tolist() == [min(limit, 288)]


@pytest.mark.parametrize("size", MOST_GUESSES)
def test_a_board_with_many_solutions_needs_few_guesses(size: int) -> None:
    """Criterion: an empty board needs fewer guesses for two solutions than 16 guesses for each of its cells."""
    result = search(candidates(np.zeros((1, size, size), dtype=int)), limit=2)
    assert result.n_solutions == 2
    assert result.guesses[0] < 16 * size**2
    assert is_solved(digits(result.solutions)).all()


def test_a_search_ends_after_its_guesses_and_says_that_it_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: a board without a solution whose search takes millions of guesses stops; others are exact."""
    boards = np.stack([board_of(ENDLESS), board_of(HARD)])
    result = search(candidates(boards), limit=2, n_guesses=3000)
    assert result.undecided.tolist() == [True, False]
    assert result.n_solutions.tolist() == [0, 1]
    assert np.array_equal(digits(result.solutions)[1], solve(board_of(HARD)))
    assert 3000 <= result.guesses[0] < 5000
    assert result.guesses[1] == search(candidates(boards[1:]), limit=2).guesses[0], "a limit changes no other count"
    monkeypatch.setitem(MOST_GUESSES, 9, 3000)
    with pytest.raises(InputError, match=r"^board must have exactly one solution, but is undecided after 3,000"):
        solve(boards[0])
    with pytest.raises(InputError, match=r"^boards must be decided within 3,000 guesses, but board 0 is not; check or"):
        count_solutions(boards)


@pytest.mark.parametrize(("size", "n_givens"), [(4, 5), (6, 12), (9, 26), (16, 130)])
def test_the_solution_of_a_batch_is_that_of_each_board(size: int, n_givens: int) -> None:
    boards, solutions = generate(3, n_givens, seed=1, size=size)
    assert np.array_equal(solve(boards), solutions)
    assert np.array_equal(solve(boards[2]), solutions[2])
    assert solve(boards[:0]).shape == (0, size, size)
    assert count_solutions(boards[:0]).shape == (0,)
    boards[1] = 0
    with pytest.raises(InputError, match="board 1 has several"):
        solve(boards)


def test_neither_the_batch_nor_the_width_of_a_round_changes_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    boards = np.concatenate([generate(8, 25, seed=2)[0], board_of(HARD)[None]])
    together = search(candidates(boards), limit=2)
    alone = [search(candidates(board[None]), limit=2) for board in boards]
    assert together.guesses.tolist() == [int(one.guesses[0]) for one in alone]
    monkeypatch.setattr("attractor.tasks.sudoku.solver.STATES_PER_ROUND", 3)
    for wide, thin in zip(together, search(candidates(boards), limit=2), strict=True):
        assert np.array_equal(wide, thin)


def test_propagation_keeps_every_solution() -> None:
    boards, solutions = generate(20, (24, 30), seed=3)
    masks, truth = candidates(boards), candidates(solutions)
    changed = np.array([True])
    while changed.any():
        masks, dead, changed = propagate(masks)
        assert not dead.any()
        assert ((masks & truth) == truth).all()


@pytest.mark.parametrize("place", [(0, 5), (5, 0), (1, 1)], ids=["row", "column", "box"])
def test_a_digit_twice_in_a_unit_leaves_no_solution(place: tuple[int, int]) -> None:
    board = np.zeros((9, 9), dtype=int)
    board[0, 0] = board[place] = 7
    assert count_solutions(board[None]).tolist() == [0]
    with pytest.raises(InputError, match="exactly one solution, but has none"):
        solve(board)


def test_masks_and_digits_are_inverse() -> None:
    for a, b in product(range(1, 5), repeat=2):
        grid = np.full((1, 4, 4), a)
        grid[0, 1, 2] = b
        assert np.array_equal(digits(candidates(grid)), grid)
