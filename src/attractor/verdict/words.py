"""Write numbers, names and tables as text, LaTeX and HTML.

Names come from anybody's files. Their control characters become spaces, and every writer escapes what its format would
take for a sign of its own. The first columns of a table hold words, and the others numbers.
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from html import escape

from attractor.verdict.intervals import Interval, decimals

UNKNOWN = "–"  # noqa: RUF001  (an en dash is the sign for "none" in a table)
LATEX_ESCAPES = {
    **{sign: f"\\{sign}" for sign in "{}&%$#_"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    "*": r"$^{*}$",
    "±": r"$\pm$",
    "×": r"$\times$",  # noqa: RUF001
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    "–": "--",  # noqa: RUF001
    "·": r"$\cdot$",
    "√": r"$\surd$",
    **{sign: f"$^{{{plain}}}$" for sign, plain in zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-", strict=True)},
    **{sign: f"$_{{{plain}}}$" for sign, plain in zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True)},
}
for letter in "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΥΦΨΩ":
    name = unicodedata.name(letter).split()[-1].replace("LAMDA", "LAMBDA")  # Unicode's name of it, and LaTeX's
    LATEX_ESCAPES[letter] = f"$\\{name.lower() if letter.islower() else name.capitalize()}$"


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]], n_texts: int = 1) -> str:
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    lines = (headings, ["-" * width for width in widths], *rows)
    aligned = (
        [*map(str.ljust, line[:n_texts], widths), *map(str.rjust, line[n_texts:], widths[n_texts:])] for line in lines
    )
    return "\n".join("  ".join(line).rstrip() for line in aligned)


def html_table(headings: Sequence[str], rows: Iterable[Sequence[str]], n_texts: int = 1) -> str:
    """Return a table as a fragment of a page. A cell of words has its text as its class, too: `no-difference`."""
    classes = ['class="word"' if place < n_texts else "" for place in range(len(headings))]
    head = _html_line(
        [f'<th scope="col" {kind}>{escape(text)}</th>' for text, kind in zip(headings, classes, strict=True)]
    )
    lines = [
        _html_line(
            [
                f'<th scope="row">{escape(label)}</th>',
                *(f'<td class="word {html_class(word)}">{escape(word)}</td>' for word in cells[: n_texts - 1]),
                *(f"<td>{escape(number)}</td>" for number in cells[n_texts - 1 :]),
            ]
        )
        for label, *cells in rows
    ]
    return "\n".join(['<table class="sorted">', f"<thead>{head}</thead>", "<tbody>", *lines, "</tbody>", "</table>"])


def _html_line(cells: Iterable[str]) -> str:
    return f"<tr>{''.join(cells)}</tr>"


def html_class(words: str) -> str:
    return re.sub(r"\W+", "-", words)


def markdown_escaped(text: str) -> str:
    """Return a text on one line that neither ends its cell nor becomes emphasis, a tag, a link, code or a formula."""
    return re.sub(r"([\\`*|$]|(?<=\])[(\[])", r"\\\1", on_one_line(text)).replace("<", "&lt;")


def latex_escaped(text: str) -> str:
    return "".join(LATEX_ESCAPES.get(sign, sign) for sign in text)


def latex_number(text: str) -> str:
    """Write the minus signs and the powers of ten of an escaped number as formulas."""
    text = re.sub(r"(?<![\w.])-(?=\d)", "$-$", text)
    return re.sub(r"([\d.]+)e([+-]\d+)", lambda match: rf"{match[1]}$\times10^{{{int(match[2])}}}$", text)


def latex_table(
    caption: str,
    label: str,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    n_texts: int,
    footer: Sequence[Sequence[str]] = (),
) -> str:
    """Return a table with booktabs of texts that are escaped."""
    lines = [
        r"\begin{table}",
        r"\centering",
        r"\small",
        rf"\caption{{{caption}}}",
        rf"\label{{{label}}}",
        rf"\begin{{tabular}}{{{'l' * n_texts}{'r' * (len(headings) - n_texts)}}}",
        r"\toprule",
        _latex_line(headings),
        r"\midrule",
        *map(_latex_line, rows),
    ]
    if footer:
        lines += [r"\midrule", *map(_latex_line, footer)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _latex_line(texts: Sequence[str]) -> str:
    line = " & ".join(texts) + r" \\"
    return "{}" + line if line.startswith("[") else line  # the end of the line before would take it for its argument


def on_one_line(text: object) -> str:
    """Return a text in printable characters: no line breaks, nothing that a terminal obeys."""
    text = str(text)
    if not text.isprintable():
        text = "".join(sign if sign.isprintable() else " " for sign in text)
    return " ".join(text.split())


def abridged(text: object, length: int) -> str:
    """Return a text on one line of at most so many characters."""
    line = on_one_line(text)
    return line if len(line) <= length else f"{line[: length - 1]}…"


def signed(interval: Interval, unit: str = "", named: bool = True) -> str:
    """Write a difference with its bounds as `-0.085 [-0.158, -0.013] nats`, to two digits of its half width.

    `named` is False where a heading names the unit.
    """
    parts = [with_sign(interval.mean, interval, unit), bounds(interval, unit), unit if named else ""]
    return " ".join(filter(None, parts))


def bounds(interval: Interval, unit: str) -> str:
    """Write the ends of an interval as `[-0.158, -0.013]`; nothing where there is no interval."""
    if interval.low is None or interval.high is None:
        return ""
    return f"[{with_sign(interval.low, interval, unit)}, {with_sign(interval.high, interval, unit)}]"


def with_sign(value: float, interval: Interval, unit: str) -> str:
    """Write a place of an interval with its sign and the interval's digits; a factor has no sign."""
    sign = "" if unit == "x" else "+"
    size = max(abs(end) for end in (interval.mean, interval.low, interval.high) if end is not None)
    if 0 < size < 1e-5 or abs(value) >= 1e9:  # no digit would be seen, or too many
        return f"{value:{sign}.2g}"
    return f"{value:{sign},.{interval.decimals}f}"


def shown_p(p: float | None) -> str:
    return "" if p is None else "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0")


def shown_size(size: float | None) -> str:
    """Write a size, such as a standard deviation, with two digits."""
    if size is None or not math.isfinite(size):
        return UNKNOWN
    return f"{size:.2g}" if 0 < size < 1e-5 else f"{size:,.{decimals(size)}f}"


def short_number(value: float) -> str:
    """Write a number in a sentence, with four digits: `0.0031`, `3.28`, `1500`."""
    return f"{value:.0f}" if abs(value) >= 1000 and math.isfinite(value) else f"{value:.4g}"


def p_in_words(p: float | None) -> str:
    if p is None:
        return "no p value"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
