"""Write a judged study for a paper: its tables with booktabs, and a LaTeX macro for every number.

A paper with \\input{numbers} writes \\attractorCoupledEulerEncyclopedicPerplexity{} and never a stale digit. A macro is
named for row, column and quantity, with an ending such as Sd, N, Difference, DifferenceLow, P or Published.
"""

import math
import re
from collections.abc import Iterator

from attractor.console import with_prefix
from attractor.report.judged_study import JudgedStudy
from attractor.report.study_table import StudyTable, TableCell, digits_of, published, shown, tables
from attractor.runs.quantity import CONTEXT_GAIN, Quantity
from attractor.verdict.words import latex_escaped, latex_number, latex_table, shown_p, with_sign

DIGITS = ("Zero", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine")


def in_latex(judged: JudgedStudy) -> str:
    """Return all tables of a study; the preamble of the paper needs booktabs."""
    return "% needs \\usepackage{booktabs}\n\n" + "\n".join(
        table_in_latex(table, f"tab:{judged.design.name}-{table.name}") for table in tables(judged)
    )


def table_in_latex(table: StudyTable, label: str) -> str:
    return latex_table(
        f"{latex_escaped(table.title)}. {latex_escaped(' '.join(table.caption))}",
        re.sub("[^A-Za-z0-9:-]", "-", label),
        [latex_escaped(heading) for heading in table.headings],
        [[_entry(entry) for entry in row] for row in table.rows],
        table.n_texts,
        [[_entry(entry) for entry in row] for row in table.footer],
    )


def numbers(judged: JudgedStudy) -> str:
    """Return a file with a macro for every number of the study."""
    lines = [
        f"% {judged.design.name}, {judged.design.scale}: \\input this file, and write a macro with {{}} behind it.",
        *(f"\\newcommand{{\\{name}}}{{{value}}}" for name, value in macros(judged).items()),
    ]
    return "\n".join(lines) + "\n"


def macros(judged: JudgedStudy) -> dict[str, str]:
    by_name: dict[str, str] = {}
    for words, value in _numbers(judged):
        name = "attractor" + "".join(map(in_letters, words))
        by_name[_unused(name, by_name)] = value
    return by_name


def in_letters(text: str) -> str:
    """Write a text in letters alone, as macros need: `coupled-euler` is CoupledEuler, and `n=3` is NThree."""
    spelled = re.sub("[0-9]", lambda digit: f" {DIGITS[int(digit[0])]} ", text.replace(".", " point "))
    return "".join(word[0].upper() + word[1:] for word in re.findall("[A-Za-z]+", spelled))


def _unused(name: str, taken: dict[str, str]) -> str:
    """Return a name that is not taken: a second label that differs only in signs ends in Two."""
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = name + in_letters(str(number))
    return candidate


def _numbers(judged: JudgedStudy) -> Iterator[tuple[tuple[str, ...], str]]:
    design = judged.design
    for column in design.columns:
        for row in design.rows:
            for headline in judged.headlines:
                for measure in (headline, *judged.layers(headline)):
                    for ending, value in _of_place(judged, row, column, measure):
                        name = measure.name if measure == headline else measure.title
                        yield (row, column, name, *ending), value
            parameters = judged.n_parameters(row, column)
            if parameters:
                yield (row, column, "parameters"), with_prefix(parameters)
            gain = judged.spread(row, column, CONTEXT_GAIN).mean
            if judged.sensitivity and gain is not None and math.isfinite(gain):
                yield (row, column, "context gain"), _plain(f"{gain:.3f}")
        gap = judged.sensitivity[column].interval if column in judged.sensitivity else None
        if gap is not None and math.isfinite(gap.mean):
            for end, bound in (("", gap.mean), ("low", gap.low), ("high", gap.high)):
                if bound is not None:
                    yield (column, "control gap", end), _plain(f"{bound:.3f}")


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
