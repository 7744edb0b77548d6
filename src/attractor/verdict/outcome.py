"""A verdict on a row: better, worse, no difference or undecided, with the numbers and the words that it rests on."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any, Literal

from attractor.verdict.intervals import Interval
from attractor.verdict.observations import Observations, Seed
from attractor.verdict.power import POWER
from attractor.verdict.words import (
    UNKNOWN,
    abridged,
    html_table,
    latex_escaped,
    latex_number,
    latex_table,
    on_one_line,
    shown_p,
    shown_size,
    signed,
    text_table,
)

Outcome = Literal["better", "worse", "lower", "higher", "no difference", "undecided"]
"""The word for a difference. A quantity without a better side is lower or higher."""
Design = Literal["paired", "unpaired", "one run a row", "against a number"]
N_TEXTS = 2  # the columns of the table that hold words
MOST_LISTED = 12  # seeds that a sentence names
LONGEST = 24  # characters of a name in a caption


@dataclass(frozen=True)
class Verdict:
    """What the numbers of a row show against the baseline. `difference` is row minus baseline, in the unit of the
    values; a number that the data do not allow is None. `adjusted_p` counts all ideas and all planned looks."""

    row: str
    outcome: Outcome
    reason: str  # one or two sentences
    design: Design
    n: int  # pairs of seeds, or runs of the row where it is not paired
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    adjusted_p: float | None = None
    spread: float | None = None  # standard deviation of the paired differences, or of the row's runs
    correlation: float | None = None  # between the paired runs of the row and of the baseline
    detectable: float | None = None  # the smallest true difference that so many runs show with a power of 80%
    further_seeds: int | None = None  # that show the margin with a power of 80%
    p_within: float | None = None  # of "a difference of the margin or more", without a correction
    adjusted_beyond: float | None = None  # of "a difference within the margin", corrected as `adjusted_p` is
    lost: Mapping[Seed, str] = field(default_factory=dict)  # seeds that cannot be compared, and why: diverged, missing

    @property
    def measured(self) -> Interval | None:
        """The difference with its interval; None where there is no number."""
        if self.difference is None or not math.isfinite(self.difference):
            return None
        return Interval(self.difference, self.low, self.high, self.n, level=0.95)

    @property
    def interval(self) -> str:
        """The difference with its interval in digits; empty where there is none."""
        return "" if self.measured is None else signed(self.measured)

    @property
    def sentence(self) -> str:
        """The reason, with the seeds that could not be compared."""
        seeds: dict[str, list[str]] = {}
        for seed, cause in self.lost.items():
            seeds.setdefault(cause, []).append(str(seed))
        parts = [
            f"{', '.join(of_cause[:MOST_LISTED])}{', ...' * (len(of_cause) > MOST_LISTED)} ({cause})"
            for cause, of_cause in seeds.items()
        ]
        lost = f" Not compared: seed{'s' * (len(self.lost) > 1)} {', '.join(parts)}." if parts else ""
        return on_one_line(self.reason + lost)


@dataclass(frozen=True)
class Verdicts:
    """The verdicts on all rows of a table but the baseline, with what was read, guessed and assumed."""

    observations: Observations
    baseline: str | None  # None where the rows are judged against a number
    verdicts: tuple[Verdict, ...]
    lower_is_better: bool
    level: float = 0.95  # the confidence of the intervals of single comparisons
    margin: float | None = None
    against: float | None = None
    tried: int = 1  # ideas that the correction counts
    looks: tuple[int, ...] = ()
    at: str = "last"
    notes: tuple[str, ...] = ()  # sentences that hold for all rows

    def __getitem__(self, row: str) -> Verdict:
        return next(verdict for verdict in self.verdicts if verdict.row == row)

    @property
    def rival(self) -> str:
        """What the rows are judged against: the baseline or the number."""
        return f"{self.against:g}" if self.baseline is None else on_one_line(self.baseline)

    def facts(self) -> dict[str, str]:
        """Return what the verdicts rest on: the quantity, its better side, and all that was declared."""
        runs = [run for _, of_row in self.observations for run in of_row.values()]
        n_diverged = sum(run.diverged for run in runs)
        better = "lower" if self.lower_is_better else "higher"
        stated = {
            "value": f"{on_one_line(self.observations.value)}, {better} is better",
            "at": on_one_line(self.at),
            "against" if self.baseline is None else "baseline": self.rival,
            "margin": "" if self.margin is None else f"{self.margin:g}",
            "ideas": str(self.tried),
            "looks": ", ".join(map(str, self.looks)),
            "runs": f"{len(runs):,}" + (f", {n_diverged:,} diverged" if n_diverged else ""),
        }
        return {name: fact for name, fact in stated.items() if fact}

    def notes_in_lines(self) -> list[str]:
        return list(map(on_one_line, (*self.observations.notes, *self.notes)))

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return headings, and the cells of each row. A column that would be empty is left out."""
        paired = [verdict.design == "paired" for verdict in self.verdicts]
        columns: dict[str, Sequence[str]] = {
            "row": [on_one_line(verdict.row) for verdict in self.verdicts],
            "outcome": [verdict.outcome for verdict in self.verdicts],
            f"difference [{self.level:.0%} interval]": [verdict.interval or UNKNOWN for verdict in self.verdicts],
            "p": [shown_p(verdict.p) or UNKNOWN for verdict in self.verdicts],
            "adjusted p": [shown_p(verdict.adjusted_p) or UNKNOWN for verdict in self.verdicts],
            "pairs" if all(paired) else "pairs or runs" if any(paired) else "runs": [str(v.n) for v in self.verdicts],
            "spread": [shown_size(verdict.spread) for verdict in self.verdicts],
            "correlation": [UNKNOWN if v.correlation is None else f"{v.correlation:.2f}" for v in self.verdicts],
            "detectable": [shown_size(verdict.detectable) for verdict in self.verdicts],
        }
        shown = {heading: cells for heading, cells in columns.items() if set(cells) != {UNKNOWN}}
        return list(shown), list(map(list, zip(*shown.values(), strict=True)))

    def sentences(self) -> list[str]:
        """Return the facts, a sentence or two for each row, and what was guessed or assumed for all rows."""
        facts = "; ".join(f"{name}: {fact}" for name, fact in self.facts().items())
        reasons = (f"{on_one_line(verdict.row)}: {verdict.outcome}. {verdict.sentence}" for verdict in self.verdicts)
        return [facts, *reasons, *self.notes_in_lines()]

    def __str__(self) -> str:
        return "\n".join([text_table(*self.table(), N_TEXTS), "", *self.sentences()])

    def _repr_html_(self) -> str:
        said = "".join(f"<p>{escape(sentence)}</p>\n" for sentence in self.sentences())
        return f"{html_table(*self.table(), N_TEXTS)}\n{said}"

    def to_latex(self, label: str = "tab:verdicts") -> str:
        """Return the table for a paper; its preamble needs booktabs."""
        headings, rows = self.table()
        caption = (
            f"Difference of {abridged(self.observations.value, LONGEST)} from {abridged(self.rival, LONGEST)}. "
            f"Adjusted p counts {self.tried} idea{'s' * (self.tried != 1)}. Detectable: what is shown with a power of "
            f"{POWER:.0%}."
        )
        escaped = [list(map(latex_escaped, row)) for row in rows]
        return latex_table(
            latex_escaped(caption),
            label,
            list(map(latex_escaped, headings)),
            [[*row[:N_TEXTS], *map(latex_number, row[N_TEXTS:])] for row in escaped],
            N_TEXTS,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "baseline": self.baseline,
            "against": self.against,
            "value": self.observations.value,
            "lower_is_better": self.lower_is_better,
            "margin": self.margin,
            "tried": self.tried,
            "looks": list(self.looks),
            "at": self.at,
            "level": self.level,
            "notes": [*self.observations.notes, *self.notes],
            "verdicts": [asdict(verdict) for verdict in self.verdicts],
        }
