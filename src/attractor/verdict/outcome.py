"""A verdict on a row: better, worse, no difference or undecided, with the numbers and the words that it rests on."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from attractor.verdict.observations import Observations, Seed

Outcome = Literal["better", "worse", "no difference", "undecided"]
Design = Literal["paired", "unpaired", "one run a row", "against a number"]


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
    further_seeds: int | None = None  # more seeds that would decide about the margin with a power of 80%
    lost: Mapping[Seed, str] = field(default_factory=dict)  # seeds that cannot be compared, and why: diverged, missing


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
