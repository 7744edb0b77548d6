"""The command that solves a Sudoku by a trained model or by search: solve."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from tyro.conf import Positional

from attractor.cli.console import answer
from attractor.cli.options import OfTrainedModel
from attractor.cli.parsing import refuse_given
from attractor.cli.study_code import define_mechanisms
from attractor.errors import InputError, require
from attractor.train.hardware import resolve_device

if TYPE_CHECKING:
    import numpy as np

    from attractor.train.finished import Finished


@dataclass(frozen=True)
class SolveArguments(OfTrainedModel):
    puzzle: Positional[str]
    """cells in a row, 0 or . for a blank, or a file of one board"""
    run: Path | None = None
    """run folder of a model for boards of this size"""
    n_iterations: int | None = None
    """iterations of the model; by default as in training"""
    votes: int = 1
    """answers, of which the one of lowest energy counts"""
    seed: int = 0
    """seed of the starts of all votes but the first"""
    exact: bool = False
    """solve by search, without a model"""


def solve(args: SolveArguments, console: Console) -> None:
    """Solve a Sudoku with an iterated model and watch it, or exactly by search.

    attractor solve board.txt --run runs/sudoku --votes 8
    """
    from attractor.tasks import sudoku

    require(args.n_iterations is None or args.n_iterations >= 1, "n_iterations", "at least 1", args.n_iterations)
    require(args.votes >= 1, "votes", "at least 1", args.votes, "1 is no vote")
    if args.exact:
        refuse_given(args, ("run", "n_iterations", "votes", "seed", "code", "checkpoint"), "with exact, which searches")
    elif args.run is None:
        raise InputError("run must be given, or exact instead of it; 'attractor train --task sudoku' makes a run")
    board, solution = _puzzle(args.puzzle)
    if args.run is not None:
        define_mechanisms(args.code, console)
        _by_model(args, _run_for(board, args.run, args), board, solution, console)
        return
    console.print(sudoku.show(solution, board), markup=False, highlight=False)
    answer(console, solution=solution.tolist())


def _by_model(
    args: SolveArguments, run: "Finished", board: "np.ndarray", solution: "np.ndarray", console: Console
) -> None:
    from attractor.evaluate.boards.board_display import show_trajectory, verdict
    from attractor.evaluate.boards.solve import solve as answer_to

    with run.autocast():
        solved = answer_to(run.model, board[None], args.n_iterations, args.votes, args.seed)
    show_trajectory(console, solved.trajectory, board)
    if args.votes > 1:
        console.print(f"vote {int(solved.winners[0]) + 1} of {args.votes} has the lowest energy", highlight=False)
    console.print(verdict(solved.grids[0], board, solution), highlight=False, soft_wrap=True)
    answer(console, answer=solved.grids[0].tolist(), solution=solution.tolist())


def _run_for(board: "np.ndarray", path: Path, args: SolveArguments) -> "Finished":
    """Return the run, and refuse one that was not trained on boards of this size."""
    from attractor.tasks.sudoku import Sudoku
    from attractor.train.finished import finished_run

    run = finished_run(path, resolve_device(args.device), args.checkpoint)
    task = run.config.task
    if not isinstance(task, Sudoku):
        raise InputError(f"run must be of task 'sudoku' to solve a puzzle, got '{task.kind}'; give another, or --exact")
    if len(board) != task.board_size:
        raise InputError(
            f"puzzle must be {task.board_size} x {task.board_size} for this run, got {len(board)} x {len(board)}; "
            f"give a run trained with --board-size {len(board)}, or --exact"
        )
    return run


def _puzzle(given: str) -> tuple["np.ndarray", "np.ndarray"]:
    """Return the board of these cells or of this file, and its solution."""
    from attractor.tasks import sudoku
    from attractor.tasks.sudoku.formats import parse

    if not os.path.isfile(given):  # noqa: PTH113 (Path.is_file raises for 256 cells)
        board = parse(given)
        return board, sudoku.solve(board)
    puzzles = sudoku.read(given)
    require(len(puzzles) == 1, "puzzle", f"one board, of which '{given}' has more", len(puzzles), "give one line of it")
    return puzzles.boards[0], puzzles.solutions[0]
