"""Write a judged study for a paper: its tables with booktabs, and a name for every number.

A paper with \\input{numbers} writes \\attractor{coupled-euler web perplexity} and never a stale digit. The name holds
row, column and quantity, with an ending such as sd, n, difference, difference low, p or published.
"""

import math
import re
from collections.abc import Iterator
from itertools import chain, count

from attractor.console import with_prefix
from attractor.report.judged_study import JudgedStudy
from attractor.report.study_table import StudyTable, TableCell, digits_of, published, shown, tables
from attractor.runs.quantity import CONTEXT_GAIN, Quantity
from attractor.verdict.words import latex_escaped, latex_number, latex_table, on_one_line, shown_p, with_sign

MOST_WORDS = 30  # of a caption
MACROS = (  # a second study may bring them, too, but no number of the same name
    r"\providecommand{\attractornumber}[2]{\expandafter\newcommand\csname attractor #1\endcsname{#2}}",
    r"\providecommand{\attractor}[1]{\ifcsname attractor #1\endcsname\csname attractor #1\endcsname"
    r"\else\errmessage{no number is named #1}\fi}",
)


def in_latex(judged: JudgedStudy) -> str:
    """Return all tables of a study; the preamble of the paper needs booktabs."""
    return "% needs \\usepackage{booktabs}\n\n" + "\n".join(
        table_in_latex(table, f"tab:{judged.design.name}-{table.name}") for table in tables(judged)
    )


def table_in_latex(table: StudyTable, label: str) -> str:
    """Return a table. Its caption has the title and as many notes as fit; the others stand before it as comments."""
    title, notes = " ".join(table.title.split()[:MOST_WORDS]) + ".", list(table.caption)
    while notes and len(f"{title} {notes[0]}".split()) <= MOST_WORDS:
        title += f" {notes.pop(0)}"
    comments = "".join(f"% {on_one_line(note)}\n" for note in notes)
    return comments + latex_table(
        latex_escaped(title),
        re.sub("[^A-Za-z0-9:-]", "-", label),
        [latex_escaped(heading) for heading in table.headings],
        [[_entry(entry) for entry in row] for row in table.rows],
        table.n_texts,
        [[_entry(entry) for entry in row] for row in table.footer],
    )


def numbers(judged: JudgedStudy) -> str:
    """Return a file with a name for every number of the study."""
    lines = [
        f"% {judged.design.name}, {judged.design.scale}: \\attractor{{NAME}} is the number of that name",
        *MACROS,
        *(f"\\attractornumber{{{name}}}{{{value}}}" for name, value in named_numbers(judged).items()),
    ]
    return "\n".join(lines) + "\n"


def named_numbers(judged: JudgedStudy) -> dict[str, str]:
    """Return the numbers by name. A label keeps the signs that nobody's LaTeX takes for its own."""
    by_name: dict[str, str] = {}
    for words, value in _numbers(judged):
        name = " ".join(re.sub(r"[^A-Za-z0-9.,+/-]", " ", " ".join(words)).split())
        by_name[_unused(name, by_name)] = value
    return by_name


def _unused(name: str, taken: dict[str, str]) -> str:
    """Return a name that is not taken: a second label that differs only in signs ends in 2."""
    names = chain([name], (f"{name} {number}" for number in count(2)))
    return next(candidate for candidate in names if candidate not in taken)


def _numbers(judged: JudgedStudy) -> Iterator[tuple[tuple[str, ...], str]]:
    design = judged.design
    for column in design.columns:
        place = judged.place(column)
        for row in design.rows:
            for headline in judged.headlines:
                for measure in (headline, *judged.layers(headline)):
                    for ending, value in _of_place(judged, row, column, measure):
                        name = measure.name if measure == headline else measure.title
                        yield (row, place, name, *ending), value
            parameters = judged.n_parameters(row, column)
            if parameters:
                yield (row, place, "parameters"), with_prefix(parameters)
            gain = judged.spread(row, column, CONTEXT_GAIN).mean
            if judged.sensitivity and gain is not None and math.isfinite(gain):
                yield (row, place, "context gain"), _plain(f"{gain:.3f}")
        gap = judged.sensitivity[column].interval if column in judged.sensitivity else None
        if gap is not None and math.isfinite(gap.mean):
            for end, bound in (("", gap.mean), ("low", gap.low), ("high", gap.high)):
                if bound is not None:
                    yield (place, "control gap", end), _plain(f"{bound:.3f}")


def _of_place(judged: JudgedStudy, row: str, column: str, measure: Quantity) -> Iterator[tuple[tuple[str, ...], str]]:
    spread = judged.spread(row, column, measure)
    digits = digits_of(judged.spread(name, column, measure) for name in judged.design.rows)
    path = measure.path
    if spread.mean is not None and math.isfinite(spread.mean):
        yield (), _plain(shown(spread.mean, spread.mean, digits, path))
        if spread.sd is not None:
            yield ("sd",), _plain(shown(spread.sd, spread.mean, digits, path))
        yield ("n",), str(spread.n)
    difference = judged.differences.get((row, column, measure))
    if difference is not None and (interval := difference.shown) is not None:
        for ending, value in (("", interval.mean), ("low", interval.low), ("high", interval.high)):
            if value is not None:
                yield ("difference", ending), _plain(with_sign(value, interval, measure.unit))
        for ending, p in (("p", difference.verdict.p), ("holm p", difference.verdict.adjusted_p)):
            if p is not None:
                yield (ending,), _plain(shown_p(p))
    figure = published(judged, row, column, measure)
    if figure is not None:
        yield ("published",), f"{figure.mean:.10g}"
        if figure.sd is not None:
            yield ("published", "sd"), f"{figure.sd:.10g}"


def _plain(number: str) -> str:
    """Write a number so that it can be used in text and in formulas."""
    power = re.fullmatch(r"(-?[\d.]+)e([+-]\d+)", number)
    if power:
        return rf"\ensuremath{{{power[1]}\times10^{{{int(power[2])}}}}}"
    return rf"\ensuremath{{{number}}}" if number[0] in "+-<" else number


def _entry(entry: TableCell) -> str:
    text = latex_escaped(entry.text)
    if entry.value is not None:  # not a label that looks like a number
        text = latex_number(text)
    return text
