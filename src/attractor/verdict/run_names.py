"""Guess the row and the seed of a run from its name or from the path of its file, as in standard-seed0."""

import re
from collections.abc import Sequence
from pathlib import Path

from attractor.tables import TABLE_SUFFIXES, suffix_of
from attractor.verdict.formats import EVENTS
from attractor.verdict.observations import Seed

SEED = re.compile(r"(?:^|[-_. ])(?:seed|s)[-_= ]?(\d+)(?=$|[-_. ])", re.IGNORECASE)
CHECKPOINT = re.compile(r"checkpoint-\d+")
SUFFIXES = (".log", ".txt", ".out", *TABLE_SUFFIXES)
OF_ANY_RUN = {"trainer_state", "metrics", "train", "training", "log", "logs", "output", "stdout", "out", "history"}


def seed_of(text: str) -> Seed:
    """Return a seed as an integer where it is one: pandas writes seeds as 0.0 where one is missing."""
    try:
        return int(float(text)) if float(text).is_integer() else text
    except (ValueError, OverflowError):
        return text


def split_name(name: str) -> tuple[str, Seed | None]:
    """Return the row and the seed in a name. A name without a seed is a row."""
    match = SEED.search(name)
    if match is None:
        return name, None
    return (name[: match.start()] + name[match.end() :]).strip("-_. "), int(match[1])


def run_path(path: Path) -> Path:
    """Return what the files of one run have in common: its checkpoints, or its event files, lie in one folder."""
    parts = [part for part in path.absolute().parts if not CHECKPOINT.fullmatch(part) and not part.startswith(EVENTS)]
    last = parts[-1]
    name = last[: last.lower().rindex(suffix)] if (suffix := suffix_of(Path(last))) in SUFFIXES else last
    return Path(*parts[:-1], *([] if name.lower() in OF_ANY_RUN else [name]))


def names_in_paths(paths: Sequence[Path]) -> list[tuple[str, Seed | None]]:
    """Return row and seed of each file, as in NAME-seed0.log, NAME/seed_0/train.log and NAME.s0.

    The row is what distinguishes the paths once seeds are removed, or the name beside the seed where nothing does.
    """
    seeds: list[Seed | None] = []
    parts_of: list[list[str]] = []
    beside_seed: list[str] = []
    for path in paths:
        parts = list(run_path(path).parts)
        place = next((n for n in reversed(range(len(parts))) if SEED.search(parts[n])), len(parts))
        name, seed = split_name(parts[place]) if place < len(parts) else ("", None)
        parts[place : place + 1] = [name] if name else []
        seeds.append(seed)
        beside_seed.append(name or parts[place - 1])
        parts_of.append(parts)
    differing = [n for n, parts in enumerate(zip(*parts_of, strict=False)) if len(set(parts)) > 1]
    if not differing or (first := differing[0]) >= min(map(len, parts_of)):
        return list(zip(beside_seed, seeds, strict=True))
    ends = [parts[first:] for parts in parts_of]
    while all(len(end) > 1 and end[-1] == ends[0][-1] for end in ends):
        ends = [end[:-1] for end in ends]
    return [("/".join(end), seed) for end, seed in zip(ends, seeds, strict=True)]
