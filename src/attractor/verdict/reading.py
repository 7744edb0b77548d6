"""Read the observations of a verdict from files and folders: tables, exports of trackers, and logs of trainers.

What the files do not say is guessed from the names of columns and paths. Each guess is a note, and an option replaces
it. Two guesses that are equally good are an error, which names both.
"""

import gc
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attractor.errors import InputError, require
from attractor.tables import Cell, Table, as_cell, number, shown, stack
from attractor.verdict.formats import EVENTS, NUMBER, ReadFile, compiled, is_pattern, read_file
from attractor.verdict.observations import Curve, Observations, ObservedRun, Seed
from attractor.verdict.race_folder import PLAN
from attractor.verdict.run_names import SEED, names_in_paths, run_path, seed_of, split_names

WORDS = {  # names of columns as `_plain` writes them, of which the first that occurs is taken, and words in them
    "row": (
        "row method mechanism variant idea arm condition treatment attention model config experiment run_group group "
        "name run_name runname run label"
    ),
    "seed": "seed random_seed run_seed rng_seed train_seed manual_seed global_seed",
    "step": "step global_step iter iteration iterations update tokens n_tokens tokens_seen total_tokens epoch",
    "tokens": "tokens n_tokens tokens_seen total_tokens",
    "seconds": "seconds train_seconds wall_seconds runtime train_runtime duration elapsed wall_time",
    "date": "date datetime timestamp created created_at start_time end_time",
    "state": "status state",
    "kept": "kept keep accepted status",
}
COSTS = {"seconds", "tokens"}
COLUMNS = {what: words.split() for what, words in WORDS.items()}
KNOWN = {name for names in COLUMNS.values() for name in names}
SETTINGS = ("params.", "tags.", "config.")  # begin the names of columns that no run measured
METRIC = re.compile(
    r"(.*_)?(loss|bpb|ppl|perplexity|acc|accuracy|score|error|nll|f1|bleu|mse|mae|rmse|auc|reward|metric|value)"
    r"(_(val|valid|validation|eval|test|train))?"
)
HELD_OUT = re.compile(r"(^|_)(val|valid|validation|eval|evaluation|test|heldout|dev)(_|$)")
TRAINING = re.compile(r"(^|_)(train|training)(_|$)")
FAILED = re.compile(r"crash(ed)?|fail(ed|ure)?|error|killed|diverged|oom", re.IGNORECASE)
UNDER_WAY = re.compile(r"running|pending|queued|scheduled|preempt(ed|ing)|unfinished|in.progress", re.IGNORECASE)
KEPT = {"keep": True, "kept": True, "true": True, "yes": True, "1": True}
KEPT |= {"discard": False, "discarded": False, "false": False, "no": False, "0": False}
SEED_NAME = re.compile(r"(?:seed|s)?[-_= ]?(\d+)", re.IGNORECASE)
KINDS = (  # of files that a folder may hold beside each other: the first kind that occurs is read
    r"trainer_state\.json",
    rf"{re.escape(EVENTS)}.*",
    r"results.*\.json",
    r".*\.(csv|tsv|parquet|jsonl|ndjson)(\.gz)?",
    r".*\.(log|txt|out)(\.gz)?",
    r".*\.json(\.gz)?",
    r".*\.md",
)
MOST_FILES = 10_000


def read_observations(
    paths: Sequence[Path | str],
    *,
    row: str | None = None,
    seed: str | None = None,
    value: str | None = None,
    step: str | None = None,
) -> Observations:
    """Return what files and folders hold, by row and seed.

    `row`, `seed`, `value` and `step` name columns. A regular expression with one group in their place is applied to the
    path of each file (`row`, `seed`) or to each line of a log (`value`, `step`).
    """
    notes: list[str] = []
    collects = gc.isenabled()
    gc.disable()  # the search for circular references, which nothing here makes, doubles the time of a large table
    try:
        files = _read_files(_files([Path(path) for path in paths], notes), value, step, notes)
        return _observations(files, notes, row, seed, value, step)
    finally:
        if collects:
            gc.enable()


def observations_of_columns(
    columns: Mapping[str, Sequence[Any]],
    *,
    row: str | None = None,
    seed: str | None = None,
    value: str | None = None,
    step: str | None = None,
) -> Observations:
    """Return what columns of equal length hold, by row and seed, as a file of these columns would be read."""
    lengths = {len(cells) for cells in columns.values()} or {0}
    require(len(lengths) == 1, "columns", "equally long", sorted(lengths), "fill them with None")
    place = Path("the table")
    table = Table({name: list(map(as_cell, cells)) for name, cells in columns.items()}, ((place, lengths.pop()),))
    require(len(table) > 0, "data", "a table with rows", "an empty one", "give one line for each run")
    return _observations([ReadFile(place, "table", table, one_run=False)], [], row, seed, value, step)


