"""Read GLUE's examples from the Hugging Face Hub, from the benchmark's tsv files, or from a saved data set.

A saved data set is a folder that `save_to_disk` of the datasets library wrote. The tsv files have no quoting, and
CoLA's have no header. Malformed rows are counted, and a warning shows the first few; more than one in a hundred is an
error.
"""

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attractor.corpus.data_paths import expanded, searched_places
from attractor.corpus.network import OFFLINE, reachable
from attractor.errors import InputError, require_package
from attractor.tables import FlawError
from attractor.tasks.glue.table import TABLE, GlueEntry, file_names

HUB = "huggingface"
REPOSITORY = "nyu-mll/glue"
MALFORMED_LIMIT = 0.01
N_SHOWN = 3
N_LISTED = 8  # names of files in a message
LARGEST_NUMBER = 5.0
HIDDEN = -1


class GlueTable(NamedTuple):
    """A table with its rows and the number of each. A flaw stands in the place of a row that cannot be read."""

    name: str
    unit: str  # what is numbered: 'line' or 'row'
    columns: Sequence[str]
    rows: Sequence[tuple[int, Mapping[str, Any] | FlawError]]


class Examples(NamedTuple):
    """Texts with their labels, and the number of malformed rows that were left out."""

    texts: list[tuple[str, ...]]
    labels: np.ndarray  # int64 for classes, float64 for numbers
    n_malformed: int


def read_examples(task: str, data: str, part: str) -> Examples:
    """Read the examples of a part: 'train', or a validation set of the task."""
    entry = TABLE[task]
    table = _from_hub(task, part) if data == HUB else _from_folder(task, expanded(data), part)
    if not table.rows:
        raise InputError(f"'{table.name}' must hold examples, but is empty; fetch it again")
    *text_columns, label_column = (_column(table, names) for names in (*entry.texts, entry.label_columns))
    texts: list[tuple[str, ...]] = []
    labels: list[float] = []
    flaws = []
    for number, row in table.rows:
        try:
            if isinstance(row, FlawError):
                raise row
            label = _label(entry, row.get(label_column))
            texts.append(tuple(_text(row.get(column), column) for column in text_columns))
            labels.append(label)
        except FlawError as flaw:
            flaws.append(f"{table.unit} {number} ({flaw})")
    first = "; ".join(flaws[:N_SHOWN])
    if len(flaws) > MALFORMED_LIMIT * len(table.rows):
        raise InputError(
            f"'{table.name}' may have one malformed {table.unit} in {1 / MALFORMED_LIMIT:.0f}, but has {len(flaws):,} "
            f"of {len(table.rows):,}: {first}; mend or remove them"
        )
    if flaws:
        warnings.warn(f"skipped {len(flaws)} malformed {table.unit}(s) of '{table.name}': {first}", stacklevel=2)
    return Examples(texts, np.array(labels, dtype=np.int64 if entry.labels else np.float64), len(flaws))


