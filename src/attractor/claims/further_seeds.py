"""Plan the next runs: how many seeds would decide an undecided comparison, and the command that runs them.

With the observed standard deviation of paired differences, n pairs show a difference D with a power of 80%. D is the
smallest difference that matters, where a study names one, or else the observed difference.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from attractor.verdict.intervals import Values, summary
from attractor.verdict.power import POWER, pairs_needed, power_of_pairs

MOST = 64  # seeds; where more are needed, a setting with less noise is the better way to an answer
FEWEST = 4  # seeds of a comparison by default


@dataclass(frozen=True)
class FurtherSeeds:
    """The number of paired seeds that would decide; `pairs` is None where more than MOST are needed."""

    pairs: int | None
    known: int
    margin: float | None

    def words(self, unit: str) -> str:
        goal = "decide" if self.margin is None else f"show a difference of {self.margin:g}{' ' if unit else ''}{unit}"
        if self.pairs is None:
            return f"more than {MOST} seeds would be needed to {goal}"
        further = self.pairs - self.known
        if further <= 0:
            return f"these seeds would {goal} with a chance of {POWER:.0%}"
        return f"{further} further seed{'s' * (further > 1)} would {goal}"


def further_seeds(differences: Values, margin: float | None, level: float) -> FurtherSeeds | None:
    """Plan further seeds for paired differences that show nothing at the error rate `level`.

    Return None where the differences have no finite spread above zero."""
    observed = summary(differences)
    spread = observed.standard_deviation
    if not spread or not spread < float("inf"):
        return None
    goal = abs(margin or observed.mean)
    power = power_of_pairs(spread, goal, MOST, level) or 0.0
    return FurtherSeeds(pairs_needed(spread, goal, level=level) if power >= POWER else None, observed.n, margin)


def with_seeds(command: str, known: Sequence[int], n_seeds: int, only_new: bool = False) -> str:
    """Return the command for `n_seeds` seeds of the whole study: the known ones unless `only_new`, and those that
    follow.

    New seeds follow the largest known one. So a pilot, whose seeds begin at 100, never gets the seeds of its study.
    """
    first, kept = max(known, default=-1) + 1, [] if only_new else sorted(known)
    seeds = [*kept, *range(first, first + n_seeds - len(kept))]
    words = shlex.split(command)
    for option in ("--seeds", "--part"):
        words = _without(words, option, r"\d+(/\d+)?")
    for option in ("--rows", "--columns"):
        words = _without(words, option, r"(?!--).*")
    return shlex.join([*words, "--seeds", *map(str, seeds)])


def _without(words: list[str], option: str, value: str) -> list[str]:
    """Return the words of a command without an option and the words after it that match the pattern of its values."""
    start = next((n for n, word in enumerate(words) if word.split("=")[0] == option), len(words))
    end = next((n for n in range(start + 1, len(words)) if not re.fullmatch(value, words[n])), len(words))
    return [*words[:start], *words[end:]]
