"""Recognise what other programs write, by its content, and read it as a table.

Each reader takes the text of a file and returns a table, or None where another program wrote the file. A file of one
run, such as a log, is a table with a column of steps and one column for each metric.
"""

import json
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from attractor.errors import InputError, not_installed
from attractor.tables import (
    PARQUET,
    TABLE_SUFFIXES,
    Cell,
    Table,
    decoded,
    delimiter_of,
    parse_table,
    read_content,
    stack,
    suffix_of,
)

NUMBER = r"([-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|\.\d+|nan|inf(?:inity)?))"
EVENTS = "events.out.tfevents"  # begins the names of TensorBoard's files


@dataclass(frozen=True)
class ReadFile:
    """A file that was read. `one_run` means that its rows are one run, in the order of time."""

    path: Path
    format: str
    table: Table
    one_run: bool


def read_file(path: Path, value: str | None = None, step: str | None = None) -> ReadFile | None:
    """Read a file of any known format. A regular expression as `value` reads any other log. Return None where nothing
    is recognised."""
    if path.name.startswith(EVENTS):
        return ReadFile(path, "TensorBoard events", _events(path), one_run=True)
    content = read_content(path)
    if content.startswith(PARQUET):
        return ReadFile(path, "table", parse_table(path, content), one_run=False)
    text = decoded(path, content)
    for name, read, one_run in FORMATS:
        table = read(path, text)
        if table is not None and (value is None or value in table.columns or not is_pattern(value)):
            return ReadFile(path, name, table, one_run)
    if value is not None and is_pattern(value):
        return _log_by_pattern(path, text, value, step)
    return None


def is_pattern(text: str | None) -> bool:
    """Whether a text is meant as a regular expression: it has a parenthesis."""
    return text is not None and "(" in text


