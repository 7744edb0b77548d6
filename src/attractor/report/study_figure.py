"""A judged study in pictures: its charts, differences and attention maps, with one panel for each column.

Each figure is drawn once and goes into a page as well as into files.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.report.attention_maps import Heatmaps, heatmaps, rival_of
from attractor.report.canvas import GREY, INK, as_file, as_svg, blank, lay_out, styles
from attractor.report.charts import FEWEST, Chart, charts
from attractor.report.judged_study import JudgedStudy
from attractor.report.panels import ACROSS, difference, lines, name_lines, panels_of
from attractor.runs.quantity import Quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    name: str
    title: str
    caption: str
    draw: Callable[[], "Figure"]
    folded: bool = False  # True where the page shows it on request alone

    @cached_property
    def figure(self) -> "Figure":
        """The figure, laid out once, so that a file does not depend on the files written before it."""
        from matplotlib import rc_context

        with rc_context({"text.parse_math": False}):  # a dollar sign in a label is a dollar sign
            figure = self.draw()
            lay_out(figure)
        figure.set_layout_engine("none")
        return figure

    def svg(self) -> str:
        """Return the figure as an SVG element for a page."""
        return as_svg(self.figure, self.name, self.title)

    def file(self, kind: str) -> bytes:
        return as_file(self.figure, kind, self.name)


def pictures(judged: JudgedStudy) -> list[Picture]:
    """Return the pictures for which the record has the numbers: first the losses, at last those that are folded."""
    drawn = [
        Picture(chart.name, chart.title, chart.caption, partial(_draw_chart, judged, chart), chart.folded)
        for chart in charts(judged)
        if chart.panels
    ]
    drawn = [*drawn, *_maps(judged)]
    after_losses = 1 if drawn and drawn[0].name == "curves" else 0
    return sorted(
        [*drawn[:after_losses], *_differences(judged), *drawn[after_losses:]], key=lambda picture: picture.folded
    )


def _differences(judged: JudgedStudy) -> Iterator[Picture]:
    first = judged.headlines[0]
    of_first = [difference for difference in judged.differences.values() if difference.measure == first]
    if any(difference.shown is not None for difference in of_first):
        yield Picture(
            "differences",
            "Paired differences",
            f"Each point is the mean difference between a row and '{judged.design.baseline}', paired by seed, with the "
            "95% interval of that difference alone, or with the seeds as dots where they are fewer than four. A full "
            "point marks a verdict of better, worse, lower or higher (after Holm's correction). An open point marks no "
            "difference or an open verdict.",
            partial(_draw_differences, judged, first),
        )


def _maps(judged: JudgedStudy) -> Iterator[Picture]:
    maps = heatmaps(judged)
    if maps:
        rival = rival_of(judged, maps)
        shown = [maps[0], *([rival] if rival else [])]
        names = " and ".join(f"{of_row.row!r} (seed {of_row.seed})" for of_row in shown)
        yield Picture(
            "attention",
            "Attention maps",
            f"The figure shows attention maps of {names}"
            f"{f' on {maps[0].column}' if maps[0].column else ''}. Each row of a map holds the weights of one query. "
            "Layers go down and heads go across. The scale of each map runs from zero to its largest weight.",
            partial(_draw_maps, shown),
        )


def _looks(judged: JudgedStudy) -> dict[str, dict[str, Any]]:
    return styles(judged.design.rows, judged.design.baseline, judged.design.control)


def _draw_chart(judged: JudgedStudy, chart: Chart) -> "Figure":
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    names = {row for curves in chart.panels.values() for row in curves}
    size = {"height": max(2.8, 0.15 * len(names) + 0.7), "width": 3.1 + 0.065 * max(map(len, names))}
    figure, panels = panels_of(chart.panels, across=2, **size)
    looks = _looks(judged)
    for column, axes in panels.items():
        lines(axes, chart.panels[column], looks, "o" if chart.of_layers else "")
        if chart.in_factors:
            low, high = chart.frames[column]
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1e3 * low else (1,)))
            axes.yaxis.set_major_formatter(_in_short)
            axes.yaxis.set_minor_locator(NullLocator())
        axes.set_ylim(*chart.frames[column])
        if chart.of_layers:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        else:
            axes.xaxis.set_major_formatter(_in_short)
            axes.locator_params(axis="x", nbins=5)
        axes.set_xlabel(chart.x_label)
    for axes in list(panels.values())[::2]:
        axes.set_ylabel(chart.y_label)
    name_lines(figure, panels, chart.panels, looks)
    return figure


def _in_short(value: float, _place: float) -> str:
    """Return a tick's number with all digits that the tick has, so that no two ticks read alike."""
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.9g}{sign}"
    return f"{value:g}"


