"""Write tables of texts, and verdicts, for the console at any width, and tables for markdown."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from textwrap import wrap

from rich.console import Console, ConsoleOptions, Group
from rich.table import Table
from rich.text import Text

from attractor.console import console_table
from attractor.verdict.outcome import N_TEXTS, Verdicts
from attractor.verdict.words import markdown_escaped

NARROW = 12  # letters; a narrower column is not legible
GAP = 2  # spaces between columns


@dataclass(frozen=True)
class InConsole:
    """A table for the console. If its columns do not fit, the others follow below, with the labels repeated."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    n_labels: int = 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        columns = [_Column(heading, [row[i] for row in self.rows]) for i, heading in enumerate(self.headings)]
        labels, numbers = columns[: self.n_labels], columns[self.n_labels :]
        room = options.max_width + GAP - sum(label.width for label in labels)
        while numbers:
            ends = accumulate(column.width for column in numbers)
            n_fitting = max(1, sum(end <= room for end in ends))
            yield _in_console(labels, numbers[:n_fitting])
            numbers = numbers[n_fitting:]


class _Column:
    """A column, whose heading is broken into lines if its cells are narrower."""

    def __init__(self, heading: str, cells: Sequence[str]) -> None:
        widest = max(map(len, cells), default=0)
        lines = wrap(heading, max(widest, NARROW), break_long_words=False)
        self.heading, self.cells = "\n".join(lines), cells
        self.width = GAP + max(widest, *map(len, lines), 0)


def _in_console(labels: Sequence[_Column], numbers: Sequence[_Column]) -> Table:
    columns = [*labels, *numbers]
    left = [column.heading for column in labels]
    table = console_table([column.heading for column in columns], left, padding=(0, 1, 0, 0))
    for column in table.columns[1:]:
        column.no_wrap = True
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(Text, row))
    return table


def on_console(verdicts: Verdicts) -> Group:
    """Return the table of verdicts and its sentences. `Verdicts` writes its other forms itself."""
    return Group(InConsole(*verdicts.table(), n_labels=N_TEXTS), "", *map(Text, verdicts.sentences()))


def in_markdown(headings: Sequence[str], rows: Sequence[Sequence[str]], n_texts: int = 1) -> str:
    rule = ["---"] * n_texts + ["---:"] * (len(headings) - n_texts)
    lines = (map(markdown_escaped, headings), rule, *(map(markdown_escaped, row) for row in rows))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
