"""Guess the row and the seed of a run from its name or from the path of its file, as in standard-seed0."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from attractor.tables import TABLE_SUFFIXES, suffix_of
from attractor.verdict.formats import EVENTS
from attractor.verdict.observations import Seed

SEED = re.compile(r"(?:^|[-_. ])(?:seed|s)[-_= ]?(\d+)(?=$|[-_. ])", re.IGNORECASE)
NUMBERED = re.compile(r"(.+)[-_. /](\d+)")
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


def split_names(names: Iterable[str]) -> dict[str, tuple[str, Seed | None]]:
    """Return the row and the seed in each name. Where none has a seed, numbers at the ends are seeds if all rows have
    the same ones, counted from 0 or 1: as in base-0, base-1, mine-0 and mine-1."""
    split = {name: split_name(name) for name in names}
    ends = [end for name in split if (end := NUMBERED.fullmatch(name))]
    numbers: dict[str, set[int]] = defaultdict(set)
    for end in ends:
        numbers[end[1]].add(int(end[2]))
    different = {tuple(sorted(of_row)) for of_row in numbers.values()}
    if any(seed is not None for _, seed in split.values()) or len(ends) < len(split) or len(different) != 1:
        return split
    (of_row,) = different
    is_count = len(of_row) > 1 and of_row in (tuple(range(len(of_row))), tuple(range(1, len(of_row) + 1)))
    return {end[0]: (end[1], int(end[2])) for end in ends} if is_count and len(numbers) > 1 else split


def run_path(path: Path) -> Path:
    """Return what the files of one run have in common: its checkpoints, or its event files, lie in one folder."""
    parts = [part for part in path.absolute().parts if not CHECKPOINT.fullmatch(part) and not part.startswith(EVENTS)]
    last = parts[-1]
    name = last[: last.lower().rindex(suffix)] if (suffix := suffix_of(Path(last))) in SUFFIXES else last
    return Path(*parts[:-1], *([] if name.lower() in OF_ANY_RUN else [name]))


def names_in_paths(paths: Sequence[Path]) -> list[tuple[str, Seed | None]]:
    """Return row and seed of each file, as in NAME-seed0.log, NAME/seed_0/train.log and NAME.s0, or NAME-0.

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
    names = ["/".join(end) for end in ends]
    if set(seeds) != {None}:
        return list(zip(names, seeds, strict=True))
    split = split_names(names)
    return [split[name] for name in names]
