"""The record of a study: the cells of its table, each with its runs by seed.

A study's folder holds `study.json`: the design and, for every cell and seed, the key of a run in the pool of runs that
lies beside it. `StudyRecord.read` joins the two; `to_dict` is the small object that is kept in a folder `results`, and
`from_dict` reads it back, so that tables, pages and verdicts need no run folder once a record is stored.

    ROOT/runs/KEY/           a run folder; KEY is a hash of all that determines the run
    ROOT/STUDY-SCALE/        study.json, and the report

A comparison that was given a folder of its own keeps its pool inside that folder, so that it can be copied whole.
"""

import json
import math
import re
import warnings
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from os.path import normpath
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, Self

from attractor.errors import InputError, LeftOutWarning
from attractor.files import plain
from attractor.files.seals import read_sealed, sealed, unsealed
from attractor.runs import packed_record
from attractor.runs.configuration import dotted_fields
from attractor.runs.quantity import COMPUTED, LOSS_OF_VALIDATION, Number, Quantity
from attractor.runs.run_folder import DIVERGED, RunFolder
from attractor.verdict.sequential_rows import SequentialRows
from attractor.verdict.words import on_one_line

POOL = "runs"
RATES = "rates"  # ending of the name of a comparison's pilot, which chooses learning rates
# Endings of the names of a thorough comparison's further studies: the baseline at other lengths of training, rows at
# higher learning rates, at another size, and on a task of recall.
LADDER, HIGHER_RATES, OTHER_SIZE, RECALL = LEGS = ("ladder", "stability", "size", "recall")
RUNGS = {"half the steps": 0.5, "twice the steps": 2.0}  # rows of the ladder, in units of the comparison's steps
STUDY_FILE = "study.json"
HEATMAPS = "heatmaps"  # the probe with pictures of attention maps
PERCENT = "percent"  # in it, in place of `maps`: the thinned maps of a stored record
DYNAMICS, PORTRAIT = "dynamics", "portrait"  # the probe of recurrent models, and its picture of orbits
BY_HEAD = "trajectories_by_head"  # in a summary: numbers of the logits of every head, at every measurement
SPEEDS = "speeds.json"  # measured once: they decide configurations, and resuming must not change a study
PROBES_FILE = "probes.json"
FORMAT = 1
CORPUS_SIZES = re.compile(r"([\d,]+) bytes; ([\d,]+) training and ([\d,]+) validation tokens")  # `tasks/text.py`
BYTE_VOCABULARY = 320  # rows of an embedding for bytes (`corpus/tokenizer.py`)
BUDGETS = {
    "tokens": "equal tokens",
    "flops": "equal FLOPs",
    "wall": "equal wall clock",
    "parameters": "equal parameters and tokens",
    "free": "unequal budgets",
    "stored": "that of each run, as it was trained",
}


@dataclass(frozen=True)
class Published:
    """A figure as a paper prints it; `sd` and `n` are None where the paper omits them."""

    row: str
    column: str
    mean: float
    sd: float | None = None
    n: int | None = None
    quantity: str = ""  # empty: the first quantity of the design