def _observations(
    files: Sequence[ReadFile], notes: list[str], row: str | None, seed: str | None, value: str | None, step: str | None
) -> Observations:
    if row is value is step is None:
        files = [replace(file, table=_one_run_a_line(file.table, notes)) for file in files]
    table = stack([file.table for file in files])
    by_place = {str(place): name for place, name in enumerate(table.columns, start=1)}
    row, seed, value, step = (
        name if name is None or name in table.columns else by_place.get(name, name) for name in (row, seed, value, step)
    )
    if row is not None and row not in table.columns and {*(parts := row.split(","))} <= table.columns.keys():
        names_of_row = zip(*(_filled(table, part) for part in parts), strict=True)
        table = Table({**table.columns, row: [", ".join(cells) for cells in names_of_row]}, table.files)
    value_column = _value_column(table, value, {row, seed, step})
    in_lines = is_pattern(step) and step not in table.columns  # the reader of logs made a column of the steps
    step_column = _column(table, "step", None if in_lines else step, but=value_column)
    names, seeds, guesses = _names_and_seeds(files, table, row, seed, value_column, step_column)
    guesses += [f"value: {shown(value_column)}"] + ([f"step: {shown(step_column)}"] if step_column else [])
    notes.append(", ".join(guesses))
    lines = _Lines.of(table, value_column, step_column, files)
    if lines.n_failed:
        notes.append(
            f"lines with a state such as crashed, whose values count as nan, whatever they say: {lines.n_failed}"
        )
    if lines.under_way:
        notes.append(f"lines with a state such as running, left out until their runs end: {len(lines.under_way)}")
    keys: Sequence[Any] = seeds or (lines.paths if lines.steps else range(len(table)))  # without seeds a line is a run
    grouped: dict[str, dict[Any, list[int]]] = defaultdict(lambda: defaultdict(list))
    for n, (name, key) in enumerate(zip(names, keys, strict=True)):
        if n not in lines.under_way:
            grouped[name][key].append(n)
    require(bool(grouped), "data", "those of a run that has ended", "runs under way alone", "wait until one ends")
    rows: dict[str, dict[Seed, ObservedRun]] = {
        name: {key if seeds else n: lines.run(name, key if seeds else None, of_run) for n, (key, of_run) in runs}
        for name, runs in ((name, enumerate(of_row.items())) for name, of_row in grouped.items())
    }
    return Observations(rows, value_name(value_column), seeds is not None, tuple(notes))


# Files


def _files(paths: Sequence[Path], notes: list[str]) -> list[tuple[Path, bool]]:
    """Return the files to read, and whether each was named rather than found in a folder."""
    files: list[tuple[Path, bool]] = []
    for path in paths:
        if not path.is_dir():
            files.append((path, True))
            continue
        inside = _files_below(path)
        of_kinds = ([file for file in inside if re.fullmatch(kind, file.name, re.IGNORECASE)] for kind in KINDS)
        of_kind = next(filter(None, of_kinds), [])
        require(bool(of_kind), "a folder", "one that holds tables or logs", str(path), "name the files themselves")
        files += [(file, False) for file in of_kind]
        notes.append(f"{len(of_kind)} of {len(inside)} files in '{path}' are read, such as '{of_kind[0].name}'")
    require(bool(files), "paths", "at least one file or folder", [], "give a table or logs")
    if race := next((file.parent for file, _ in files if (file.parent / PLAN).is_file()), None):
        notes.append(f"'{race}' holds a race, whose looks are not counted here; its verdict.html counts them")
    return files


def _files_below(folder: Path) -> list[Path]:
    """Return the regular files below a folder, seed10 after seed9. Links to folders, which may lead back, are none."""
    files: list[Path] = []
    for place, _, names in os.walk(folder):
        files += (file for name in names if (file := Path(place, name)).is_file())
        require(
            len(files) <= MOST_FILES, "a folder", f"one of at most {MOST_FILES:,} files", str(folder), "give a part"
        )
    return sorted(files, key=lambda path: re.sub(r"\d+", lambda digits: digits[0].zfill(20), str(path)))


