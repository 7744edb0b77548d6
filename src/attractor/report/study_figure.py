"""A judged study in pictures: losses, differences, layers and attention maps, with one panel for each column.

Each figure is drawn once and goes into a page as well as into files.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.report.canvas import GREY, INK, WIDTH, as_file, as_svg, blank, framed, late_range, styles
from attractor.report.curves import Point, loss_curves, profiles
from attractor.report.heatmaps import Heatmaps, heatmaps, rival_of
from attractor.report.judged import SHOWN, Judged
from attractor.report.measures import Measure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACROSS = 3  # panels in a row


@dataclass(frozen=True)
class Picture:
    name: str
    title: str
    caption: str
    draw: Callable[[], "Figure"]

    @cached_property
    def figure(self) -> "Figure":
        """Laid out once, so that a file does not depend on which others were written before it."""
        figure = self.draw()
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        return figure

    def svg(self) -> str:
        """To stand inside a page."""
        return as_svg(self.figure, self.name, self.title)

    def file(self, kind: str) -> bytes:
        return as_file(self.figure, kind, self.name)


def pictures(judged: Judged) -> list[Picture]:
    """Those that the record has the numbers for."""
    found = []
    if curves := _by_column(judged, loss_curves):
        found.append(
            Picture(
                "curves",
                "Validation loss",
                "Validation loss over tokens: mean over seeds, with a band from the lowest seed to the highest. "
                "The frame is set by what follows the first third of training.",
                partial(_draw_curves, judged, curves),
            )
        )
    first = judged.headlines[0]
    if any(each.measure == first and _has_mean(each.interval) for each in judged.differences.values()):
        found.append(
            Picture(
                "differences",
                "Paired differences",
                "Paired differences with 95% intervals, each for itself. Full points are shown after Holm's "
                "correction; open points are not, or are a single seed without interval.",
                partial(_draw_differences, judged, first),
            )
        )
    for headline in judged.headlines:
        layered = _by_column(judged, lambda judged, column, of=headline: profiles(judged, of, column))  # type: ignore[misc]
        if layered:
            name = headline.quantity.name
            found.append(
                Picture(
                    f"profile-{slug(name)}",
                    f"{name[:1].upper()}{name[1:]} by layer",
                    f"{name[:1].upper()}{name[1:]} by layer: mean over seeds, with a band from the lowest seed to "
                    "the highest.",
                    partial(_draw_profiles, judged, layered, name),
                )
            )
    maps = heatmaps(judged)
    if maps:
        rival = rival_of(judged, maps)
        shown = [maps[0], *([rival] if rival else [])]
        found.append(
            Picture(
                "attention",
                "Attention maps",
                f"Attention maps of {' and '.join(f'{each.row!r} (seed {each.seed})' for each in shown)}"
                f"{f', {maps[0].column}' if maps[0].column else ''}: a query's weights lie in a row, layers go down, "
                "heads across. Each map has its own scale, from zero to its largest weight.",
                partial(_draw_maps, shown),
            )
        )
    return found


def slug(name: str) -> str:
    """A name that a file, an address and an id can have."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()


def _has_mean(interval: Any) -> bool:
    return interval is not None and isfinite(interval.mean)


def _by_column(
    judged: Judged, of: Callable[[Judged, str], dict[str, list[Point]]]
) -> dict[str, dict[str, list[Point]]]:
    found = {column: of(judged, column) for column in judged.design.columns}
    return {column: curves for column, curves in found.items() if curves}


def _looks(judged: Judged) -> dict[str, dict[str, Any]]:
    return styles(judged.design.rows, judged.design.baseline, judged.design.control)


def _panels(columns: Mapping[str, object], height: float) -> tuple["Figure", dict[str, "Axes"]]:
    """One panel for each column, side by side, titled by the column where it has a name."""
    n_across = min(len(columns), ACROSS)
    n_down = ceil(len(columns) / ACROSS)
    figure = blank(WIDTH if n_across == 1 else 3.1 * n_across, height * n_down + 0.5)
    grid = figure.subplots(n_down, n_across, squeeze=False)
    panels = dict(zip(columns, grid.flat, strict=False))
    for axes in grid.flat[len(columns) :]:
        axes.set_visible(False)
    for column, axes in panels.items():
        framed(axes).set_title(column, fontsize=10)
    return figure, panels


