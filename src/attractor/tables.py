"""Read tables (CSV, TSV, JSON lines, JSON, Parquet) into named columns. A file is read whole, within a limit of size.

The content decides how a file is read, not its name. Nothing in a cell is ever executed: a formula is a text.
"""

import csv
import gzip
import io
import json
import math
import stat
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from attractor.errors import InputError, not_installed, require

Cell = str | float | None
LARGEST = 128 << 20  # bytes of a file, also when it is unpacked
MOST_CELLS = 20_000_000  # about a gigabyte of memory
MISSING = frozenset({"", "na", "n/a", "null", "none"})
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
PARQUET, GZIP = b"PAR1", b"\x1f\x8b"
LONGEST_SHOWN = 40  # characters of a cell in a message


@dataclass(frozen=True)
class Table:
    """Named columns of equal length. `files` says how many rows came from which file, in their order."""

    columns: Mapping[str, Sequence[Cell]]
    files: tuple[tuple[Path, int], ...]

    def __len__(self) -> int:
        return sum(n_rows for _, n_rows in self.files)

    def place(self, row: int) -> str:
        """Say where a row stands. The first row below the names of the columns is row 1."""
        for path, n_rows in self.files:
            if row < n_rows:
                return f"row {row + 1} of '{path}'"
            row -= n_rows
        raise IndexError("the table has fewer rows")

    def texts(self, name: str) -> list[str | None]:
        """Return a column as it is written, with None for empty cells, which are nan in memory."""
        cells = self.columns[name]
        if set(map(type, cells)) == {str}:
            return [cell or None for cell in cells]  # type: ignore[misc]
        return [None if cell in (None, "") or cell != cell else str(cell) for cell in cells]

    def numbers(self, name: str, strict: bool = True) -> list[float | None]:
        """Return a column of numbers, with None for missing ones. A text that is no number is refused, or is None."""
        cells = self.columns[name]
        try:
            return list(map(float, cells))  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            return [self._number(name, row, cell, strict) for row, cell in enumerate(cells)]

    def _number(self, name: str, row: int, cell: Cell, strict: bool) -> float | None:
        try:
            return number(cell)
        except ValueError:
            if not strict:
                return None
            raise InputError(
                f"column {shown(name)} must hold numbers, and {self.place(row)} has {shown(cell)}; mend the "
                "cell (a run that failed is nan), or name another column"
            ) from None


def number(cell: Cell) -> float | None:
    """Return the number in a cell, or None where it is missing. Raise a ValueError where the cell holds a text."""
    if cell is None or (isinstance(cell, str) and cell.strip().lower() in MISSING):
        return None
    try:
        return float(cell)
    except OverflowError:  # an integer of more than 308 digits
        return math.inf if not isinstance(cell, str) and cell > 0 else -math.inf


def shown(cell: object) -> str:
    """Return a cell for a message: quoted, in one line and not too long."""
    text = repr(cell)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def stack(tables: Sequence[Table]) -> Table:
    """Put tables below one another. A column that a table lacks is empty there."""
    if len(tables) == 1:
        return tables[0]
    columns: dict[str, list[Cell]] = {name: [] for table in tables for name in table.columns}
    for table in tables:
        for name, cells in columns.items():
            cells.extend(table.columns[name] if name in table.columns else [None] * len(table))
    return Table(columns, tuple(part for table in tables for part in table.files))


def read_table(path: Path | str) -> Table:
    """Read a table from a file."""
    return parse_table(Path(path), read_content(Path(path)))


def read_content(path: Path) -> bytes:
    """Return the content of a regular file, unpacked. A pipe or a device, which might never end, is refused."""
    try:
        status = path.stat()
        require(stat.S_ISREG(status.st_mode), "input", "a regular file", str(path), "write its content to a file first")
        _check_bytes(path, status.st_size)
        content = path.read_bytes()
        if content.startswith(GZIP):
            with gzip.open(io.BytesIO(content)) as file:
                content = file.read(LARGEST + 1)
            _check_bytes(path, len(content))
        return content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"'{path}' must be a whole gzip file: {error}; copy it anew") from error
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}; check the path and its permissions") from error


def _check_bytes(path: Path, n: int) -> None:
    narrower = "keep the columns or lines that are needed: row, seed, step and value"
    require(n <= LARGEST, "input", f"a file of at most {LARGEST >> 20} MiB, unpacked", str(path), narrower)


