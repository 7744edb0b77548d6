"""The comparison in two pictures, as SVG to stand inside a page.

The pictures have no background, and their text and axes take the colour of the text around them, so that they are
legible on light and on dark pages. The same runs give the same bytes.
"""

import io
import re
from math import isfinite
from typing import TYPE_CHECKING, Any

from attractor.report.comparison import Comparison, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#010203"  # stands for the colour of the surrounding text until the SVG is written
GREY = "#8a8a8a"
PALETTE = ("#0b84d8", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # told apart by colour-blind readers
DASHES = ("solid", (0, (4, 1.5)), (0, (1, 1)))  # tell apart what has the same colour
WIDTH = 5.8


def loss_curves(comparison: Comparison) -> str:
    """Validation loss against tokens: the mean over seeds, and a band from the best seed to the worst."""
    curves = {row.label: curve for row in comparison.rows if (curve := _curve(row))}
    if not curves:
        return ""
    figure, axes = _figure(height=3.4)
    styles = _styles(comparison)
    lines = []
    for label, curve in curves.items():
        tokens, mean, low, high = zip(*curve, strict=True)
        lines += axes.plot(tokens, mean, **styles[label])
        axes.fill_between(tokens, low, high, color=styles[label]["color"], alpha=0.15, linewidth=0)
    _look_at_the_end(axes, list(curves.values()))
    axes.set_xlabel("tokens")
    axes.set_ylabel("validation loss (nats per token)")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=5)
    figure.legend(lines, list(curves), loc="outside lower center", ncols=3, frameon=False, labelcolor=INK, fontsize=9)
    return _svg(figure, "loss", "Validation loss against tokens for each attention")


def differences(comparison: Comparison) -> str:
    """Each label's paired difference from the baseline with its interval: the numbers that the verdict rests on."""
    shown = {row.label: row.difference for row in comparison.rows if row.difference and isfinite(row.difference.mean)}
    if not shown:
        return ""
    figure, axes = _figure(height=1.0 + 0.32 * len(shown))
    styles = _styles(comparison)
    for place, (label, difference) in enumerate(shown.items()):
        color = styles[label]["color"]
        if difference.low is not None and difference.high is not None:
            axes.plot([difference.low, difference.high], [place, place], color=color, marker="|", markersize=9)
        fill = "none" if difference.n == 1 else "full"
        axes.plot([difference.mean], [place], color=color, marker="o", markersize=5, fillstyle=fill)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(shown)), list(shown))
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlabel(f"validation loss minus that of '{comparison.baseline}' (nats); left is better")
    axes.locator_params(axis="x", nbins=6)
    return _svg(figure, "difference", "Paired differences of validation loss with their intervals")


def _curve(row: Row) -> list[tuple[int, float, float, float]]:
    """Tokens, mean, lowest and highest, wherever every seed was validated: a mean over fewer would jump."""
    by_tokens: dict[int, list[float]] = {}
    for run in row.runs:
        for tokens, loss in _validations(run.metrics()).items():
            by_tokens.setdefault(tokens, []).append(loss)
    complete = {tokens: losses for tokens, losses in sorted(by_tokens.items()) if len(losses) == len(row.runs)}
    return [(tokens, sum(losses) / len(losses), min(losses), max(losses)) for tokens, losses in complete.items()]


def _validations(records: list[dict[str, Any]]) -> dict[int, float]:
    """The validation loss by tokens; where it was taken twice, the later one."""
    return {record["tokens"]: record["valid_loss"] for record in records if record.get("valid_loss") is not None}


def _look_at_the_end(axes: "Axes", curves: list[list[tuple[int, float, float, float]]]) -> None:
    """Let the first third of training run out of the frame: its steep fall would flatten what tells curves apart."""
    end = max(curve[-1][0] for curve in curves)
    late = [point for curve in curves for point in curve if point[0] >= end / 3]
    low, high = min(point[2] for point in late), max(point[3] for point in late)
    margin = 0.06 * (high - low) or 0.01
    axes.set_ylim(low - margin, high + margin)


def _styles(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """The baseline in the colour of the text, the control in grey, the rivals in colours: the same in every picture."""
    styles: dict[str, dict[str, Any]] = {
        comparison.control: {"color": GREY, "linestyle": DASHES[1], "linewidth": 1.6},
        comparison.baseline: {"color": INK, "linestyle": "solid", "linewidth": 1.6},
    }
    for number, row in enumerate(comparison.rivals):
        turn, place = divmod(number, len(PALETTE))
        styles[row.label] = {"color": PALETTE[place], "linestyle": DASHES[turn % len(DASHES)], "linewidth": 1.6}
    return styles


def _figure(height: float) -> tuple["Figure", "Axes"]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.tick_params(colors=INK, labelsize=9)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.grid(alpha=0.25, linewidth=0.6, color=GREY)
    axes.patch.set_visible(False)
    return figure, axes


def _svg(figure: "Figure", name: str, description: str) -> str:
    """The figure as an SVG element. Its ids get a prefix, since a page holds several figures."""
    from matplotlib import rc_context
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a dollar sign in a label is a dollar sign
    file = io.StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", transparent=True, metadata=no_metadata)
    drawing = file.getvalue()
    svg = drawing[drawing.index("<svg") :].replace(INK, "currentColor")
    svg = re.sub(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{name}-", svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{description}" ', 1)
