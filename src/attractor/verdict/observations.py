"""Numbers of finished runs by row and seed: what a verdict is drawn from.

A row is what is compared: a mechanism, an idea, a setting. Rows that were run with the same seeds are compared seed by
seed. A number that is not finite is an outcome, too: its run diverged.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Seed = int | str
Curve = tuple[tuple[float, float], ...]
"""The values of a run by step, in rising order of steps."""


class ObservedRun(NamedTuple):  # of which a table may have a million
    """The number of one run. `seconds` and `tokens` are those of the whole run, and `date` is when it ended."""

    value: float
    curve: Curve = ()
    seconds: float | None = None
    tokens: float | None = None
    date: str = ""
    kept: bool | None = None  # whether a loop of ideas kept this one as its next baseline

    @property
    def diverged(self) -> bool:
        return not math.isfinite(self.value)


@dataclass(frozen=True)
class Observations:
    """The runs of each row by seed, in the order of the rows. `seeded` is False where the data name no seeds: then the
    keys only count the runs of a row, and runs of two rows with equal keys have nothing in common."""

    rows: Mapping[str, Mapping[Seed, ObservedRun]]
    value: str = "value"  # what the numbers are, as the column of a table is called
    seeded: bool = True
    notes: tuple[str, ...] = field(default=())  # what was guessed or left out when the numbers were read

    def values(self, row: str) -> dict[Seed, float]:
        return {seed: run.value for seed, run in self.rows[row].items()}

    def __iter__(self) -> Iterator[tuple[str, Mapping[Seed, ObservedRun]]]:
        return iter(self.rows.items())
