"""Show on the console how a board fills in: live in a terminal, as a few snapshots elsewhere."""

import time

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from attractor.evaluate.boards.solve import Trajectory
from attractor.tasks.sudoku import conflicts, n_broken_units, show
from attractor.tasks.sudoku.board import FILLED, SYMBOLS, is_solved

SECONDS = 4.0  # at most, for all frames
SECONDS_OF_A_FRAME = 0.15  # at most
N_SNAPSHOTS = 5


def show_trajectory(console: Console, trajectory: Trajectory, board: np.ndarray) -> None:
    n_iterations = len(trajectory.grids) - 1
    if not console.is_terminal:
        later = np.geomspace(1, n_iterations, N_SNAPSHOTS - 1).round().astype(int)  # most changes happen at the start
        for t in sorted({0, *later.tolist()}):
            console.print(Text(f"{numbers_at(trajectory, t)}\n{show(_grid(trajectory, t), board)}\n"))
        return
    with Live(console=console, auto_refresh=False) as live:
        for t in range(n_iterations + 1):
            live.update(Group(styled(_grid(trajectory, t), board), Text(numbers_at(trajectory, t))), refresh=True)
            time.sleep(min(SECONDS_OF_A_FRAME, SECONDS / (n_iterations + 1)))


def numbers_at(trajectory: Trajectory, t: int) -> str:
    changing = f", {_counted(trajectory.n_changing[t - 1, 0], 'cell')} changing" if t else ""
    violated = f"{_counted(trajectory.n_broken[t, 0], 'unit')} violated"
    return f"iteration {t}: energy {trajectory.energies[t, 0]:,.1f}{changing}, {violated}"


def verdict(grid: np.ndarray, board: np.ndarray, solution: np.ndarray) -> str:
    """Say whether the answer is the solution of the board, and otherwise how far it is from it."""
    grid = grid.astype(np.int64)
    if is_solved(grid[None])[0]:
        return "right: the only solution"
    n_blanks, n_wrong = np.count_nonzero(board == 0), np.count_nonzero(grid != solution)
    differing = f"{n_wrong} of {_counted(n_blanks, 'blank')} differ from the solution"
    left = f", {_counted((grid == 0).sum(), 'blank')} left" if (grid == 0).any() else ""
    return f"wrong: {differing}, {_counted(n_broken_units(grid[None])[0], 'unit')} violated{left}"


def styled(grid: np.ndarray, board: np.ndarray) -> Text:
    """Return the board as `show` draws it, with bold givens and coloured answers; red ones break a rule."""
    given, wrong = board.ravel() > 0, conflicts(grid[None]).ravel() > 0
    text, cell = Text(), -1
    for sign in show(grid, board):
        cell += sign in SYMBOLS
        is_cell = sign in SYMBOLS
        style = "bold" if given[cell] else "red" if wrong[cell] else "cyan"
        text.append(" " if sign == FILLED else sign, style if is_cell else "dim")
    return text


def _grid(trajectory: Trajectory, t: int) -> np.ndarray:
    return trajectory.grids[t, 0].astype(np.int64)


def _counted(n: int | np.integer, thing: str) -> str:
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"