def _read_files(
    paths: Sequence[tuple[Path, bool]], value: str | None, step: str | None, notes: list[str]
) -> list[ReadFile]:
    """Read the files. Beside logs that have values, a log without any is a run that failed."""
    attempts = [(path, named, read_file(path, value, step)) for path, named in paths]
    first = next((file for *_, file in attempts if file is not None), None)
    if first is None:
        path = paths[0][0]
        require(path.stat().st_size > 0, "input", "a table or a log", str(path), "it is empty; give one with content")
        require(
            value is None, "value", f"in a line of '{path}'", value, "give what stands there, its number in a group"
        )
        how = "say how it writes the value, as by --value 'val_loss:([0-9.]+)'"
        raise InputError(f"input must be a table or the log of a known program, got '{path}'; {how}")
    files, n_passed_over = [], 0
    for path, named, file in attempts:
        if file is not None:
            files.append(file)
        elif first.one_run and (named or SEED.search(path.stem) or SEED.search(path.parent.name)):
            failed = Table({next(iter(first.table.columns)): [None]}, ((path, 1),))
            files.append(ReadFile(path, first.format, failed, one_run=True))
            notes.append(f"'{path}' has no value: its run counts as failed")
        else:
            n_passed_over += 1
    for format in dict.fromkeys(file.format for file in files):
        alike = [file for file in files if file.format == format]
        notes.append(f"{len(alike)} files are read as {format}" if len(alike) > 1 else f"'{alike[0].path}': {format}")
    if n_passed_over:
        notes.append(f"{n_passed_over} files are passed over, since no reader recognises them")
    return files


# Columns


def _plain(name: str) -> str:
    """Return a column's name for comparison: `metrics.val/loss` is val_loss, and `_step` is step."""
    name = re.sub(r"^(metrics|params|config|summary|tags(\.mlflow)?)[./]", "", name)
    return re.sub(r"[\W_]+", "_", name.lower()).strip("_")


def _column(table: Table, what: str, given: str | None = None, but: str = "", varied: bool = False) -> str | None:
    """Return the column that an option names, or else one with a usual name, if possible one that varies."""
    if given is not None:
        is_column = given in table.columns
        require(is_column or is_pattern(given), what, "a column", given, f"the columns are {_listed(table.columns)}")
        return given if is_column else None
    plain = {_plain(name): name for name in reversed(list(table.columns)) if name != but}
    usual = [plain[name] for name in COLUMNS[what] if name in plain]
    filled = [name for name in usual if any(cell not in (None, "") for cell in table.columns[name])]
    varied_ones = [name for name in filled if varied and len(set(table.columns[name])) > 1]
    return next(iter([*varied_ones, *filled]), None)


def _one_run_a_line(table: Table, notes: list[str]) -> Table:
    """Return a table with a line for each run of one with a column for each seed, or for each row behind the seeds."""
    (first, cells), *columns = table.columns.items()
    seeds = [SEED_NAME.fullmatch(name) for name, _ in columns]
    n, parts = len(table), list[tuple[Sequence[Cell], ...]]()
    is_index = first == "column 1" and [*map(str, cells)] == [*map(str, range(n))]  # pandas writes one without a name
    is_seed = is_index or _plain(first) in COLUMNS["seed"]
    if len(columns) < 2:
        return table
    if all(seeds) and first not in cells and not all(re.fullmatch(NUMBER, str(cell), re.IGNORECASE) for cell in cells):
        what = "seed"
        parts = [(cells, [seed[1]] * n, numbers) for seed, (_, numbers) in zip(seeds, columns, strict=True) if seed]
    elif is_seed and all(_may_be_of_a_row(table, name) for name, _ in columns):
        what = "row"
        parts = [([name] * n, cells, numbers) for name, numbers in columns]
    else:
        return table
    if (note := f"table with a column for each {what}") not in notes:
        notes.append(note)
    return stack([Table(dict(zip(("row", "seed", "value"), part, strict=True)), table.files) for part in parts])


def _may_be_of_a_row(table: Table, name: str) -> bool:
    """Whether a column may hold what was measured of one row: fractions that vary, under no name of a metric."""
    plain = _plain(name)
    if METRIC.fullmatch(plain) or plain in KNOWN or not _holds_numbers(table, name):
        return False
    numbers = {n for n in table.numbers(name, strict=False) if n is not None}
    return len(numbers) > 1 and any(n % 1 for n in numbers)


