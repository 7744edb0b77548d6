"""The comparison in two pictures, as SVG to stand inside a page."""

from math import isfinite
from typing import Any

from attractor.report.canvas import INK, WIDTH, as_svg, blank, framed, late_range, styles
from attractor.report.comparison import Comparison, Row


def loss_curves(comparison: Comparison) -> str:
    """Validation loss against tokens: the mean over seeds, and a band from the best seed to the worst."""
    curves = {row.label: curve for row in comparison.rows if (curve := _curve(row))}
    if not curves:
        return ""
    figure = blank(WIDTH, 3.4)
    axes = framed(figure.add_subplot())
    looks = _styles(comparison)
    lines = []
    for label, curve in curves.items():
        tokens, mean, low, high = zip(*curve, strict=True)
        lines += axes.plot(tokens, mean, **looks[label])
        axes.fill_between(tokens, low, high, color=looks[label]["color"], alpha=0.15, linewidth=0)
    axes.set_ylim(*late_range(curves.values()))
    axes.set_xlabel("tokens")
    axes.set_ylabel("validation loss (nats per token)")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=5)
    figure.legend(lines, list(curves), loc="outside lower center", ncols=3, frameon=False, labelcolor=INK, fontsize=9)
    return as_svg(figure, "loss", "Validation loss against tokens for each attention")


def differences(comparison: Comparison) -> str:
    """Each label's paired difference from the baseline with its interval: the numbers that the verdict rests on."""
    shown = {row.label: row.difference for row in comparison.rows if row.difference and isfinite(row.difference.mean)}
    if not shown:
        return ""
    figure = blank(WIDTH, 1.0 + 0.32 * len(shown))
    axes = framed(figure.add_subplot())
    looks = _styles(comparison)
    for place, (label, difference) in enumerate(shown.items()):
        color = looks[label]["color"]
        if difference.low is not None and difference.high is not None:
            axes.plot([difference.low, difference.high], [place, place], color=color, marker="|", markersize=9)
        fill = "none" if difference.n == 1 else "full"
        axes.plot([difference.mean], [place], color=color, marker="o", markersize=5, fillstyle=fill)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(shown)), list(shown))
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlabel(f"validation loss minus that of '{comparison.baseline}' (nats); left is better")
    axes.locator_params(axis="x", nbins=6)
    return as_svg(figure, "difference", "Paired differences of validation loss with their intervals")


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


def _styles(comparison: Comparison) -> dict[str, dict[str, Any]]:
    return styles([row.label for row in comparison.rows], comparison.baseline, comparison.control)
