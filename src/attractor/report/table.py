"""The comparison as a table: one set of cells for the console, for markdown and for the page."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from textwrap import wrap
from typing import Literal

from rich import box
from rich.console import Console, ConsoleOptions
from rich.table import Table
from rich.text import Text

from attractor.evidence.statistics import Interval
from attractor.numerals import in_bytes, with_prefix
from attractor.report.comparison import LEVEL, Comparison, Row, with_bounds

NARROW = 12  # letters: less is not legible
UNKNOWN = "–"  # noqa: RUF001  (an en dash is the sign for "none" in a table)


def cells(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """The headings, and the cells of each row."""
    arrow = "↓" if comparison.better == "lower" else "↑"
    headings = ["attention", "seeds", f"{comparison.metric_name} {arrow}", "difference (nats) ↓", "gain"]
    headings += ["params", "tok/s", "memory"]
    rows = [_row(row, comparison.baseline) for row in comparison.rows]
    if any(row.skipped_steps for row in comparison.rows):
        headings.append("skipped steps")
        rows = [[*texts, str(row.skipped_steps)] for texts, row in zip(rows, comparison.rows, strict=True)]
    return headings, rows


def caption(comparison: Comparison) -> list[str]:
    """What the numbers mean, and which runs are missing from them."""
    lines = [
        f"± and [ ] are t intervals over seeds, {LEVEL:.0%} each. Difference: validation loss minus that of "
        f"'{comparison.baseline}', paired by seed, below zero is better. "
        "Gain: what context is worth, the loss at the first positions minus that at the last, in nats."
    ]
    if len(comparison.rivals) > 1:
        lines.append(
            f"The differences of the {len(comparison.rivals)} rivals are {comparison.rival_level:.1%} intervals, "
            f"so that all of them together hold with {LEVEL:.0%} confidence (Bonferroni)."
        )
    for row in comparison.rows:
        if row.missing_seeds:
            seeds = ", ".join(map(str, row.missing_seeds))
            lines.append(f"Missing: '{row.label}' has no finished run of seed {seeds}.")
    return lines


def rich_table(comparison: Comparison) -> "InConsole":
    """For the console; legible in 100 columns."""
    return InConsole(*cells(comparison))


def markdown(comparison: Comparison) -> str:
    return in_markdown(*cells(comparison))


@dataclass(frozen=True)
class InConsole:
    """A table that goes on below, beside its labels again, where the console is too narrow for all of its columns."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    n_labels: int = 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        columns = [_Column(heading, [row[i] for row in self.rows]) for i, heading in enumerate(self.headings)]
        labels, numbers = columns[: self.n_labels], columns[self.n_labels :]
        room = options.max_width - sum(label.width for label in labels)
        while numbers:
            ends = accumulate(column.width for column in numbers)
            n_fitting = max(1, sum(end <= room for end in ends))
            yield _in_console([*labels, *numbers[:n_fitting]])
            numbers = numbers[n_fitting:]


class _Column:
    """A heading is broken where what stands below it is narrower."""

    def __init__(self, heading: str, cells: Sequence[str]) -> None:
        widest = max(map(len, cells), default=0)
        lines = wrap(heading, max(widest, NARROW), break_long_words=False)
        self.heading, self.cells = "\n".join(lines), cells
        self.width = 1 + max(widest, *map(len, lines), 0)


def _in_console(columns: Sequence[_Column]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for number, column in enumerate(columns):
        justify: Literal["left", "right"] = "right" if number else "left"
        table.add_column(Text(column.heading), justify=justify, overflow="fold", no_wrap=number > 0)
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(Text, row))
    return table


def in_markdown(headings: Sequence[str], rows: Sequence[Sequence[str]], n_texts: int = 1) -> str:
    rule = ["---"] * n_texts + ["---:"] * (len(headings) - n_texts)
    escaped = [[cell.replace("|", "\\|").replace("<", "&lt;") for cell in line] for line in (headings, *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (escaped[0], rule, *escaped[1:])) + "\n"


def _row(row: Row, baseline: str) -> list[str]:
    n, missing = len(row.runs), len(row.missing_seeds)
    return [
        row.label,
        f"{n} of {n + missing}" if missing else str(n),
        UNKNOWN if row.metric is None else with_half_width(row.metric),
        "baseline" if row.label == baseline else UNKNOWN if row.difference is None else with_bounds(row.difference),
        UNKNOWN if row.context_gain is None else f"{row.context_gain:.3f}",
        UNKNOWN if row.n_parameters is None else with_prefix(row.n_parameters),
        UNKNOWN if row.tokens_per_second is None else with_prefix(row.tokens_per_second),
        UNKNOWN if row.peak_memory_bytes is None else in_bytes(row.peak_memory_bytes),
    ]


def with_half_width(interval: Interval) -> str:
    """`5.312 ±0.021`: one digit fewer for each power of ten, since seeds never agree in six digits."""
    digits = 3 if abs(interval.mean) < 10 else 2 if abs(interval.mean) < 100 else 1
    half_width = "" if interval.half_width is None else f" ±{interval.half_width:.{digits}f}"
    return f"{interval.mean:.{digits}f}{half_width}"
