"""Draw accuracy and energy of a recurrent model against the number of iterations at test time."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attractor.evaluate.boards.evaluation import EvaluationRow
from attractor.report.canvas import DASHES, GREY, INK, PALETTE, blank, framed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = ("accuracy", "energy")


def curves_figure(rows: Sequence[EvaluationRow], n_iterations: int) -> "Figure":
    """Return the figure; a vertical line marks the number of iterations in training."""
    measures = rows[0].measures
    names = {
        "accuracy": [name for name in measures if "accuracy" in name] or ["loss"],
        "energy": [name for name in measures if name == "energy"],
    }
    panels = [panel for panel in PANELS if names[panel]]
    figure = blank(3.6 * len(panels) + 0.6, 3.2)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels, strict=True):
        for name, dash in zip(names[panel], DASHES, strict=False):
            _curves(axes, rows, name, dash)
        _frame(axes, n_iterations)
        axes.set_ylabel(names[panel][0].replace("_", " ") if len(names[panel]) == 1 else panel)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, labelcolor=INK, fontsize=9)
    return figure


def _curves(axes: "Axes", rows: Sequence[EvaluationRow], name: str, dash: object) -> None:
    for part, color in zip(dict.fromkeys(row.part for row in rows), PALETTE, strict=False):
        at = [(row.n_iterations, row.measures[name]) for row in rows if row.part == part]
        style: dict[str, Any] = {"color": color, "linestyle": dash, "marker": "o", "markersize": 3}
        axes.plot(*zip(*at, strict=True), label=f"{part}, {name.replace('_', ' ')}", **style)


def _frame(axes: "Axes", n_iterations: int) -> None:
    framed(axes)
    axes.axvline(n_iterations, color=GREY, linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("iterations (vertical line: number in training)")