def suffix_of(path: Path) -> str:
    """Return the suffix that says what a file holds: `.csv` of runs.CSV.gz."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def decoded(path: Path, content: bytes) -> str:
    """Return the text of a file."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"a file must be UTF-8 text, and byte {error.start + 1} of '{path}' is not; convert the file, as by: "
            "iconv -f utf-16 -t utf-8 FILE > NEW (or -f latin-1)"
        ) from None
    require("\0" not in text, "input", "text, not binary data", str(path), "unpack it, or give a table or a log")
    return text


def parse_table(path: Path, content: bytes) -> Table:
    """Return the table in the content of a file. `path` is for messages."""
    if content.startswith(PARQUET):
        columns = _parquet(path, content)
    elif (text := decoded(path, content)).lstrip()[:1] in ("{", "["):
        columns = _json(path, text)
    else:
        columns = _separated(path, text)
    n_rows = len(next(iter(columns.values()), ()))
    require(n_rows > 0, "a table", "names of columns with rows below them", str(path), "give one that is not empty")
    return Table(columns, ((path, n_rows),))


def delimiter_of(text: str) -> str:
    """Return the character that separates the cells of a table: that which is most frequent in its first line."""
    first = text.lstrip("\r\n").split("\n", 1)[0]
    return max((",", "\t", ";"), key=first.count)


def _separated(path: Path, text: str) -> dict[str, list[Cell]]:
    csv.field_size_limit(LARGEST)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter_of(text), strict=True)
    try:
        names = [name.strip() or f"column {n}" for n, name in enumerate(next(filter(None, lines), []), start=1)]
        _check_names(path, names)
        columns: list[list[Cell]] = [[] for _ in names]
        rows = filter(None, lines)  # without blank lines
        while some := list(islice(rows, 10_000)):
            if set(map(len, some)) != {len(names)}:
                wrong = next(row for row in some if len(row) != len(names))
                raise InputError(
                    f"rows must have {len(names)} cells, as the names of the columns, and one of '{path}', which "
                    f"begins with {shown(wrong[0])} before line {lines.line_num + 1}, has {len(wrong)}; mend it"
                )
            _check_size(path, (len(columns[0]) + len(some)) * len(names))
            for column, cells in zip(columns, zip(*some, strict=True), strict=True):
                column.extend(cells)
    except csv.Error as error:
        raise InputError(f"line {lines.line_num} of '{path}' must be a row of a table: {error}; mend it") from None
    return dict(zip(names, columns, strict=True))


def _json(path: Path, text: str) -> dict[str, list[Cell]]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = [_record(path, n, line) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if isinstance(value, dict) and value and all(isinstance(cells, list) for cells in value.values()):
        lengths = {len(cells) for cells in value.values()}
        require(len(lengths) == 1, "columns", "equally long", str(path), "fill them with null")
        return {name: list(map(as_cell, cells)) for name, cells in value.items()}
    records = [value] if isinstance(value, dict) else value
    are_records = all(isinstance(record, dict) for record in records)
    require(are_records, "a JSON table", "a list of objects or an object of columns", str(path), "write it as one")
    names = list(dict.fromkeys(name for record in records for name in record))
    _check_size(path, len(records) * len(names))
    return {name: [as_cell(record.get(name)) for record in records] for name in names}


def _record(path: Path, n: int, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise InputError(f"line {n} of '{path}' must be one JSON object; mend or remove the line") from None


def as_cell(value: Any) -> Cell:
    """Keep texts and numbers as they are, and turn all else, such as dates and lists, into text."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict | list):
        return json.dumps(value)
    return None if str(value) in ("<NA>", "NaT") else str(value)  # so pandas writes missing values


def _parquet(path: Path, content: bytes) -> dict[str, list[Cell]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise not_installed("pyarrow", "text", "a Parquet table", "give the table as CSV") from error
    try:
        with parquet.ParquetFile(io.BytesIO(content)) as file:
            _check_size(path, file.metadata.num_rows * len(file.schema_arrow.names))
            _check_names(path, file.schema_arrow.names)
            table = file.read()
        return {name: list(map(as_cell, table.column(name).to_pylist())) for name in table.column_names}
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = str(error).split("\n", 1)[0]
        raise InputError(f"'{path}' must be a Parquet file, and cannot be read: {reason}; write it anew") from error


def _check_names(path: Path, names: Sequence[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"columns must have different names, and '{path}' has two of {shown(twice)}; rename one")


def _check_size(path: Path, n_cells: int) -> None:
    require(
        n_cells <= MOST_CELLS, "a table", f"at most {MOST_CELLS:,} cells", str(path), "keep the columns that are needed"
    )
