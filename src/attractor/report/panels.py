"""Panels of a figure: one for each column of a study, lines and clouds of points by row, and one legend."""

from collections.abc import Iterable, Mapping
from math import ceil
from typing import TYPE_CHECKING, Any

from attractor.report.canvas import INK, WIDTH, blank, framed
from attractor.report.curves import Curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACROSS = 3  # panels in a row


def panels_of(columns: Mapping[str, object], height: float, across: int = ACROSS) -> tuple["Figure", dict[str, "Axes"]]:
    """One panel for each column, side by side, titled by the column where it has a name."""
    n_across = min(len(columns), across)
    n_down = ceil(len(columns) / across)
    figure = blank(WIDTH if n_across == 1 else 3.1 * n_across, height * n_down + 0.5)
    grid = figure.subplots(n_down, n_across, squeeze=False)
    panels = dict(zip(columns, grid.flat, strict=False))
    for axes in grid.flat[len(columns) :]:
        axes.set_visible(False)
    for column, axes in panels.items():
        framed(axes).set_title(column, fontsize=10)
    return figure, panels


def lines(axes: "Axes", curves: Curves, looks: Mapping[str, dict[str, Any]], marker: str) -> None:
    for row, curve in curves.items():
        place, mean, low, high = zip(*curve, strict=True)
        axes.plot(place, mean, label=row, marker=marker, markersize=3, **looks[row])
        axes.fill_between(place, low, high, color=looks[row]["color"], alpha=0.15, linewidth=0)


def points(
    axes: "Axes", clouds: Mapping[str, Iterable[tuple[float, float]]], looks: Mapping[str, dict[str, Any]]
) -> None:
    for row, cloud in clouds.items():
        x, y = zip(*cloud, strict=True)
        color = looks[row]["color"]
        axes.plot(
            x, y, label=row, color=color, linestyle="none", marker="o", markersize=3.2, alpha=0.6, markeredgewidth=0
        )


def legend(figure: "Figure", panels: Mapping[str, "Axes"]) -> None:
    found = {line.get_label(): line for axes in panels.values() for line in axes.get_lines()}
    n_across = max(2, min(len(found), int(figure.get_figwidth() / 1.9)))
    figure.legend(
        list(found.values()),
        list(map(str, found)),
        loc="outside lower center",
        ncols=n_across,
        frameon=False,
        labelcolor=INK,
        fontsize=9,
    )