def _value_column(table: Table, value: str | None, taken: set[str | None]) -> str:
    """Return the column of values: the given one, the only one that names a held-out metric, or the only metric."""
    columns = _listed(table.columns)
    if value is not None:
        require(value in table.columns, "value", "a column", value, f"the columns are {columns}")
        return value
    by_rank: dict[int, list[str]] = {}
    for name in table.columns:
        plain = _plain(name)
        if name in taken or name.startswith(SETTINGS) or plain in KNOWN or not _holds_numbers(table, name):
            continue
        rank = 0 if HELD_OUT.search(plain) else 2 if TRAINING.search(plain) else 1
        rank = rank if METRIC.fullmatch(plain) else 3
        by_rank.setdefault(rank, []).append(name)
    metric = next((name for name in table.columns if name not in taken and METRIC.fullmatch(_plain(name))), None)
    if not by_rank and metric is not None:
        return metric  # whoever reads its numbers names the cell that is none
    if not by_rank:
        raise InputError(f"a column must hold the values, and none seems to; give --value NAME, one of {columns}")
    best = by_rank[min(by_rank)]
    if len(best) > 1:
        raise InputError(
            f"value must be one column, and {_listed(best)} could be it; give --value NAME, "
            "or a first column called seed if each is a row"
        )
    return best[0]


def _holds_numbers(table: Table, name: str) -> bool:
    """Whether the first cell that is not empty holds a number."""
    try:
        return next((n for cell in table.columns[name] if (n := number(cell)) is not None), None) is not None
    except ValueError:
        return False


def _listed(names: Iterable[str]) -> str:
    some = [shown(name) for name in names]
    return ", ".join(some[:8]) + (f" and {len(some) - 8} more" if len(some) > 8 else "")


def value_name(column: str) -> str:
    """Return the name of a value; that of a regular expression is the last word before its group."""
    words = re.findall(r"[A-Za-z]\w*", column[: column.find("(")]) if is_pattern(column) else [column]
    return words[-1] if words else "value"


# Rows and seeds


def _names_and_seeds(
    files: Sequence[ReadFile], table: Table, row: str | None, seed: str | None, value: str, step: str | None
) -> tuple[list[str], list[Seed] | None, list[str]]:
    """Return row and seed of each line of the table, and in words where they were found. Seeds may be absent."""
    row_column = _column(table, "row", row, but=value, varied=True)
    seed_column = _column(table, "seed", seed, but=value)
    in_paths = names_in_paths([file.path for file in files])
    if row_column is not None:
        names, guesses = _filled(table, row_column), [f"row: {shown(row_column)}"]
    else:
        of_files = [name for name, _ in in_paths] if row is None else _parts("row", row, files)
        names, guesses = _by_line(of_files, files), ["row: from the names of the files"]
    if seed is not None and seed_column is None:
        return names, _by_line(map(seed_of, _parts("seed", seed, files)), files), guesses
    if seed is None and row_column is not None and row is None:
        split = split_names(dict.fromkeys(names))
        all_split = all(name and number is not None for name, number in split.values())
        of_seed = names if seed_column is None else table.columns[seed_column]
        if all_split and len(set(zip(names, of_seed, strict=True))) == len(split):
            seeds: list[Any] = [split[name][1] for name in names]
            return (
                [split[name][0] for name in names],
                seeds,
                [f"row and seed: from {shown(row_column)}, as {shown(names[0])}"],
            )
    one_name = len(set(names)) == 1 and (step is None or len(set(table.columns[step])) == 1)
    if row is None and seed_column is not None and (one_name or len(set(names)) == len(names)):
        settings = _settings(table, {row_column, seed_column, value}, table.columns[seed_column])
        if len(settings) == 1:
            names = _filled(table, settings[0])
            guesses = [f"row: {shown(settings[0])}, which alone tells runs of a seed apart"]
        elif settings:
            guesses.append(f"or --row {_listed(settings)}, which tell runs of a seed apart, too")
    if seed_column is not None:
        cells = _filled(table, seed_column)
        by_text = {cell: seed_of(cell) for cell in dict.fromkeys(cells)}
        return names, [by_text[cell] for cell in cells], [*guesses, f"seed: {shown(seed_column)}"]
    of_paths = [number for _, number in in_paths if number is not None]
    if len(of_paths) == len(files) and (row_column is None or len(files) > 1):
        return names, _by_line(of_paths, files), [*guesses, "seed: from the names of the files"]
    return names, None, [*guesses, "no seeds"]


def _settings(table: Table, but: set[str | None], seeds: Sequence[Any]) -> list[str]:
    """Return the columns that repeat over seeds, and tell all runs of one seed apart: what may have been compared."""
    return [
        name
        for name, cells in table.columns.items()
        if name not in but and _plain(name) not in KNOWN and not METRIC.fullmatch(_plain(name))
        if 1 < len(set(cells)) < len(cells) == len(set(zip(cells, seeds, strict=True))) and not {None, ""} & set(cells)
    ]


