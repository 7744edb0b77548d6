"""Draw measures: a curve over layers for each measure, maps of heads by layers, and the exponents over depth.

The figures are drawn from records alone. Several models share a figure, each in its own colour.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from attractor.evaluate.measures.record import MEASURES, OF_HEADS, LayerMeasure
from attractor.report.canvas import GREY, INK, blank, framed, styles
from attractor.report.charts import WIDE, Curves, Point, slug
from attractor.report.panels import legend, lines
from attractor.report.study_figure import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Records = Sequence[Mapping[str, Any]]
CURVES = [measure for measure in MEASURES if measure.name not in ("entropy", "logit_mean")]
MAPPED = [measure for measure in OF_HEADS if measure.name in ("entropy_after_first", "sink_mass")]
SMALL = (3.3, 2.3)  # inches
HEAD = 0.22  # inches per head in a map


def curves(records: Records) -> Iterator[Picture]:
    for measure in CURVES:
        by_model = {record["model"]: _curve(record, measure) for record in records}
        known: Curves = {model: curve for model, curve in by_model.items() if curve}
        if known:
            title = f"{measure.title}, layer by layer"
            yield Picture(slug(measure.name), title, measure.about, partial(_draw_curve, records, measure, known))


def head_maps(records: Records) -> Iterator[Picture]:
    for number, record in enumerate(records):
        for measure in MAPPED:
            if any(record["by_head"].get(measure.name, ())):
                whose = f" of {record['model']}" if len(records) > 1 else ""
                title = f"{measure.title}, head by head{whose}"
                name = f"heads-{slug(measure.name)}" + (f"-{number + 1}" if len(records) > 1 else "")
                yield Picture(name, title, f"{title}.", partial(_draw_heads, record, measure))


def exponents(records: Records) -> Iterator[Picture]:
    if any(record["exponents"]["by_rank"] for record in records):
        title = "Exponents over depth"
        caption = (
            "Finite-time Lyapunov exponents over depth: (1/L) log of the singular values of the product of all L "
            "Jacobians, the largest first. Above 0 a change grows on its way through the layers."
        )
        yield Picture("exponents", title, caption, partial(_draw_exponents, records))


def _curve(record: Mapping[str, Any], measure: LayerMeasure) -> list[Point]:
    """Return layers, means and the ends of the intervals; the ends are the mean for a single passage."""
    layers = record["layers"]
    intervals = record["by_layer"].get(measure.name, ())
    end = record.get("n_layers", layers[-1] + 1)  # which older records lack
    places = [*layers, end][: len(intervals)]
    return [(place, *_ends(i)) for place, i in zip(places, intervals, strict=True) if i is not None]


def _ends(interval: Mapping[str, float | None]) -> tuple[float, float, float]:
    mean, low, high = interval["mean"], interval["low"], interval["high"]
    assert mean is not None
    return mean, mean if low is None else low, mean if high is None else high


def _draw_curve(records: Records, measure: LayerMeasure, curves: Curves) -> "Figure":
    from matplotlib.ticker import MaxNLocator

    figure, axes = _small()
    lines(axes, curves, _looks(records), "o")
    means = [mean for curve in curves.values() for _, mean, *_ in curve]
    if min(means) > 0 and max(means) > WIDE * min(means):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_ylim(min(means) / 2, max(means) * 2)  # an interval may reach below 0
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer")
    axes.set_title(measure.title, fontsize=10)
    _named(figure, axes, records)
    return figure


def _draw_heads(record: Mapping[str, Any], measure: LayerMeasure) -> "Figure":
    from matplotlib.ticker import MaxNLocator

    by_layer = record["by_head"][measure.name]
    values = np.full((len(by_layer), max(map(len, by_layer))), np.nan)
    for row, heads in zip(values, by_layer, strict=True):
        row[: len(heads)] = heads
    width, height = (min(max(HEAD * n, 1.6), 6.0) for n in values.shape[::-1])
    figure = blank(width + 1.7, height + 0.9)
    axes = framed(figure.subplots())
    image = axes.imshow(values, cmap="viridis", aspect="auto", interpolation="nearest")
    axes.grid(visible=False)
    axes.set_yticks(range(len(by_layer)), [str(layer) for layer in record["layers"]])
    if len(by_layer) > 12:
        axes.yaxis.set_major_locator(MaxNLocator(12, integer=True))
    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    axes.set_title(measure.title, fontsize=10)
    bar = figure.colorbar(image, ax=axes)
    bar.ax.tick_params(colors=INK, labelsize=9)
    bar.outline.set_visible(False)
    return figure


def _draw_exponents(records: Records) -> "Figure":
    from matplotlib.ticker import MaxNLocator

    figure, axes = _small()
    for record in records:
        points = [
            (rank, *_ends(interval)) for rank, interval in enumerate(record["exponents"]["by_rank"], 1) if interval
        ]
        if points:
            rank, mean, low, high = (np.array(column) for column in zip(*points, strict=True))
            color = _looks(records)[record["model"]]["color"]
            axes.vlines(rank, low, high, color=color, linewidth=1.2)
            axes.plot(rank, mean, label=record["model"], color=color, marker="o", markersize=4, linewidth=0.8)
    axes.hlines(0, *axes.get_xlim(), color=GREY, linewidth=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("rank")
    axes.set_title("Exponents (nats a layer)", fontsize=10)
    _named(figure, axes, records)
    return figure


def _small() -> tuple["Figure", "Axes"]:
    figure = blank(*SMALL)
    return figure, framed(figure.subplots())


def _named(figure: "Figure", axes: "Axes", records: Records) -> None:
    if len(records) > 1:
        legend(figure, {"": axes})


def _looks(records: Records) -> dict[str, dict[str, Any]]:
    models = [record["model"] for record in records]
    return styles(models, models[0], None)
