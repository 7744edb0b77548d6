"""A claim of a paper: what it says, the figure that the paper prints, and the rule that judges it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attractor.claims.comparisons import Pair
from attractor.claims.rules import SHARE
from attractor.claims.verdicts import Rule
from attractor.runs.study_record import Published


@dataclass(frozen=True)
class Claim:
    id: str
    statement: str
    published: str
    study: str | None = None  # a file in studies/, beside the file of the claims
    rule: Rule | None = None  # a claim without a rule has no study yet


@dataclass(frozen=True)
class Paper:
    """A paper with its claims as its folder states them. `key` is the name by which code cites it."""

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
    """Return a comparison with its published effect. The margin is a quarter of it: a lead that is shown to be smaller
    is not the claimed one."""
    return Pair(of, against, effect, SHARE * abs(effect), column)
