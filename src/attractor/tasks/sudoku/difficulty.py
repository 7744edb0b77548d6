"""How hard a board is, by what solving it takes.

Level 0, naked singles: it is enough to write a digit where no other is left in the cell. Level 1, hidden singles: also
where a unit has one place for a digit. Level 2, guesses: both do not suffice. The number of guesses is that of the
branchings in the whole search tree of `solve`, by which the solution is found and shown to be the only one.
"""

from typing import NamedTuple

import numpy as np

from attractor.errors import InputError
from attractor.tasks.sudoku.board import as_boards, candidates
from attractor.tasks.sudoku.propagate import propagate
from attractor.tasks.sudoku.solver import STATES_PER_ROUND, search

LEVELS = ("naked singles", "hidden singles", "guesses")


class Grades(NamedTuple):
    """For each board its index in LEVELS, and its guesses, which are 0 below the last level."""

    levels: np.ndarray
    guesses: np.ndarray


def grade(boards: np.ndarray) -> Grades:
    """The difficulty of boards (n x size x size) that have exactly one solution each."""
    masks = candidates(as_boards(boards))
    found = search(masks, limit=2)
    wrong = np.flatnonzero(found.n_solutions != 1)
    if wrong.size:
        raise InputError(f"boards must have exactly one solution, but board {wrong[0]} has not; leave it out")
    naked = np.concatenate(
        [_naked_singles_suffice(masks[:, i : i + STATES_PER_ROUND]) for i in range(0, len(boards), STATES_PER_ROUND)]
        or [np.empty(0, dtype=bool)]
    )
    return Grades(np.where(found.guesses > 0, 2, np.where(naked, 0, 1)), found.guesses)


def _naked_singles_suffice(masks: np.ndarray) -> np.ndarray:
    while True:
        masks, _, changed = propagate(masks, hidden=False)
        if not changed.any():
            return np.asarray((np.bitwise_count(masks) == 1).all(axis=0))