def _text(value: Any, column: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise FlawError(f"no text in '{column}'")
    if re.search("[\ud800-\udfff]", value):  # a byte that is not UTF-8
        raise FlawError(f"'{column}' is not UTF-8")
    return value


def _label(entry: GlueEntry, value: Any) -> float:
    """Return the number of a class, given by its name or its number, or the number that a regression task asks for."""
    if value in entry.labels:
        return entry.labels.index(value)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if number == HIDDEN:
        raise FlawError("the label is hidden, as in test sets")
    if entry.labels and number in range(len(entry.labels)):
        return int(number)
    if not entry.labels and 0 <= number <= LARGEST_NUMBER:
        return number
    wanted = f"one of {', '.join(entry.labels)}" if entry.labels else f"a number from 0 to {LARGEST_NUMBER:g}"
    raise FlawError(f"label {value!r:.40} is not {wanted}")


def _column(table: GlueTable, names: tuple[str, ...]) -> str:
    for name in names:
        if name in table.columns:
            return name
    raise InputError(
        f"'{table.name}' must have a column '{names[0]}', but has {', '.join(table.columns) or 'none'}; rename one, or "
        "give the file of this task"
    )


def _from_folder(task: str, folder: Path, part: str) -> GlueTable:
    """Read the task's file in this folder, or in its subfolder that is named after the task: `SST-2` or `sst2`."""
    if not folder.is_dir():
        raise InputError(
            f"glue_data must be a folder, or '{HUB}', but '{folder}' is not; give one with a folder '{task}'; "
            f"{searched_places(folder)}"
        )
    named = [path for path in sorted(folder.iterdir()) if re.sub(r"[^a-z0-9]", "", path.name.lower()) == task]
    place = next(filter(Path.is_dir, named), folder)
    if (place / "dataset_dict.json").is_file():
        return _saved(place, part)
    for name in file_names(part):
        if (place / f"{name}.tsv").is_file():
            return _tsv(place / f"{name}.tsv", TABLE[task])
    there = ", ".join(path.name for path in sorted(place.iterdir())[:N_LISTED]) or "nothing"
    raise InputError(
        f"glue_data must hold a file '{file_names(part)[-1]}.tsv' or a saved data set for '{task}', but '{place}' has "
        f"{there}; add it"
    )


def _tsv(path: Path, entry: GlueEntry) -> GlueTable:
    """Read a file of the benchmark. Unlike `splitlines`, only a line feed ends a line."""
    text = path.read_bytes().decode("utf-8-sig", errors="surrogateescape")
    lines = [(n, line.rstrip("\r").split("\t")) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
    header = lines[0][1] if lines else []
    if entry.headerless and not set(entry.texts[0]) & set(header):
        header = list(entry.headerless)
    else:
        lines = lines[1:]
    return GlueTable(str(path), "line", header, [(n, _row(header, cells)) for n, cells in lines])


def _row(header: Sequence[str], cells: Sequence[str]) -> Mapping[str, str] | FlawError:
    if len(cells) != len(header):
        return FlawError(f"{len(cells)} fields where there are {len(header)} columns")
    return dict(zip(header, cells, strict=True))


def _saved(folder: Path, part: str) -> GlueTable:
    datasets = require_package("datasets")
    try:
        splits = datasets.load_from_disk(str(folder))
    except (ValueError, OSError, KeyError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(
            f"'{folder}' must be a saved data set, but cannot be read ({reason}); save it again"
        ) from error
    for name in file_names(part):
        if name in splits:
            return _split(f"{folder}/{name}", splits[name])
    raise InputError(
        f"'{folder}' must hold a split '{file_names(part)[0]}', but has {', '.join(splits)}; save it again"
    )


def _from_hub(task: str, part: str) -> GlueTable:
    """Read the task from the Hub, or from the library's cache where there is no network."""
    datasets = require_package("datasets")
    split = file_names(part)[0]
    online = reachable()
    was_offline = datasets.config.HF_HUB_OFFLINE
    try:
        datasets.config.HF_HUB_OFFLINE = was_offline or not online  # offline, the library would retry for half a minute
        return _split(f"{REPOSITORY}:{task}/{split}", datasets.load_dataset(REPOSITORY, task, split=split))
    except Exception as error:  # any layer of the library may raise any class
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        problem = f"the Hugging Face Hub did not give it ({reason})" if online else OFFLINE
        raise InputError(
            f"glue data '{task}' must be downloaded, but {problem}; elsewhere, run datasets.load_dataset("
            f"'{REPOSITORY}', '{task}').save_to_disk('FOLDER/{task}'), copy FOLDER here and give glue_data=FOLDER"
        ) from error
    finally:
        datasets.config.HF_HUB_OFFLINE = was_offline


def _split(name: str, dataset: Any) -> GlueTable:
    return GlueTable(name, "row", dataset.column_names, list(enumerate(dataset.to_list(), start=1)))
