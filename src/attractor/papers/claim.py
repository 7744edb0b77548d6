"""A claim of a paper: what it says, the figure that the paper prints, and the rule that judges it.

Losses of language models are compared in nats per byte. A paper that prints perplexities of GPT-2's tokens claims

    effect = log(perplexity of one row / that of the other) / bytes per token of GPT-2's tokenizer            (1)

with the bytes per token measured on text of the kind that the paper trained on. Where a paper prints an effect, the
margin is a quarter of it: a lead that is shown to be smaller is not the claimed lead. Where the paper prints no effect,
the margin is MATTERS.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log

from attractor.claims.comparisons import Pair
from attractor.claims.rules import SHARE
from attractor.claims.verdicts import Rule
from attractor.runs.study_record import Published

BYTES_PER_TOKEN = {  # of GPT-2's tokenizer, on 20 to 30 MB of each kind of text (LOG.md, 2026-11-22)
    "encyclopedic": 4.56,
    "medical": 4.14,
    "heterogeneous": 4.22,
}
# In nats/byte: two per cent of GPT-2's perplexity, the least gain for which anybody would change an architecture.
MATTERS = 0.02 / BYTES_PER_TOKEN["encyclopedic"]


@dataclass(frozen=True)
class Claim:
    id: str
    statement: str
    published: str
    study: str | None = None  # a file in studies/
    rule: Rule | None = None  # a claim without a rule has no study yet


@dataclass(frozen=True)
class Paper:
    """A paper with its claims as this project states them. `key` is the name by which the code cites it."""

    key: str
    title: str
    authors: str
    year: int | None
    arxiv: str | None
    says: str  # what the paper contributes, in a sentence
    claims: tuple[Claim, ...]

    @property
    def citation(self) -> str:
        """The reference of the paper, without the parts that are unknown."""
        number = f"arXiv:{self.arxiv}" if self.arxiv else None
        return ". ".join(str(part) for part in (self.authors, self.title, self.year, number) if part) + "."


# As printed: a mean, its standard deviation and the number of seeds; the last two may be absent.
Figure = tuple[float, ...]
Figures = Mapping[str, Figure]  # by row


def by_column(rows: Sequence[str], columns: Mapping[str, Sequence[Figure]]) -> dict[str, dict[str, Figure]]:
    """Return a table's figures by column and row, from those of each column in the order of the rows."""
    return {column: dict(zip(rows, figures, strict=True)) for column, figures in columns.items()}


def published(figures: Figures, column: str = "", quantity: str = "", scale: float = 1.0) -> tuple[Published, ...]:
    """Return the figures of a table's column for a study; `scale` brings them into the unit of our runs."""
    entries = []
    for row, (mean, *spread) in figures.items():
        sd, n = spread if len(spread) == 2 else (None, None)
        sd, count = None if sd is None else sd * scale, None if n is None else int(n)
        entries.append(Published(row, column, mean * scale, sd, count, quantity))
    return tuple(entries)


def pair(of: str, against: str, effect: float, column: str = "") -> Pair:
    """Return a comparison with its published effect; the margin is a quarter of it."""
    return Pair(of, against, effect, SHARE * abs(effect), column)


def by_perplexity(
    table: Figures, of: Sequence[str], against: Sequence[str], column: str = "", text: str = "encyclopedic"
) -> tuple[Pair, ...]:
    """Return every row of `of` against every row of `against`, with the published effect in nats per byte (1)."""
    return tuple(
        pair(a, b, log(table[a][0] / table[b][0]) / BYTES_PER_TOKEN[text], column) for a in of for b in against
    )


def better(of: str, *against: str) -> tuple[Pair, ...]:
    """Return comparisons that are claimed without a figure: `of` is better by MATTERS."""
    return tuple(Pair(of, other, -MATTERS, MATTERS) for other in against)
