"""Draw how a model fills in a board: the board at several iterations, and below it energy, cells and growth.

The darker a cell, the more confident is the model. Givens are bold, and cells that break a rule are orange.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.errors import InputError
from attractor.evaluate.boards.solve import Trajectory
from attractor.report.canvas import GREY, INK, PALETTE, as_file, blank, framed
from attractor.tasks.sudoku import conflicts
from attractor.tasks.sudoku.board import BOXES, SYMBOLS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = ("svg", "png")
N_BOARDS, ACROSS = 8, 4
DARKEST = 0.55  # opacity, so that a digit stays legible
SURE, WRONG = PALETTE[0], PALETTE[1]


def chosen_times(n_iterations: int, n: int = N_BOARDS) -> list[int]:
    """Return at most n times from 0 to the last, denser at the start, where most changes happen."""
    later = np.geomspace(1, n_iterations, n - 1).round().astype(int)
    return sorted({0, *later.tolist()})


def picture(trajectory: Trajectory, board: np.ndarray, exponents: np.ndarray, kind: str) -> bytes:
    """Return the picture of one board's trajectory as the bytes of a file."""
    if kind not in KINDS:
        raise InputError(f"a picture must be one of {', '.join(KINDS)}, got '{kind}'; give the file such a suffix")
    return as_file(small_multiples(trajectory, board, exponents), kind, "sudoku")


def small_multiples(trajectory: Trajectory, board: np.ndarray, exponents: np.ndarray) -> "Figure":
    times = chosen_times(len(trajectory.grids) - 1)
    n_down = -(-len(times) // ACROSS)
    figure = blank(8.4, 2.25 * n_down + 2.4)
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=[2.25 * n_down, 2.4]).flat
    panels = above.subplots(n_down, ACROSS, squeeze=False).flat
    for axes, t in zip(panels, times, strict=False):
        draw_board(axes, trajectory, board, t)
        axes.set_title(f"iteration {t}", fontsize=9, color=INK)
    for axes in list(panels)[len(times) :]:
        axes.set_visible(False)
    energy, cells, growth = below.subplots(1, 3)
    _energy(energy, trajectory)
    _cells(cells, trajectory)
    _growth(growth, exponents)
    return figure


def draw_board(axes: "Axes", trajectory: Trajectory, board: np.ndarray, t: int) -> None:
    from matplotlib.colors import to_rgb

    grid, given, size = trajectory.grids[t, 0], board > 0, len(board)
    wrong = conflicts(grid[None].astype(np.int64))[0] > 0
    colors = np.where(wrong[..., None], to_rgb(WRONG), to_rgb(SURE))
    shades = np.where(given, 0.0, DARKEST * trajectory.confidences[t, 0])
    axes.pcolormesh(np.concatenate([colors, shades[..., None]], axis=2))
    look: dict[str, Any] = {"fontsize": 40 / size, "color": INK, "ha": "center", "va": "center"}
    for row, column in np.argwhere(grid > 0):
        weight = "bold" if given[row, column] else "normal"
        axes.text(column + 0.5, row + 0.53, SYMBOLS[grid[row, column]], fontweight=weight, **look)
    height, width = BOXES[size]
    lines = np.arange(size + 1)
    axes.hlines(lines, 0, size, color=INK, linewidth=np.where(lines % height == 0, 1.2, 0.3))
    axes.vlines(lines, 0, size, color=INK, linewidth=np.where(lines % width == 0, 1.2, 0.3))
    axes.set_xlim(-0.05, size + 0.05)
    axes.set_ylim(size + 0.05, -0.05)
    axes.set_aspect("equal")
    axes.axis("off")


def _energy(axes: "Axes", trajectory: Trajectory) -> None:
    framed(axes).plot(range(len(trajectory.energies)), trajectory.energies[:, 0], color=INK)
    axes.set_xlabel("iteration", fontsize=9)
    axes.set_ylabel("energy", fontsize=9)


def _cells(axes: "Axes", trajectory: Trajectory) -> None:
    n_changing, n_broken = trajectory.n_changing[:, 0], trajectory.n_broken[:, 0]
    framed(axes).plot(range(1, len(n_changing) + 1), n_changing, color=SURE, label="cells that change")
    axes.plot(range(len(n_broken)), n_broken, color=WRONG, label="units that break a rule")
    axes.set_xlabel("iteration", fontsize=9)
    axes.legend(frameon=False, labelcolor=INK, fontsize=8)
    axes.set_ylim(bottom=0)


def _growth(axes: "Axes", exponents: np.ndarray) -> None:
    times = np.arange(1, len(exponents) + 1)
    framed(axes).plot(times, exponents, color=GREY, linewidth=1, label="of this iteration")
    axes.plot(times, exponents.cumsum() / times, color=INK, label="mean up to this iteration")
    axes.axhline(0, color=GREY, linewidth=0.8, linestyle="dotted")
    axes.set_xlabel("iteration", fontsize=9)
    axes.set_ylabel("log growth of a nearby orbit", fontsize=9)
    axes.legend(frameon=False, labelcolor=INK, fontsize=8)
