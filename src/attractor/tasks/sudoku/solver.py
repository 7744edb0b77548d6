"""Solve many boards at once and exactly, by propagation and by a search whose frontier all boards share.

The frontier is a stack of states. A round takes the uppermost states, propagates them, drops dead states, counts solved
ones, and puts the rest back. A state that propagation leaves unchanged branches on its first cell with the fewest
candidates: into that cell's lowest digit, and into all its other digits. The search goes depth first in bounded rounds,
so that hard boards take no more memory. The branches of a board with one solution do not depend on the other boards.

Rounds of few boards are narrow at first: a narrow search goes down to solutions of a board that has many, while a wide
one would keep all its states half filled. A search may have a limit of branchings, so that it ends within about a
second for boards on which propagation says little. Its answer is exact, or it says that it is undecided.
"""

from collections.abc import Callable
from math import isqrt
from typing import NamedTuple

import numpy as np

from attractor.errors import InputError, require
from attractor.tasks.sudoku.board import as_boards, candidates, digits
from attractor.tasks.sudoku.propagate import propagate

STATES_PER_ROUND = 1024  # large enough to hide the cost of a numpy call, small enough for the processor's cache
PASSES_PER_ROUND = 2
NARROW_STATES, NARROW_ROUNDS = 8, 512  # states of each board in a narrow round, and the number of such rounds
MOST_GUESSES = {4: 100_000, 6: 100_000, 9: 100_000, 16: 20_000}  # branchings of a board, by size


class Search(NamedTuple):
    """The result by board: its solutions counted up to the limit, one solution (masks), and its branchings.

    An undecided board may have more solutions than were counted."""

    n_solutions: np.ndarray
    solutions: np.ndarray
    guesses: np.ndarray
    undecided: np.ndarray


def solve(board: np.ndarray) -> np.ndarray:
    """Return the solution of a board (size x size) or of many (n x size x size). Each must have exactly one."""
    board = np.asarray(board)
    if board.ndim == 2:
        return np.asarray(solve(board[None])[0])
    boards = as_boards(board)
    name = ("board {} " if len(boards) > 1 else "").format
    return digits(unique_search(candidates(boards), "board must have exactly one solution", name).solutions)


def unique_search(
    masks: np.ndarray, rule: str, name: Callable[[int], str], next_step: str = "check its givens"
) -> Search:
    """Search boards given as masks, and refuse the first board that does not have exactly one solution, by its name."""
    n_guesses = most_guesses(masks)
    result = search(masks, limit=2, n_guesses=n_guesses)
    wrong = np.flatnonzero((result.n_solutions != 1) | result.undecided)
    if wrong.size:
        number = "none" if result.n_solutions[wrong[0]] == 0 else "several"
        answer = f"is undecided after {n_guesses:,} guesses" if result.undecided[wrong[0]] else f"has {number}"
        raise InputError(f"{rule}, but {name(wrong[0])}{answer}; {next_step}")
    return result


def most_guesses(masks: np.ndarray) -> int:
    """Return the number of guesses after which the search of a board of this size ends."""
    return MOST_GUESSES[isqrt(len(masks))]


def count_solutions(boards: np.ndarray, limit: int = 2) -> np.ndarray:
    """Count the solutions of each board (n x size x size). A count of `limit` means that many or more.

    A board is refused if its search takes too many guesses."""
    require(limit >= 1, "limit", "at least 1", limit, "2 tells unique solutions from several")
    masks = candidates(as_boards(boards))
    n_guesses = most_guesses(masks) * max(1, limit // 2)
    result = search(masks, limit, n_guesses)
    if result.undecided.any():
        raise InputError(
            f"boards must be decided within {n_guesses:,} guesses, but board {result.undecided.argmax()} is not; check "
            "or add givens"
        )
    return result.n_solutions


def search(masks: np.ndarray, limit: int, n_guesses: int | None = None) -> Search:
    """Search boards given as masks (cells, boards) until each has `limit` solutions or is searched completely.

    A board that takes more than `n_guesses` is undecided, within one round more or less."""
    n_cells, n_boards = masks.shape
    n_solutions = np.zeros(n_boards, dtype=np.int64)
    guesses = np.zeros(n_boards, dtype=np.int64)
    undecided = np.zeros(n_boards, dtype=bool)
    solutions = np.zeros_like(masks)
    n_rounds = 0
    stack = np.empty((n_cells, 0), dtype=masks.dtype)
    owners = np.empty(0, dtype=np.int64)  # which board each state of the stack belongs to
    n_started = 0
    # `take` and `compress` return contiguous boards, while indexing by [:, i] would return strided ones.
    while True:
        room = max(0, STATES_PER_ROUND - len(owners))
        fresh = np.arange(n_started, min(n_boards, n_started + room))
        n_started += len(fresh)
        stack, owners = np.concatenate([masks.take(fresh, axis=1), stack], axis=1), np.concatenate([fresh, owners])
        if not owners.size:
            return Search(np.minimum(n_solutions, limit), solutions, guesses, undecided & (n_solutions < limit))

        width = STATES_PER_ROUND if n_rounds >= NARROW_ROUNDS else min(STATES_PER_ROUND, NARROW_STATES * n_boards)
        n_rounds += 1
        below = max(0, len(owners) - width)
        states, of = stack[:, below:], owners[below:]
        for _ in range(PASSES_PER_ROUND - 1):  # the last pass finds dead boards again
            states, _, _ = propagate(states)
        states, dead, changed = propagate(states)
        n_candidates = np.bitwise_count(states)
        at_rest = ~dead & ~changed
        solved = at_rest & (n_candidates == 1).all(axis=0)
        np.add.at(n_solutions, of[solved], 1)
        solutions[:, of[solved]] = states.compress(solved, axis=1)

        wanted = ~dead & ~solved & (n_solutions[of] < limit)
        if n_guesses is not None:
            beyond = wanted & (guesses[of] >= n_guesses)
            undecided[of[beyond]] = True
            wanted &= ~beyond
        stuck, going = wanted & at_rest, wanted & changed
        np.add.at(guesses, of[stuck], 1)
        first, others = _branch(states.compress(stuck, axis=1), n_candidates.compress(stuck, axis=1))
        stack = np.concatenate([stack[:, :below], others, states.compress(going, axis=1), first], axis=1)
        owners = np.concatenate([owners[:below], of[stuck], of[going], of[stuck]])


def _branch(states: np.ndarray, n_candidates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Branch each state on the first cell with the fewest candidates: its lowest digit is set, or is excluded."""
    undecided = np.where(n_candidates > 1, n_candidates, 255)
    cells = undecided.argmin(axis=0), np.arange(states.shape[1])
    lowest = states[cells] & -states[cells]
    first, others = states.copy(), states.copy()
    first[cells] = lowest
    others[cells] ^= lowest
    return first, others
