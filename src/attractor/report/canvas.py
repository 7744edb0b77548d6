"""The look of all figures: colours, frames, and conversion to page elements and files.

Inside a page the pictures have no background, and their text and axes take the colour of the text around them, so that
they are legible on light and on dark pages. The same runs give the same bytes.
"""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#010203"  # stands for the colour of the surrounding text until the SVG is written
GREY = "#8a8a8a"
PALETTE = ("#0b84d8", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # distinct for colour-blind readers
DASHES = ("solid", (0, (4, 1.5)), (0, (1, 1)), (0, (4, 1.5, 1, 1.5)))  # distinguish lines of the same colour
WIDTH = 5.8
SIZES = {"png": {"dpi": 200}}
CSS_PIXELS = 96  # per inch
# No dates, so that the same runs give the same bytes.
METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": dict.fromkeys(("Creator", "Date", "Format", "Type")),
}


def styles(labels: Iterable[str], baseline: str, control: str | None) -> dict[str, dict[str, Any]]:
    """Return line styles, the same in every figure: baseline in the text colour, control grey, rivals coloured."""
    by_label: dict[str, dict[str, Any]] = {baseline: {"color": INK, "linestyle": "solid", "linewidth": 1.6}}
    if control is not None:
        by_label[control] = {"color": GREY, "linestyle": DASHES[1], "linewidth": 1.6}
    rivals = [label for label in labels if label not in by_label]
    for number, label in enumerate(rivals):
        turn, place = divmod(number, len(PALETTE))
        by_label[label] = {"color": PALETTE[place], "linestyle": DASHES[turn % len(DASHES)], "linewidth": 1.6}
    return by_label


def blank(width: float, height: float) -> "Figure":
    return _shown_in_notebooks()(figsize=(width, height), layout="constrained")


@cache
def _shown_in_notebooks() -> "type[Figure]":
    """Return the class of figures that a notebook shows as the value of a cell, with or without pyplot."""
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
            return as_file(self, "png", "figure"), {"width": round(CSS_PIXELS * self.get_figwidth())}

    return NotebookFigure


def framed(axes: "Axes") -> "Axes":
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.tick_params(colors=INK, labelsize=9)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.title.set_color(INK)
    axes.grid(alpha=0.25, linewidth=0.6, color=GREY)
    axes.patch.set_visible(False)
    return axes


def lay_out(figure: "Figure") -> None:
    """Place the axes within the figure, as its first drawing would."""
    engine = figure.get_layout_engine()
    assert engine is not None  # `blank` gives every figure one
    engine.execute(figure)


def as_svg(figure: "Figure", name: str, description: str) -> str:
    """Return the figure as an SVG element, with a prefix on its ids, since a page holds several figures."""
    svg = as_file(figure, "svg", name, transparent=True).decode("utf-8")
    svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
    svg = _in_tags(r'(\bid="|xlink:href="#|url\(#)', rf"\g<1>{name}-", svg)
    seen: Counter[str] = Counter()

    def unique(match: re.Match[str]) -> str:
        """Number repeated ids: subfigures count their axes separately. Nothing refers to these ids."""
        seen[match[1]] += 1
        return match[0] if seen[match[1]] == 1 else f'id="{match[1]}-{seen[match[1]]}"'

    svg = _in_tags(r'\bid="([^"]*)"', unique, svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(description)}" ', 1)


def _in_tags(pattern: str, by: str | Callable[[re.Match[str]], str], svg: str) -> str:
    """Replace a pattern in the tags of an SVG; a label may contain the same characters."""
    return re.sub(r"<[^>]*>", lambda tag: re.sub(pattern, by, tag[0]), svg)


def as_file(figure: "Figure", kind: str, name: str, transparent: bool = False) -> bytes:
    """Return the figure as the bytes of a PNG, PDF or SVG file; `name` seeds the ids of an SVG."""
    from matplotlib import rc_context
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a dollar sign in a label is a dollar sign
    file = io.BytesIO()
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "pdf.fonttype": 42}):
        figure.savefig(file, format=kind, transparent=transparent, metadata=METADATA[kind], **SIZES.get(kind, {}))
    return file.getvalue()