@dataclass(frozen=True)
class Design:
    """The design of a study: what is compared. Rows and columns are labels in the order of the table."""

    name: str
    title: str
    question: str
    source: str  # the table or figure of a paper that it fills
    scale: str
    rows_name: str
    rows: tuple[str, ...]
    columns_name: str
    columns: tuple[str, ...]  # ("",) where the table has one
    seeds: tuple[int, ...]
    baseline: str
    control: str | None  # the row that attends to all positions alike, where the task is language
    budget: str
    quantities: tuple[Quantity, ...]
    published: tuple[Published, ...] = ()
    claims: tuple[str, ...] = ()
    command: str = ""
    margin: float | None = None  # the smallest difference that matters, in the unit of the first quantity
    looks: tuple[int, ...] = ()  # numbers of pairs at which rows are tested, as planned; none: one test of all seeds
    legs: tuple[str, ...] = ()  # the further studies of a thorough comparison, of LEGS

    @property
    def rivals(self) -> tuple[str, ...]:
        """The rows that are compared with the baseline."""
        return tuple(row for row in self.rows if row not in (self.baseline, self.control))

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in ("looks", "legs") or value}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        values = _in_single_lines(dict(stored))
        values["quantities"] = tuple(Quantity(**fields) for fields in values["quantities"])
        values["published"] = tuple(Published(**fields) for fields in values["published"])
        for name in ("rows", "columns", "seeds", "claims"):
            values[name] = tuple(values[name])
        for name in ("looks", "legs"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values)

    def refuse_unequal_tokens(self, of_rows: Iterable[tuple[str, int | None]]) -> None:
        """Refuse rows of one column that see different numbers of tokens, unless the budget allows that."""
        seen = {tokens: row for row, tokens in of_rows if tokens is not None}
        if len(seen) > 1 and self.budget not in ("flops", "wall", "free", "stored"):
            listed = ", ".join(f"'{row}' sees {tokens:,} tokens" for tokens, row in seen.items())
            raise InputError(
                f"budget must be equal within a table: {listed}; compare runs of one budget, or give the study "
                "budget='free', which is said in every table"
            )


def _in_single_lines(stored: Any) -> Any:
    """Return stored texts without line breaks and control characters: a record may come from anybody, and a text that
    begins a new line could leave the comment or the table cell in which a report writes it."""
    if isinstance(stored, str):
        return on_one_line(stored)
    if isinstance(stored, Mapping):
        return {name: _in_single_lines(value) for name, value in stored.items()}
    if isinstance(stored, list | tuple):
        return [_in_single_lines(value) for value in stored]
    return stored


@dataclass(frozen=True)
class Outcome:
    """One finished run."""

    seed: int
    key: str
    summary: dict[str, Any]
    probes: dict[str, Any]
    curve: tuple[tuple[int, float], ...]  # tokens and validation loss
    training: tuple[tuple[int, float], ...] = ()  # tokens and the mean training loss since the previous evaluation


@dataclass(frozen=True)
class Cell:
    row: str
    column: str
    config: dict[str, Any]  # the configuration of one of its runs; empty where no run finished
    outcomes: tuple[Outcome, ...]
    missing: tuple[int, ...]  # seeds without a finished run

    def by_seed(self, quantity: Quantity) -> dict[int, float]:
        """Return the quantity of every run that measured it, in the order of seeds."""
        return self._measured(quantity.number)

    def compared(self, quantity: Quantity) -> dict[int, float]:
        """Return by seed the numbers whose differences between rows are taken."""
        return self._measured(quantity.compared)

    def _measured(self, number_of: Callable[[Outcome], Number]) -> dict[int, float]:
        numbers = {outcome.seed: number_of(outcome) for outcome in self.outcomes}
        return {seed: number for seed, number in sorted(numbers.items()) if number is not None}

    @property
    def losses(self) -> dict[int, float]:
        return self.by_seed(LOSS_OF_VALIDATION)


