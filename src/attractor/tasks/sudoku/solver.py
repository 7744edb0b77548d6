"""An exact solver for many boards at once: propagation, and a search whose frontier all boards share.

The frontier is a stack of states. A round takes the uppermost ones, propagates them, drops dead ones, counts solved
ones, and puts the rest back; one that propagation leaves unchanged branches on its first cell with the fewest
candidates, into that cell's lowest digit and all its others. Depth first and with a bounded round, so memory stays
small however hard the boards are. The branches of a board with one solution are the same whatever stands beside it.
"""

from typing import NamedTuple

import numpy as np

from attractor.errors import InputError
from attractor.tasks.sudoku.board import as_boards, candidates, digits
from attractor.tasks.sudoku.propagate import propagate

STATES_PER_ROUND = 1024  # large enough to hide the cost of a numpy call, small enough for the processor's cache
PASSES_PER_ROUND = 2


class Search(NamedTuple):
    """For each board: its solutions counted up to the limit, the last one found (masks), and how often it branched."""

    n_solutions: np.ndarray
    solutions: np.ndarray
    guesses: np.ndarray


def solve(board: np.ndarray) -> np.ndarray:
    """The solution of a board (size x size), or of many (n x size x size); each must have exactly one."""
    board = np.asarray(board)
    if board.ndim == 2:
        return np.asarray(solve(board[None])[0])
    boards = as_boards(board)
    found = search(candidates(boards), limit=2)
    wrong = np.flatnonzero(found.n_solutions != 1)
    if wrong.size:
        which = f"board {wrong[0]} has " if len(boards) > 1 else "has "
        number = "none" if found.n_solutions[wrong[0]] == 0 else "several"
        raise InputError(f"board must have exactly one solution, but {which}{number}; check its givens")
    return digits(found.solutions)


def count_solutions(boards: np.ndarray, limit: int = 2) -> np.ndarray:
    """The number of solutions of each board (n x size x size), where `limit` stands for that many or more."""
    if limit < 1:
        raise InputError(f"limit must be at least 1, got {limit}; 2 tells unique solutions from several")
    return search(candidates(as_boards(boards)), limit).n_solutions


def search(masks: np.ndarray, limit: int) -> Search:
    """Search boards given as masks (cells, boards) until each has `limit` solutions or none is left to find."""
    n_cells, n_boards = masks.shape
    n_solutions = np.zeros(n_boards, dtype=np.int64)
    guesses = np.zeros(n_boards, dtype=np.int64)
    solutions = np.zeros_like(masks)
    stack = np.empty((n_cells, 0), dtype=masks.dtype)
    owners = np.empty(0, dtype=np.int64)  # which board each state of the stack belongs to
    n_started = 0
    # Boards are taken by take and compress, which keep them contiguous; indexing [:, i] would give them strided.
    while True:
        room = max(0, STATES_PER_ROUND - len(owners))
        fresh = np.arange(n_started, min(n_boards, n_started + room))
        n_started += len(fresh)
        stack, owners = np.concatenate([masks.take(fresh, axis=1), stack], axis=1), np.concatenate([fresh, owners])
        if not owners.size:
            return Search(np.minimum(n_solutions, limit), solutions, guesses)

        below = max(0, len(owners) - STATES_PER_ROUND)
        states, of = stack[:, below:], owners[below:]
        for _ in range(PASSES_PER_ROUND - 1):  # a board that dies here is found dead again in the last pass
            states, _, _ = propagate(states)
        states, dead, changed = propagate(states)
        n_candidates = np.bitwise_count(states)
        at_rest = ~dead & ~changed
        solved = at_rest & (n_candidates == 1).all(axis=0)
        np.add.at(n_solutions, of[solved], 1)
        solutions[:, of[solved]] = states.compress(solved, axis=1)

        wanted = ~dead & ~solved & (n_solutions[of] < limit)
        stuck, going = wanted & at_rest, wanted & changed
        np.add.at(guesses, of[stuck], 1)
        first, others = _branch(states.compress(stuck, axis=1), n_candidates.compress(stuck, axis=1))
        stack = np.concatenate([stack[:, :below], others, states.compress(going, axis=1), first], axis=1)
        owners = np.concatenate([owners[:below], of[stuck], of[going], of[stuck]])


def _branch(states: np.ndarray, n_candidates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Two states for each: the lowest digit in the first cell with the fewest candidates, and that digit excluded."""
    undecided = np.where(n_candidates > 1, n_candidates, 255)
    cells = undecided.argmin(axis=0), np.arange(states.shape[1])
    lowest = states[cells] & -states[cells]
    first, others = states.copy(), states.copy()
    first[cells] = lowest
    others[cells] ^= lowest
    return first, others
