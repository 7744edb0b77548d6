"""Write the command of a study for further seeds."""

import re
import shlex
from collections.abc import Sequence
from itertools import groupby

FEWEST = 4  # seeds of a comparison by default


def with_seeds(command: str, known: Sequence[int], n_seeds: int, only_new: bool = False) -> str:
    """Return the command for `n_seeds` seeds of the whole study: the known ones, unless `only_new`, and new ones.

    New seeds follow the largest known one. So a pilot, whose seeds begin at 100, never gets the seeds of its study.
    """
    first, kept = max(known, default=-1) + 1, [] if only_new else sorted(known)
    seeds = [*kept, *range(first, first + n_seeds - len(kept))]
    words = shlex.split(command)
    for option in ("--seeds", "--part"):
        words = _without(words, option, r"\d+([-/]\d+)?")
    for option in ("--rows", "--columns"):
        words = _without(words, option, r"(?!--).*")
    return shlex.join([*words, "--seeds", *in_ranges(seeds)])


def in_ranges(seeds: Sequence[int]) -> list[str]:
    """Return seeds as `--seeds` takes them, with 0-54 for seeds that follow one another."""
    runs = [list(run) for _, run in groupby(enumerate(seeds), key=lambda placed: placed[1] - placed[0])]
    return ["-".join(map(str, dict.fromkeys((run[0][1], run[-1][1])))) for run in runs]


def _without(words: list[str], option: str, value: str) -> list[str]:
    """Return the words of a command without an option and the words after it that match the pattern of its values."""
    start = next((n for n, word in enumerate(words) if word.split("=")[0] == option), len(words))
    end = next((n for n in range(start + 1, len(words)) if not re.fullmatch(value, words[n])), len(words))
    return [*words[:start], *words[end:]]
