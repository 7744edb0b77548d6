"""The curves of one run: as a figure, and as a line that is small enough for a table."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from attractor.errors import require_known
from attractor.report.canvas import GREY, INK, PALETTE, blank, framed, styles
from attractor.report.panels import legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = Mapping[str, Any]
WIDTH, HEIGHT = 120, 28  # of a small line, in pixels
MOST_POINTS = 120


def learning_curves(records: Sequence[Record], title: str, unit: str) -> "Figure":
    """Draw the training loss and the validation loss over tokens, and the learning rate below."""
    figure = blank(6.4, 4.6)
    losses, rates = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for axes in map(framed, (losses, rates)):
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.locator_params(axis="x", nbins=5, integer=True)
    losses.plot(*_over_tokens(records, "loss"), color=GREY, linewidth=1.0, label="training")
    losses.plot(*_over_tokens(records, "valid_loss"), color=PALETTE[0], marker="o", markersize=3, label="validation")
    losses.legend(frameon=False, labelcolor=INK, fontsize=9)
    losses.set(title=title, ylabel=f"loss ({unit})")
    rates.plot(*_over_tokens(records, "lr"), color=PALETTE[1], linewidth=1.2)
    rates.set(xlabel="tokens", ylabel="learning rate", ylim=(0, None))
    return figure


def curves_of_runs(runs: Mapping[str, Sequence[Record]], x: str) -> "Figure":
    """Draw the validation loss of each run over the tokens, steps or seconds since its start."""
    axis = {"tokens": "tokens", "step": "step", "seconds": "seconds"}
    require_known("axis", x, axis)
    curves = {
        name: [(_place(record, records, x), record["valid_loss"]) for record in records if record.get("valid_loss")]
        for name, records in runs.items()
    }
    return overlaid(curves, axis[x], "validation loss")


def overlaid(curves: Mapping[str, Sequence[tuple[float, float | None]]], x: str, y: str) -> "Figure":
    """Draw a number of several runs over each other; a value that was not finite is left out."""
    figure = blank(6.4, 4.2 + 0.1 * len(curves))
    axes = framed(figure.add_subplot())
    looks = styles(curves, next(iter(curves), ""), None)
    for name, values in curves.items():
        points = [point for point in values if point[1] is not None]
        if points:
            marker = "o" if len(points) == 1 else ""
            axes.plot(*zip(*points, strict=True), label=name, marker=marker, **looks[name] | {"linewidth": 1.2})
    axes.set(xlabel=x, ylabel=y)
    legend(figure, {"": axes})
    return figure


def _place(record: Record, records: Sequence[Record], x: str) -> float:
    """Return where a record lies on an axis; its seconds follow from the mean speed that was logged with it."""
    if x != "seconds":
        return float(record[x])
    speeds = [other["tokens_per_second"] for other in records if other["step"] <= record["step"] and "lr" in other]
    return record["tokens"] / speeds[-1] if speeds else 0.0


def _over_tokens(records: Iterable[Record], name: str) -> tuple[list[int], list[float]]:
    """Return the tokens and the values of a number. A value that was not finite is stored as null and left out."""
    points = [(record["tokens"], record[name]) for record in records if record.get(name) is not None]
    return [tokens for tokens, _ in points], [value for _, value in points]


def small_line(values: Sequence[float | None], description: str, scale: int = 1) -> Markup:
    """Return the values as a small line in SVG, in the colour of the text around it; empty for fewer than two."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    shown = finite[:: math.ceil(len(finite) / MOST_POINTS) or 1]
    if len(shown) < 2:
        return Markup()
    low, high = min(shown), max(shown)
    width, height = WIDTH * scale, HEIGHT * scale
    points = " ".join(
        f"{1 + (width - 2) * i / (len(shown) - 1):.1f},{1 + (height - 2) * (high - value) / ((high - low) or 1):.1f}"
        for i, value in enumerate(shown)
    )
    return Markup(
        '<svg class="line" role="img" aria-label="{}" width="{}" height="{}" viewBox="0 0 {} {}">'
        '<polyline points="{}" fill="none" stroke="currentColor" stroke-width="1.5" stroke-linejoin="round"/></svg>'
    ).format(description, width, height, width, height, points)