def _draw_differences(judged: JudgedStudy, measure: Quantity) -> "Figure":
    rows = [row for row in judged.design.rows if row not in (judged.design.baseline, judged.design.control)]
    rows = rows or [row for row in judged.design.rows if row != judged.design.baseline]
    figure, panels = panels_of(dict.fromkeys(map(judged.place, judged.design.columns)), 0.8 + 0.3 * len(rows))
    looks = _looks(judged)
    for number, (column, axes) in enumerate(zip(judged.design.columns, panels.values(), strict=True)):
        for place, row in enumerate(rows):
            entry = judged.differences[row, column, measure]
            if (interval := entry.shown) is not None:
                seeds = [measure.in_unit(number) for number in judged.paired(row, column, measure)]
                low, high = (interval.low, interval.high) if len(seeds) >= FEWEST else (None, None)
                look = {"color": looks[row]["color"], "fillstyle": "full" if entry.is_shown else "none"}
                difference(axes, place, interval.mean, low, high, seeds, **look)
        axes.axvline(measure.in_unit(0), color=INK, linewidth=0.8)
        axes.set_yticks(range(len(rows)), rows if number % ACROSS == 0 else [""] * len(rows))
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.locator_params(axis="x", nbins=4)
    unit = f" ({measure.unit})" if measure.unit else ""
    lower = measure.is_loss or measure.better == "lower"
    side = "; left is better" if lower else "; right is better" if measure.better else ""
    quantity = "validation loss" if measure.is_loss else measure.title
    relation = "relative to" if measure.as_ratio else "minus"
    figure.supxlabel(f"{quantity} {relation} that of '{judged.design.baseline}'{unit}{side}", fontsize=10, color=INK)
    return figure


def _draw_maps(shown: list[Heatmaps]) -> "Figure":
    n_layers, n_heads = max(len(maps.layers) for maps in shown), max(len(maps.heads) for maps in shown)
    size = max(0.45, min(1.1, 4.2 / n_heads))
    figure = blank(size * n_heads * len(shown) + 1.0, size * n_layers + 0.9)
    for side, maps in zip(figure.subfigures(1, len(shown), squeeze=False).flat, shown, strict=True):
        side.suptitle(maps.row, fontsize=10, color=INK)
        side.patch.set_visible(False)
        for (layer, head), axes in np.ndenumerate(side.subplots(n_layers, n_heads, squeeze=False)):
            axes.set_axis_off()
            if layer < len(maps.layers) and head < len(maps.heads):
                _draw_map(axes, maps.weights[layer, head], maps.is_causal)
            if head == 0 and layer < len(maps.layers):
                place = {"transform": axes.transAxes, "ha": "right", "va": "center", "rotation": 90}
                axes.text(-0.08, 0.5, f"layer {maps.layers[layer]}", fontsize=8, color=INK, **place)
            if layer == 0 and head < len(maps.heads):
                axes.set_title(f"head {maps.heads[head]}", fontsize=8, color=INK, pad=3)
    return figure


def _draw_map(axes: "Axes", weights: np.ndarray, is_causal: bool) -> None:
    """Draw one map; in a causal map, the keys after a query stay blank."""
    ahead = np.triu(np.ones_like(weights, dtype=bool), k=1) & is_causal
    axes.imshow(np.ma.masked_array(weights, ahead), cmap="viridis", vmin=0, interpolation="nearest")
    left, right, top, bottom = -0.5, weights.shape[1] - 0.5, -0.5, len(weights) - 0.5
    axes.plot([left, left, right], [top, bottom, bottom], color=GREY, linewidth=0.6, clip_on=False)
