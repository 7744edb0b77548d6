"""Measure the accuracy of answers after given numbers of iterations at test time."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attractor.console import Advance, no_advance
from attractor.errors import InputError
from attractor.evaluate.boards.voting import cast_votes
from attractor.models.language_model import LanguageModel
from attractor.tasks.sudoku import boards_right
from attractor.tasks.sudoku.board import as_boards
from attractor.tasks.task import NOT_SCORED


@dataclass(frozen=True)
class Point:
    n_iterations: int
    board_accuracy: float  # share of boards with every blank right
    cell_accuracy: float  # share of blanks that are right
    energy: float  # of the last state, averaged over boards
    seconds: float  # per board with all its votes, from the start of the orbit


def accuracy_over_time(
    model: LanguageModel,
    boards: np.ndarray,
    solutions: np.ndarray,
    iterations: Sequence[int],
    n_votes: int = 1,
    seed: int = 0,
    batch_size: int = 256,
    advance: Advance = no_advance,
) -> list[Point]:
    """Return a point for each number of iterations, in ascending order, all read from one orbit.

    Boards are n x size x size.
    """
    boards, solutions = as_boards(boards), as_boards(solutions)
    if boards.shape != solutions.shape or not len(boards):
        raise InputError(
            f"solutions must be those of at least one board, got {solutions.shape} for {boards.shape}; give them both"
        )
    blank = (boards == 0).reshape(len(boards), -1)
    n_full = len(boards) - int(blank.any(1).sum())
    if n_full:
        raise InputError(f"boards must have a blank each, and {n_full} of {len(boards)} have none; leave them out")
    targets = np.where(blank, solutions.reshape(len(boards), -1), NOT_SCORED)
    votes = cast_votes(model, boards, iterations, n_votes, seed, batch_size, advance)
    return [
        Point(
            n,
            board_accuracy=float(boards_right(targets, predictions).mean()),
            cell_accuracy=float((predictions == targets)[blank].mean()),
            energy=float(last_energies.mean()),
            seconds=float(seconds) / len(boards),
        )
        for n, predictions, last_energies, seconds in zip(
            sorted(set(iterations)), votes.predictions, votes.last_energies, votes.seconds, strict=True
        )
    ]