@dataclass(frozen=True)
class StudyRecord:
    design: Design
    cells: tuple[Cell, ...]
    environments: dict[str, list[str]] = field(default_factory=dict)  # by field: every value that occurs in the runs
    looks: tuple[int, ...] = ()  # numbers of pairs at which the claim in hand was judged before (`claims/ledger.py`)
    legs: "Mapping[str, StudyRecord]" = field(default_factory=dict)  # the further studies of a thorough comparison

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """Read the record from a study's folder and its pool of runs. Its further studies have folders beside the
        pool."""
        record = cls.of_runs(*study_runs(folder))
        beside = pool_of(Path(folder)).parent
        folders = {leg: beside / further_name(record.design.name, leg) for leg in record.design.legs}
        legs = {leg: cls.read(place) for leg, place in folders.items() if (place / STUDY_FILE).exists()}
        return replace(record, legs=legs)

    @classmethod
    def of_runs(cls, design: Design, paths: Mapping[tuple[str, str], Mapping[int, Path]]) -> Self:
        """Make the record from a study's design and the folders of its runs, by row and column and then by seed."""
        environments: dict[str, set[str]] = {}
        undated = False  # whether a run does not say when it began
        cells = []
        for row in design.rows:
            for column in design.columns:
                outcomes: list[Outcome] = []
                config: dict[str, Any] = {}
                for seed, path in paths.get((row, column), {}).items():
                    if (read := _finished_run(seed, path)) is None:
                        continue
                    run_config, environment, run_outcome = read
                    outcomes.append(run_outcome)
                    config = config or run_config
                    undated = undated or "time" not in environment
                    for name, value in dotted_fields(environment).items():
                        values = value if isinstance(value, list) else [value]  # several where a record was continued
                        environments.setdefault(name, set()).update(str(v) for v in values if v is not None)
                missing = tuple(seed for seed in design.seeds if seed not in [o.seed for o in outcomes])
                cells.append(Cell(row, column, config, tuple(outcomes), missing))
        if undated:
            environments.pop("time", None)  # nobody knows when the first run began
        elif times := environments.get("time"):
            environments["time"] = {min(times), max(times)}  # when the first and the last run began
        listed = {name: sorted(values) for name, values in sorted(environments.items())}
        record = cls(design, in_one_unit(cells), listed)
        for column in design.columns:
            of_column = record.column(column)
            design.refuse_unequal_tokens(
                (cell.row, o.summary.get("tokens"))
                for cell in of_column
                for o in cell.outcomes
                if DIVERGED not in o.summary
            )
        record.refuse_missing_quantities()
        return record

    def cell(self, row: str, column: str = "") -> Cell:
        """Return the cell at a place, which is empty where the study does not have it."""
        return self._by_place.get((row, column)) or Cell(row, column, {}, (), self.design.seeds)

    @cached_property
    def _by_place(self) -> dict[tuple[str, str], Cell]:
        return {(cell.row, cell.column): cell for cell in self.cells}

    def column(self, column: str = "") -> Iterator[Cell]:
        return (cell for cell in self.cells if cell.column == column)

    @property
    def outcomes(self) -> Iterator[Outcome]:
        return (outcome for cell in self.cells for outcome in cell.outcomes)

    @property
    def finished(self) -> int:
        return sum(1 for _ in self.outcomes)

    @cached_property
    def loss_unit(self) -> str:
        """The unit in which the record's losses are compared (`runs/quantity.py`)."""
        if not any((cell.config.get("task") or {}).get("kind") == "text" for cell in self.cells):
            return "nats"
        return "nats/byte" if all("bytes_per_token" in outcome.summary for outcome in self.outcomes) else "nats/token"

    def sequential_rows(self) -> SequentialRows:
        """Return the planned tests of the first quantity, with the runs so far. Of a study with one column."""
        design, measure = self.design, self.design.quantities[0]
        margin = 0.0 if design.margin is None else measure.as_compared(design.margin)
        better: Literal["lower", "higher"] = "higher" if measure.better == "higher" and not measure.is_loss else "lower"
        rows = SequentialRows.of_equal_shares(
            design.baseline,
            design.rivals,
            design.seeds,
            margin,
            better=better,
            looks=design.looks,
            control=design.control,
        )
        for cell in self.cells:
            for seed, number in cell.compared(measure).items():
                rows.observe(cell.row, seed, number)
        return rows

    def refuse_missing_quantities(self) -> None:
        """Refuse a quantity that no run has, a mistake in the design. One that only some runs lack leaves a gap."""
        outcomes = list(self.outcomes)
        for quantity in self.design.quantities:
            if not outcomes or quantity.path in COMPUTED or quantity.path.startswith("probes."):
                continue  # some rows alone may have these, and none of their runs may have ended yet
            if not any(quantity.value(o) is not None or quantity.path in dotted_fields(o.summary) for o in outcomes):
                known = sorted(name for name in dotted_fields(outcomes[0].summary) if "seconds" not in name)
                raise InputError(
                    f"quantity '{quantity.name}' must be a figure that runs leave behind, and none has "
                    f"'{quantity.path}'; known: {', '.join(known)}"
                )

    def to_dict(self) -> dict[str, Any]:
        """Return the record as a dictionary. Pictures are thinned, since they would outweigh all else."""
        cells = [vars(cell) | {"outcomes": _stored_outcomes(cell.outcomes)} for cell in self.cells]
        stored = {"format": FORMAT, "design": self.design.to_dict(), "cells": cells, "environments": self.environments}
        return stored | ({"legs": {leg: record.to_dict() for leg, record in self.legs.items()}} if self.legs else {})

    def to_text(self) -> str:
        """Return the record as it is stored: one line of JSON in packed form, with a checksum."""
        return self._text

    @cached_property
    def _text(self) -> str:
        content = sealed(packed_record.packed(plain(self.to_dict())))
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        stored = unsealed(stored, "the record")
        if stored.get("format") == packed_record.FORMAT:
            stored = packed_record.unpacked(stored)
        elif stored.get("format") != FORMAT:
            raise InputError(
                f"format of a study's record must be {FORMAT} or {packed_record.FORMAT}, got {stored.get('format')}; "
                "install the version of attractor that stored it"
            )
        cells = tuple(
            Cell(
                _in_single_lines(cell["row"]),
                _in_single_lines(cell["column"]),
                cell["config"],
                tuple(
                    Outcome(
                        stored["seed"],
                        stored["key"],
                        with_bytes_per_token(stored["summary"], cell["config"]),
                        stored["probes"],
                        tuple((tokens, loss) for tokens, loss in stored["curve"]),
                        tuple((tokens, loss) for tokens, loss in stored.get("training", ())),
                    )
                    for stored in cell["outcomes"]
                ),
                tuple(cell["missing"]),
            )
            for cell in stored["cells"]
        )
        legs = {leg: cls.from_dict(of_leg) for leg, of_leg in stored.get("legs", {}).items()}
        record = cls(Design.from_dict(stored["design"]), in_one_unit(cells), dict(stored["environments"]), legs=legs)
        record._measure_all()
        return record

    def _measure_all(self) -> None:
        """Read every quantity once, so that a record with other than numbers is refused before anything uses it."""
        for quantity in (*self.design.quantities, LOSS_OF_VALIDATION):
            for cell in self.cells:
                for number in (*cell.by_seed(quantity).values(), *cell.compared(quantity).values()):
                    math.isfinite(number)