def _lines(axes: "Axes", curves: Mapping[str, list[Point]], looks: Mapping[str, dict[str, Any]], marker: str) -> None:
    for row, curve in curves.items():
        place, mean, low, high = zip(*curve, strict=True)
        axes.plot(place, mean, label=row, marker=marker, markersize=3, **looks[row])
        axes.fill_between(place, low, high, color=looks[row]["color"], alpha=0.15, linewidth=0)


def _legend(figure: "Figure", panels: Mapping[str, "Axes"]) -> None:
    lines = {line.get_label(): line for axes in panels.values() for line in axes.get_lines()}
    n_across = max(2, min(len(lines), int(figure.get_figwidth() / 1.9)))
    figure.legend(
        list(lines.values()),
        list(map(str, lines)),
        loc="outside lower center",
        ncols=n_across,
        frameon=False,
        labelcolor=INK,
        fontsize=9,
    )


def _draw_curves(judged: Judged, curves: Mapping[str, dict[str, list[Point]]]) -> "Figure":
    figure, panels = _panels(curves, 2.9)
    looks = _looks(judged)
    for column, axes in panels.items():
        _lines(axes, curves[column], looks, "")
        axes.set_ylim(*late_range(curves[column].values()))
        axes.xaxis.set_major_formatter(_in_short)
        axes.locator_params(axis="x", nbins=5)
        axes.set_xlabel("tokens")
    next(iter(panels.values())).set_ylabel("validation loss (nats)")
    _legend(figure, panels)
    return figure


def _in_short(value: float, _place: float) -> str:
    for size, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{sign}"
    return f"{value:g}"


def _draw_differences(judged: Judged, measure: Measure) -> "Figure":
    rows = [row for row in judged.design.rows if row not in (judged.design.baseline, judged.design.control)]
    rows = rows or [row for row in judged.design.rows if row != judged.design.baseline]
    figure, panels = _panels(dict.fromkeys(judged.design.columns), 0.8 + 0.3 * len(rows))
    looks = _looks(judged)
    for number, (column, axes) in enumerate(panels.items()):
        for place, row in enumerate(rows):
            difference = judged.differences[row, column, measure]
            interval = difference.interval
            if interval is None or not isfinite(interval.mean):
                continue
            color = looks[row]["color"]
            if interval.low is not None and interval.high is not None:
                axes.plot([interval.low, interval.high], [place, place], color=color, linewidth=1.6)
            fill = "full" if difference.outcome in SHOWN else "none"
            axes.plot([interval.mean], [place], color=color, marker="o", markersize=5.5, fillstyle=fill)
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_yticks(range(len(rows)), rows if number % ACROSS == 0 else [""] * len(rows))
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.locator_params(axis="x", nbins=4)
    unit = f" ({measure.unit})" if measure.unit else ""
    lower = measure.in_nats or measure.quantity.better == "lower"
    side = "; left is better" if lower else "; right is better" if measure.quantity.better else ""
    quantity = "validation loss" if measure.in_nats else measure.name
    figure.supxlabel(f"{quantity} minus that of '{judged.design.baseline}'{unit}{side}", fontsize=10, color=INK)
    return figure


def _draw_profiles(judged: Judged, layered: Mapping[str, dict[str, list[Point]]], name: str) -> "Figure":
    from matplotlib.ticker import MaxNLocator

    figure, panels = _panels(layered, 2.7)
    for column, axes in panels.items():
        _lines(axes, layered[column], _looks(judged), "o")
        axes.set_xlabel("layer")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    next(iter(panels.values())).set_ylabel(name)
    _legend(figure, panels)
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
    """What lies ahead of a query stays blank where nothing looks ahead."""
    ahead = np.triu(np.ones_like(weights, dtype=bool), k=1) & is_causal
    axes.imshow(np.ma.masked_array(weights, ahead), cmap="viridis", vmin=0, interpolation="nearest")
    left, right, top, bottom = -0.5, weights.shape[1] - 0.5, -0.5, len(weights) - 0.5
    axes.plot([left, left, right], [top, bottom, bottom], color=GREY, linewidth=0.6, clip_on=False)