def _by_line(of_files: Iterable[Any], files: Sequence[ReadFile]) -> list[Any]:
    """Repeat what holds for each file for each of its lines."""
    return [item for item, file in zip(of_files, files, strict=True) for _ in range(len(file.table))]


def _filled(table: Table, column: str) -> list[str]:
    texts = table.texts(column)
    if None in texts:
        place = table.place(texts.index(None))
        raise InputError(f"column {shown(column)} must be filled, and in {place} it is empty; fill the cell")
    return texts  # type: ignore[return-value]


def _parts(option: str, pattern: str, files: Sequence[ReadFile]) -> list[str]:
    matches = [(file.path, compiled(option, pattern).search(file.path.as_posix())) for file in files]
    if other := next((path for path, match in matches if match is None), None):
        raise InputError(
            f"{option} must match the path of each file, and {shown(pattern)} is not in '{other}'; mend it"
        )
    return [match[1] for _, match in matches if match is not None]


# Runs


@dataclass(frozen=True)
class _Lines:
    """The columns from which runs are made, line by line. An optional column that is absent is empty."""

    table: Table
    paths: Sequence[Path]  # of the run in whose file a line stands
    values: Sequence[float | None]
    steps: Sequence[float | None]
    of_run: Mapping[str, Sequence[Any]]  # by the name of a field of a run: seconds, tokens, date, kept
    n_failed: int
    under_way: frozenset[int]
    in_order: bool  # the files are logs, in which the later of two values for one step counts

    @classmethod
    def of(cls, table: Table, value: str, step: str | None, files: Sequence[ReadFile]) -> "_Lines":
        guessed = {what: name for what in COLUMNS if (name := _column(table, what, but=value))}
        of_run: dict[str, Sequence[Any]] = {
            what: table.numbers(guessed[what], strict=False) for what in guessed.keys() & COSTS
        }
        if "date" in guessed:
            of_run["date"] = [date or "" for date in table.texts(guessed["date"])]
        if "kept" in guessed:
            of_run["kept"] = [KEPT.get(word.strip().lower()) if word else None for word in table.texts(guessed["kept"])]
        states = table.texts(guessed["state"]) if "state" in guessed else []
        failed = [n for n, state in enumerate(states) if state is not None and FAILED.fullmatch(state)]
        values = table.numbers(value)
        for n in failed:
            values[n] = math.nan
        return cls(
            table,
            _by_line([run_path(file.path) for file in files], files),
            values,
            [] if step is None else table.numbers(step),
            of_run,
            len(failed),
            frozenset(n for n, state in enumerate(states) if state is not None and UNDER_WAY.fullmatch(state)),
            all(file.one_run for file in files),
        )

    def run(self, name: str, seed: Seed | None, lines: Sequence[int]) -> ObservedRun:
        """Return the run on some lines. Lines without a value lie between two measurements."""
        value = self.values[lines[0]]
        if len(lines) == 1 and not self.of_run and not self.steps:
            return ObservedRun(math.nan if value is None else value)
        measured = [(n, value) for n in lines if (value := self.values[n]) is not None]
        step = self.steps[measured[0][0]] if self.steps and measured else None
        has_steps = len(measured) > 1 or (step is not None and math.isfinite(step))
        curve = self._curve(name, seed, measured) if has_steps else ()
        value = curve[-1][1] if curve else measured[0][1] if measured else None
        last = {
            what: next((cell for n in reversed(lines) if (cell := cells[n]) is not None), cells[lines[-1]])
            for what, cells in self.of_run.items()
        }
        return ObservedRun(math.nan if value is None else value, curve, **last)

    def _curve(self, row: str, seed: Seed | None, measured: Sequence[tuple[int, float]]) -> Curve:
        name = shown(row) + ("" if seed is None else f" with seed {shown(seed)}")
        if not self.steps:
            raise InputError(
                f"a row must have one value for each seed, and {name} there are {len(measured)}, which are no repeats; "
                "give --step NAME if they are steps, another --row (two as A,B) if they are rows, or keep one of them"
            )
        curve: dict[float, tuple[float, Path]] = {}
        for n, value in measured:
            step, path = self.steps[n], self.paths[n]
            if step is None or not math.isfinite(step):
                raise InputError(f"step must be a number, and {self.table.place(n)} has a value and none; fill it in")
            if step in curve and not (self.in_order and curve[step][1] == path):
                raise InputError(
                    f"a run must have one value at each step, and {name} has two at step {step:g} "
                    f"({self.table.place(n)}); give --seed or another --row, so that two runs are told apart"
                )
            curve[step] = (value, path)
        return tuple((step, value) for step, (value, _) in sorted(curve.items()))
