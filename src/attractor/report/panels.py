"""Panels of a figure: one for each column of a study, with a line for each row.

Lines carry their names at their ends, where a reader looks for them.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from attractor.report.canvas import INK, WIDTH, blank, framed, lay_out
from attractor.report.charts import Curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACROSS = 3  # panels in a row
LABEL_SIZE = 8  # points
GAP = 1.25  # from one label to the next, in sizes of a label
LATE = 0.9  # of a panel's width; a line that ends before this ends early
DOTTED = (0, (1, 3))
DOT: dict[str, Any] = {"markersize": 2.5, "alpha": 0.6}  # the look of a single seed


def panels_of(
    columns: Mapping[str, object], height: float, across: int = ACROSS, width: float = 3.1
) -> tuple["Figure", dict[str, "Axes"]]:
    """Return a figure with one panel for each column, titled by the column where it has a name."""
    n_across = min(len(columns), across)
    n_down = ceil(len(columns) / across)
    figure = blank(WIDTH if n_across == 1 else width * n_across, height * n_down + 0.5)
    grid = figure.subplots(n_down, n_across, squeeze=False)
    panels = dict(zip(columns, grid.flat, strict=False))
    for axes in grid.flat[len(columns) :]:
        axes.set_visible(False)
    for column, axes in panels.items():
        framed(axes).set_title(column, fontsize=10)
    return figure, panels


def lines(axes: "Axes", curves: Curves, looks: Mapping[str, dict[str, Any]], marker: str) -> None:
    """Draw the mean of each row with its band, or with a dot for each of few seeds. A lone point is a marker."""
    for row, curve in curves.items():
        place, mean, low, high, *seeds = zip(*curve, strict=True)
        color, is_alone = looks[row]["color"], len(curve) == 1
        shape, size = ("o", 5.5) if is_alone else (marker, 3)
        axes.plot(place, mean, label=row, marker=shape, markersize=size, **looks[row])
        if seeds:
            axes.plot(place, list(zip(*seeds, strict=True)), color=color, linestyle="none", marker="o", **DOT)
        elif is_alone:
            axes.vlines(place, low, high, color=color, alpha=0.4)
        else:
            axes.fill_between(place, low, high, color=color, alpha=0.15, linewidth=0)


def difference(
    axes: "Axes", place: float, mean: float, low: float | None, high: float | None, seeds: Sequence[float], **look: Any
) -> None:
    """Draw a mean difference with its interval, or without one with a dot for each seed."""
    if low is None or high is None:
        axes.plot(seeds, [place] * len(seeds), color=look["color"], linestyle="none", marker="o", **DOT)
    else:
        axes.plot([low, high], [place, place], color=look["color"], linewidth=1.6)
    axes.plot([mean], [place], marker="o", markersize=6, **look)


def name_lines(
    figure: "Figure", panels: Mapping[str, "Axes"], curves: Mapping[str, Curves], looks: Mapping[str, dict[str, Any]]
) -> None:
    """Write the name of each row beside the end of its line, with a leader in the look of the line.

    The limits of the axes must be final, since labels that would overlap are moved apart. Where a line ends early, its
    leader crosses the panel: it is dotted, so that nobody takes it for the line.
    """
    lay_out(figure)  # the layout, and with it the height of each panel, is known from here on
    for panel, axes in panels.items():
        ends = {row: (curve[-1][0], curve[-1][1]) for row, curve in curves[panel].items()}
        to_axes = axes.transData + axes.transAxes.inverted()
        places = {row: to_axes.transform(end) for row, end in ends.items()}
        gap = GAP * LABEL_SIZE * figure.dpi / 72 / axes.get_window_extent().height
        heights = spread([float(y) for _, y in places.values()], gap, 0.0, 1.0)
        for (row, end), height in zip(ends.items(), heights, strict=True):
            leader = {
                "arrowstyle": "-",
                "color": looks[row]["color"],
                "linestyle": looks[row]["linestyle"] if places[row][0] > LATE else DOTTED,
                "linewidth": 0.6,
                "relpos": (0, 0.5),
                "patchA": None,  # clipping it to the label took a fifth of the time of a figure with many rows
                "shrinkA": 5,
                "shrinkB": 1.5,
            }
            axes.annotate(
                row,
                end,
                (1.05, height),
                textcoords="axes fraction",
                fontsize=LABEL_SIZE,
                color=INK,
                verticalalignment="center",
                arrowprops=leader,
                parse_math=False,
            )


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return the places closest to the wanted ones, in the same order, that are at least `gap` apart.

    Once k gaps are subtracted from the k-th lowest place, the places only have to be in rising order. That is isotonic
    regression, which pooling adjacent violators solves. The result lies within the bounds if there is room for it.
    """
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    pools: list[list[float]] = []
    for k, index in enumerate(order):
        pools.append([wanted[index] - k * gap])
        while len(pools) > 1 and _mean(pools[-2]) >= _mean(pools[-1]):
            pools[-2:] = [pools[-2] + pools[-1]]
    levels = [_mean(pool) for pool in pools for _ in pool]
    last = high - gap * (len(wanted) - 1)
    places = [max(low, min(last, level)) + k * gap for k, level in enumerate(levels)]
    return [place for _, place in sorted(zip(order, places, strict=True))]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def legend(figure: "Figure", panels: Mapping[str, "Axes"]) -> None:
    by_row = {line.get_label(): line for axes in panels.values() for line in axes.get_lines()}
    n_across = max(2, min(len(by_row), int(figure.get_figwidth() / 1.9)))
    figure.legend(
        list(by_row.values()),
        list(map(str, by_row)),
        loc="outside lower center",
        ncols=n_across,
        frameon=False,
        labelcolor=INK,
        fontsize=9,
    )