Keys = dict[tuple[str, str], dict[int, str]]


def pool_of(folder: Path) -> Path:
    """Return the pool of a study's runs: the pool inside the study's folder if present, else the pool beside it."""
    inside = folder.resolve() / POOL
    return inside if inside.is_dir() else folder.resolve().parent / POOL


def further_name(name: str, ending: str) -> str:
    """Return the name of a further study of a comparison, such as its pilot; its folder has this name, too."""
    return f"{name}-{ending}"


def refuse_foreign_folder(folder: Path) -> None:
    """Refuse a folder that holds other files, so that a study never mixes with them. Hidden files do not count."""
    if not folder.is_dir() or (folder / STUDY_FILE).exists():
        return
    names = {child.name for child in folder.iterdir() if not child.name.startswith(".")}
    further = {further_name(folder.name, ending) for ending in (RATES, *LEGS)}
    if names - {POOL, SPEEDS, *further}:  # which a study writes before its plan
        raise InputError(f"'{folder}' holds files but no {STUDY_FILE}, so it is no study; choose a new or empty folder")


def study_runs(folder: str | Path) -> tuple[Design, dict[tuple[str, str], dict[int, Path]]]:
    """Return the design of a study and the folders of its runs, by row and column and then by seed."""
    design, keys = read_study(Path(folder))
    pool = pool_of(Path(folder))
    return design, {
        place: {seed: Path(normpath(pool / key)) for seed, key in by_seed.items()} for place, by_seed in keys.items()
    }