def compiled(option: str, pattern: str) -> re.Pattern[str]:
    """Return a regular expression with one group."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise InputError(f"{option} must be a regular expression, and '{pattern}' is none: {error}; mend it") from None
    if expression.groups != 1:
        raise InputError(
            f"{option} must have one group, the part to read, and '{pattern}' has {expression.groups}; "
            "write it as in 'val_loss:([0-9.]+)', and other groups as (?:...)"
        )
    return expression


def _table(path: Path, text: str) -> Table | None:
    """Read a table. A file without the suffix of a table must look like one: cells under names without digits."""
    first, _, rest = text.lstrip().partition("\n")
    if not text.strip():
        return None
    if suffix_of(path) not in TABLE_SUFFIXES and first[:1] not in ("{", "["):
        delimiter = delimiter_of(text)
        n_cells = [line.count(delimiter) for line in (first, rest.partition("\n")[0])]
        if not n_cells[0] or n_cells[0] != n_cells[1] or re.search(r"[\d:]", first):
            return None
    return parse_table(path, text.encode())


def _markdown(path: Path, text: str) -> Table | None:
    """Read the tables of a markdown text, such as a comment on an issue. Emphasis of cells is dropped."""
    tables: list[Table] = []
    for bars, group in groupby(map(str.strip, text.splitlines()), key=lambda line: line[:1] == "|"):
        cells = (line[1:].removesuffix("|").split("|") for line in group if bars)
        lines = ["\t".join(cell.strip(" *_`") for cell in line) for line in cells]
        if len(lines) > 2 and not lines[1].strip("\t :-"):
            lines[1] = ""
            tables.append(parse_table(path, "\n".join(lines).encode()))
    return stack(tables) if tables else None


def _first_cells(path: Path, text: str) -> list[str]:
    """Return the cells of the first line of a table."""
    first = text.lstrip().partition("\n")[0] if suffix_of(path) in TABLE_SUFFIXES else ""
    return [cell.strip(' "\r') for cell in first.split(delimiter_of(text))]


def _headerless(path: Path, text: str) -> Table | None:
    """Read a table whose first line has a fraction and at most one text. The text is taken for the row, a whole number
    for the seed and the fraction for the value, if there is only one of each."""
    cells = _first_cells(path, text)
    kinds = ["seed" if cell.isdigit() else "value" if re.fullmatch(NUMBER, cell, re.I) else "row" for cell in cells]
    if "value" not in kinds or kinds.count("row") > 1:
        return None
    names = kinds if len(set(kinds)) == len(kinds) else [f"column {n}" for n in range(1, len(kinds) + 1)]
    return parse_table(path, "\n".join([delimiter_of(text).join(names), text]).encode())


def _wandb_chart(path: Path, text: str) -> Table | None:
    """Read the data of a chart of W&B, which has columns `RUN - METRIC` and their minima and maxima over each step."""
    if "__MIN" not in text[: text.find("\n")]:
        return None
    wide = parse_table(path, text.encode())
    step = next(iter(wide.columns))
    lines = []
    for name in wide.columns:
        run, dash, metric = name.rpartition(" - ")
        if dash and not metric.endswith(("__MIN", "__MAX", "_step")):
            columns = {"Name": [run] * len(wide), "Step": wide.columns[step], metric: wide.columns[name]}
            lines.append(Table(columns, wide.files))
    return stack(lines) if lines else None


def _autoresearch(path: Path, text: str) -> Table | None:
    """Read the results of a loop of ideas, one run a row. A row is named by its description if that is unambiguous."""
    names = text[: text.find("\n")].strip().split("\t")
    if not {"commit", "status"} <= set(names):
        return None
    columns = dict(parse_table(path, text.encode()).columns)
    described = list(zip(columns["commit"], columns.get("description", columns["commit"]), strict=True))
    by_description = len(set(described)) == len({description for _, description in described})
    columns["row"] = [description if by_description else commit for commit, description in described]
    return Table(columns, ((path, len(described)),))


def _object(path: Path, text: str, *fields: str) -> dict[str, Any] | None:
    if text.lstrip()[:1] != "{" or not all(f'"{field}"' in text for field in fields):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and all(field in value for field in fields) else None


def _trainer_state(path: Path, text: str) -> Table | None:
    state = _object(path, text, "log_history")
    return None if state is None else parse_table(path, json.dumps(state["log_history"]).encode())


def _lm_eval(path: Path, text: str) -> Table | None:
    """Read results of lm-eval: one run, whose columns are `TASK METRIC`. Standard errors within a task are left out."""
    stored = _object(path, text, "results", "config")
    if stored is None or not isinstance(stored["results"], dict) or not isinstance(stored["config"], dict):
        return None
    config = stored["config"]
    arguments = re.search(r"pretrained=([^,]+)", str(config.get("model_args")))
    model = stored.get("model_name") or (arguments[1] if arguments else config.get("model"))
    columns: dict[str, list[Cell]] = {"model": [str(model)]}
    if (seed := config.get("random_seed")) is not None:
        columns["random_seed"] = [seed]
    for task, metrics in stored["results"].items():
        for metric, number in metrics.items() if isinstance(metrics, dict) else ():
            if isinstance(number, int | float) and "stderr" not in metric:
                columns[f"{task} {metric.removesuffix(',none')}"] = [number]
    return Table(columns, ((path, 1),))


LOGS = {  # the names of groups become columns
    "log of modded-nanogpt": rf"step:(?P<step>\d+)/\d+ val_loss:(?P<val_loss>{NUMBER}) train_time:(?P<ms>\d+)ms",
    "log of nanochat": rf"Step (?P<step>\d+) \| Validation bpb: (?P<val_bpb>{NUMBER})",
    "log of nanoGPT": rf"step (?P<step>\d+): train loss (?P<train_loss>{NUMBER}), val loss (?P<val_loss>{NUMBER})",
    "log of nanoGPT, training only": rf"iter (?P<step>\d+): loss (?P<train_loss>{NUMBER})",
}


def _log(pattern: str) -> Callable[[Path, str], Table | None]:
    expression = re.compile(pattern, re.IGNORECASE)

    def read(path: Path, text: str) -> Table | None:
        if suffix_of(path) in TABLE_SUFFIXES:
            return None
        lines = [match.groupdict() for match in expression.finditer(text)]
        if not lines:
            return None
        columns: dict[str, list[Cell]] = {name: [line[name] for line in lines] for name in lines[0]}
        if "ms" in columns:
            columns["seconds"] = [float(ms) / 1000 for ms in columns.pop("ms") if ms is not None]
        return Table(columns, ((path, len(lines)),))

    return read


STEP = re.compile(rf"\b(?:step|iter|iteration|update)s?\b\W{{0,3}}{NUMBER}", re.IGNORECASE)


def _log_by_pattern(path: Path, text: str, value: str, step: str | None) -> ReadFile | None:
    """Read the value of each line that matches, with the step in that line. Without steps the values are counted."""
    expression = compiled("value", value)
    step_expression = STEP if step is None else compiled("step", step)
    matches = [
        (match[1], step_expression.search(line)) for line in text.splitlines() if (match := expression.search(line))
    ]
    if not matches:
        return None
    has_steps = all(match is not None for _, match in matches)
    if step is not None and not has_steps:
        raise InputError(f"step must be in each line that has a value, and '{step}' is not in '{path}'; mend it")
    steps: list[Cell] = [match[1] if has_steps and match else n for n, (_, match) in enumerate(matches, start=1)]
    table = Table({value: [number for number, _ in matches], "step": steps}, ((path, len(matches)),))
    return ReadFile(path, "log" if has_steps else "log without steps, whose values are counted", table, one_run=True)


def _events(path: Path) -> Table:
    """Read the scalars of an event file of TensorBoard, one row for each step."""
    try:
        from google.protobuf.message import DecodeError
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError as error:
        raise not_installed("tensorboard", "tensorboard", "event files", "export the scalars as CSV") from error
    by_step: dict[int, dict[str, Cell]] = {}
    for record in _records(path):
        try:
            event = Event.FromString(record)
            for value in event.summary.value:
                number: Cell = value.simple_value if value.HasField("simple_value") else None
                if value.HasField("tensor") and not value.tensor.tensor_shape.dim:
                    tensor = make_ndarray(value.tensor)
                    number = float(tensor) if tensor.dtype.kind in "fiu" else None
                if number is not None:
                    by_step.setdefault(event.step, {})[value.tag] = number
        except (DecodeError, TypeError, ValueError) as error:
            raise InputError(
                f"'{path}' must hold events of TensorBoard, and does not ({error}); copy it anew"
            ) from None
    if not by_step:
        raise InputError(f"an event file must hold scalars, and '{path}' has none; give another file")
    tags = dict.fromkeys(tag for scalars in by_step.values() for tag in scalars)
    columns = {tag: [scalars.get(tag) for scalars in by_step.values()] for tag in tags}
    return Table({"step": list(by_step), **columns}, ((path, len(by_step)),))


def _records(path: Path) -> Iterator[bytes]:
    """Yield the records of an event file, each with its length and checksums. A run that was killed cuts the last."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    content, at = read_content(path), 0
    while at + 12 <= len(content):
        header = content[at : at + 8]
        (length,) = struct.unpack("<Q", header)
        record = content[at + 12 : at + 12 + length]
        checksums = [(header, content[at + 8 : at + 12]), (record, content[at + 12 + length : at + 16 + length])]
        intact = [
            len(stored) < 4 or masked_crc32c(part) == struct.unpack("<I", stored)[0] for part, stored in checksums
        ]
        if not all(intact):
            raise InputError(f"'{path}' is damaged: the checksum at byte {at} is wrong; copy the file anew")
        if len(checksums[1][1]) < 4:
            return
        yield record
        at += 16 + length


FORMATS: tuple[tuple[str, Callable[[Path, str], Table | None], bool], ...] = (
    ("trainer_state.json of Hugging Face", _trainer_state, True),
    ("results of lm-eval", _lm_eval, False),
    ("chart of W&B", _wandb_chart, False),
    ("results of a loop of ideas", _autoresearch, False),
    *((name, _log(pattern), True) for name, pattern in LOGS.items()),
    ("table in markdown", _markdown, False),
    ("table, taken to have no header line", _headerless, False),
    ("table", _table, False),
)