def read_study(folder: Path) -> tuple[Design, Keys]:
    path = folder / STUDY_FILE
    if not path.exists():
        raise InputError(f"a study's folder must hold {STUDY_FILE}, and '{folder}' does not; give a study's folder")
    try:
        stored = read_sealed(path) or {}
        keys = {
            (cell["row"], cell["column"]): {int(seed): key for seed, key in cell["runs"].items()}
            for cell in stored["cells"]
        }
        if not all(isinstance(key, str) for runs in keys.values() for key in runs.values()):
            raise TypeError("the key of a run is a text")
        return Design.from_dict(stored["design"]), keys
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"'{path}' must hold the plan of a study, and is damaged; repeat its command") from error


def study_as_dict(design: Design, keys: Keys) -> dict[str, Any]:
    cells = [
        {"row": row, "column": column, "runs": {str(seed): key for seed, key in runs.items()}}
        for (row, column), runs in keys.items()
    ]
    return sealed({"format": FORMAT, "design": design.to_dict(), "cells": cells})


def _finished_run(seed: int, path: Path) -> tuple[dict[str, Any], dict[str, Any], Outcome] | None:
    """Return the configuration, the environment and the outcome of a finished run. A damaged run is named and left out,
    so that it stops no report."""
    if not (path / "config.json").exists():
        return None
    try:
        run = RunFolder.open(path)
        return (run.config, run.environment, outcome(seed, run)) if run.finished else None
    except (InputError, ValueError, KeyError, TypeError, AttributeError) as error:  # a damaged file may hold any JSON
        hint = "" if "train --resume" in str(error) else f"; 'attractor train --resume {path}' keeps what is intact"
        text = f"left out a damaged run: {error}{hint}"
        warnings.warn(text, LeftOutWarning, stacklevel=2)
        return None


def outcome(seed: int, run: RunFolder) -> Outcome:
    run.refuse_altered()
    records = run.metrics()
    curve = {r["tokens"]: r["valid_loss"] for r in records if r.get("valid_loss") is not None}
    summary = with_bytes_per_token(run.summary() or {}, run.config) | processor(run)
    probes = read_sealed(run.path / PROBES_FILE) or {}
    measured = (summary, probes, tuple(sorted(curve.items())), training_curve(records, curve))
    return Outcome(seed, run.path.name, *map(with_short_series, measured))


def processor(run: RunFolder) -> dict[str, str]:
    """Return the name of what computed a run: runs on two processors round in other ways. Unknown of older runs, and of
    those from a record that lists several."""
    on_gpu = str((run.summary() or {}).get("device", "")).startswith("cuda")
    names = run.environment.get("gpus" if on_gpu else "processor") or []
    listed = {str(name) for name in (names if isinstance(names, list) else [names])}
    return {"processor": listed.pop()} if len(listed) == 1 else {}


def training_curve(records: Sequence[Mapping[str, Any]], evaluated: Collection[int]) -> tuple[tuple[int, float], ...]:
    """Return for every evaluation, given by its tokens, the mean training loss of the steps logged since the one
    before. Single steps would be noise, and ten times as many numbers."""
    losses = {r["tokens"]: r["loss"] for r in records if r.get("loss") is not None}
    ends = sorted(evaluated)
    between: dict[int, list[float]] = {}
    for tokens, loss in losses.items():
        place = bisect_left(ends, tokens)
        if tokens >= 0 and place < len(ends):
            between.setdefault(ends[place], []).append(loss)
    return tuple((end, fmean(between[end])) for end in ends if end in between)


def _stored_outcomes(outcomes: Iterable[Outcome]) -> list[dict[str, Any]]:
    """Return the runs of a cell. The attention maps, the heads and the portrait of one seed are enough."""
    stored, is_pictured = [], False
    for number, run in enumerate(outcomes):
        summary, probes = dict(run.summary), dict(run.probes)
        if heatmaps := probes.pop(HEATMAPS, None):
            probes |= {} if is_pictured else {HEATMAPS: thinned(heatmaps)}
            is_pictured = True
        if number > 0:
            summary.pop(BY_HEAD, None)
            if PORTRAIT in (dynamics := probes.get(DYNAMICS, {})):
                probes[DYNAMICS] = {name: value for name, value in dynamics.items() if name != PORTRAIT}
        stored.append(vars(run) | {"summary": summary, "probes": probes})
    return stored


def thinned(heatmaps: Mapping[str, Any]) -> dict[str, Any]:
    """Return two heads and 32 positions of the attention maps, in whole percent. The zeros that end a row are left out,
    which halves causal maps."""
    if PERCENT in heatmaps:
        return dict(heatmaps)
    heads, length = slice(0, 2), slice(0, 32)
    kept = {name: value for name, value in heatmaps.items() if name != "maps"} | {"heads": heatmaps["heads"][heads]}
    if tokens := heatmaps.get("tokens"):
        kept["tokens"] = tokens[length]
    kept[PERCENT] = [
        [[_without_last_zeros([round(100 * w) for w in row[length]]) for row in head[length]] for head in layer[heads]]
        for layer in heatmaps["maps"]
    ]
    return kept


def with_short_series(value: Any, within_list: bool = False) -> Any:
    """Round the numbers in lists to five digits, more than a chart shows. Numbers that stand alone keep all theirs.

    A run is rounded when it is read, so that a record is the same before and after it was stored.
    """
    if isinstance(value, Mapping):
        return {name: with_short_series(item, within_list) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(with_short_series(item, within_list=True) for item in value)
    return float(f"{value:.5g}") if within_list and isinstance(value, float) else value


def _without_last_zeros(numbers: list[int]) -> list[int]:
    return numbers[: max((n for n, number in enumerate(numbers, start=1) if number), default=0)]


def in_one_unit(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """Return the cells with the bytes per token of their runs, or without them where any run lacks them."""
    cells = tuple(cells)
    if all("bytes_per_token" in outcome.summary for cell in cells for outcome in cell.outcomes):
        return cells

    def per_token(outcome: Outcome) -> Outcome:
        return replace(outcome, summary={k: v for k, v in outcome.summary.items() if k != "bytes_per_token"})

    return tuple(replace(cell, outcomes=tuple(map(per_token, cell.outcomes))) for cell in cells)


def stored_loss_unit(summary: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return the unit in which a run stores its losses. Text has losses per token, and a token may be a byte."""
    if (config.get("task") or {}).get("kind") != "text":
        return "nats"
    return "nats/byte" if with_bytes_per_token(summary, config).get("bytes_per_token") == 1 else "nats/token"


def with_bytes_per_token(summary: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary with its bytes per token. Older runs did not store the number: it is one where tokens are
    bytes, and elsewhere follows from their description of the corpus."""
    if "bytes_per_token" in summary or (config.get("task") or {}).get("kind") != "text":
        return {**summary}
    if (config.get("model") or {}).get("vocab_size") == BYTE_VOCABULARY:
        return {**summary, "bytes_per_token": 1.0}
    described = CORPUS_SIZES.search(str(summary.get("data")))
    if described is None:
        return {**summary}
    n_bytes, *n_tokens = (int(number.replace(",", "")) for number in described.groups())
    return {**summary, "bytes_per_token": n_bytes / sum(n_tokens)}


def read_record(path: Path) -> StudyRecord:
    """Read a record that `attractor report --store` wrote."""
    try:
        return StudyRecord.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except InputError as error:
        raise InputError(f"'{path}': {error}") from error
    except OSError as error:
        raise InputError(f"'{path}' must hold a study's record: {error.strerror}; check the path") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"'{path}' must hold a study's record, and is damaged; store it anew") from error
