"""Read tables (CSV, TSV, JSON lines, JSON, Parquet): row by row, or whole into named columns.

Row by row (`rows_of_cells`, `json_object`, `parquet_batches`), a table may have any size, and a row that cannot be read
is a flaw that stops nothing. `read_table` reads a file whole, within a limit of size, and refuses what has a flaw. Its
content decides how it is read, not its name. Nothing in a cell is ever executed: a formula is a text.
"""

import csv
import gzip
import io
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from attractor.errors import InputError, require, require_package
from attractor.files import read_regular

Cell = str | float | None
LARGEST = 128 << 20  # bytes of a file, also when it is unpacked
MOST_CELLS = 20_000_000  # about a gigabyte of memory
MOST_BYTES = 512 << 20  # of texts and numbers that a Parquet file stands for
LONGEST_CELL = 64 << 20  # characters
BATCH_ROWS, BATCH_BYTES = 256, 64 << 20  # of a Parquet file, at most, in memory at once
MOST_PACKED = 1000  # bytes for which a byte of a compressed column may stand, beyond LARGEST
MISSING = frozenset({"", "na", "n/a", "null", "none"})
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet")
PARQUET, GZIP = b"PAR1", b"\x1f\x8b"
NARROWER = "keep the columns or lines that are needed: row, seed, step and value"
LONGEST_SHOWN = 40  # characters of a cell in a message


class FlawError(ValueError):
    """A row cannot be read; the message says why in a few words."""


def rows_of_cells(lines: Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str] | FlawError]]:
    """Yield the names of the columns and then the rows of separated cells, each with the line on which it begins. Blank
    lines are left out. A flaw stands in the place of a row that cannot be read."""
    csv.field_size_limit(LONGEST_CELL)
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    n_columns = 0
    while True:
        line = rows.line_num + 1
        cells: list[str] | FlawError | None
        try:
            cells = next(rows, None)
        except csv.Error as error:
            cells = FlawError(f"not a row: {error}")
        if cells is None:
            return
        if isinstance(cells, list) and cells:
            if n_columns and "\0" in "".join(cells):
                cells = FlawError("no text but binary data, with a NUL character")
            elif n_columns and len(cells) != n_columns:
                cells = FlawError(f"{len(cells)} fields where the header has {n_columns}")
            else:
                n_columns = len(cells)
        if cells:
            yield line, cells


def json_object(line: bytes | str) -> dict[str, Any]:
    """Return the object of JSON in a line, or raise a FlawError."""
    try:
        value = json.loads(line)
    except UnicodeDecodeError as error:
        raise FlawError(f"not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise FlawError(f"not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise FlawError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise FlawError("not a JSON object")
    return value


def parquet_batches(
    path: Path, columns: Sequence[str] | None = None, start: int = 0
) -> Iterator[tuple[int, float, Any]]:
    """Yield the rows of a Parquet file in batches that fit into memory, each with the number of its first row and the
    share of the file up to its end. Batches before row `start` and columns of lists or records are left out."""
    parquet = require_package("pyarrow.parquet", "text", "a Parquet table", "give the table as CSV")
    with parquet.ParquetFile(path) as file:
        row, described = 0, file.metadata
        single = {file.schema.column(place).path for place in range(described.num_columns)}  # no lists or records
        given = filter(single.__contains__, file.schema_arrow.names) if columns is None else columns
        names = list(dict.fromkeys(given))
        check_columns(path, file.schema_arrow.names, names)
        if nested := next((name for name in names if name not in single), None):
            raise InputError(f"column '{nested}' must hold texts or numbers, and in '{path}' it does not; name another")
        with parquet.ParquetFile(path, metadata=described, read_dictionary=names) as codes:
            for number in range(described.num_row_groups):
                group = described.row_group(number)
                if row + group.num_rows <= start:
                    row += group.num_rows
                    continue
                for batch in file.iter_batches(_rows_at_once(path, codes, group, number, names), [number], names):
                    if row + len(batch) > start:
                        yield row, (row + len(batch)) / described.num_rows, batch
                    row += len(batch)


def _rows_at_once(path: Path, codes: Any, group: Any, number: int, names: Sequence[str]) -> int:
    """Return how many rows of a group to read at once. A few codes in a file may stand for long texts, each as often as
    it is used, so the longest text of each dictionary counts."""
    from pyarrow import compute, types

    chunks = [group.column(place) for place in range(group.num_columns)]
    chunks = [chunk for chunk in chunks if chunk.path_in_schema.partition(".")[0] in names]
    for chunk in chunks:
        n_bytes, packed = chunk.total_uncompressed_size, chunk.total_compressed_size
        fits = n_bytes <= max(BATCH_BYTES * group.num_rows, 1) and n_bytes <= max(LARGEST, MOST_PACKED * packed)
        rule = f"at most {BATCH_BYTES >> 20} MiB a cell, and {MOST_PACKED} times its size in the file"
        require(fits, f"column '{chunk.path_in_schema}' of '{path}'", rule, f"{n_bytes >> 20:,} MiB", "write it anew")
    longest = sum(chunk.total_uncompressed_size for chunk in chunks) / max(group.num_rows, 1)
    coded = [chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page and chunk.path_in_schema in names]
    if coded:
        for batch in codes.iter_batches(1, [number], coded):
            dictionaries = [column.dictionary for column in batch.columns if types.is_dictionary(column.type)]
            longest += sum(compute.max(compute.binary_length(texts)).as_py() or 0 for texts in dictionaries)
            break
    return min(BATCH_ROWS, max(1, int(BATCH_BYTES / max(longest, 1))))


def check_columns(path: Path, columns: Sequence[str], wanted: Sequence[str]) -> None:
    """Refuse a table where a wanted column is missing, or stands twice."""
    if twice := next((name for name in wanted if columns.count(name) > 1), None):
        raise InputError(f"columns must have different names, and '{path}' has two of {shown(twice)}; rename one")
    if missing := next((name for name in wanted if name not in columns), None):
        raise InputError(
            f"column '{missing}' must be in every file, but '{path}' has {', '.join(columns) or 'none'}; "
            "give --column NAME, or several as NAME,NAME"
        )


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
        content = read_regular(path, LARGEST, NARROWER)
        if content.startswith(GZIP):
            with gzip.open(io.BytesIO(content)) as file:
                content = file.read(LARGEST + 1)
            at_most = f"at most {LARGEST >> 20} MiB when it is unpacked"
            require(len(content) <= LARGEST, "input", at_most, str(path), NARROWER)
        return content
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"'{path}' must be a whole gzip file: {error}; copy it anew") from error
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}; check the path and its permissions") from error


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
        columns = _parquet(path)
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
    rows = rows_of_cells(io.StringIO(text, newline=""), delimiter_of(text))
    names: list[str] = []
    columns: list[list[Cell]] = []
    while some := list(islice(rows, 10_000)):
        below = [cells for _, cells in some if not isinstance(cells, FlawError)]
        if len(below) < len(some):
            line, flaw = next(row for row in some if isinstance(row[1], FlawError))
            raise InputError(f"line {line} of '{path}' must be a row of a table: {flaw}; mend it")
        if not names:
            names = [name.strip() or f"column {n}" for n, name in enumerate(below.pop(0), start=1)]
            check_columns(path, names, names)
            columns = [[] for _ in names]
        _check_size(path, (len(columns[0]) + len(below)) * len(names))
        for column, cells in zip(columns, zip(*below, strict=True), strict=bool(below)):
            column.extend(cells)
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
    if isinstance(value, dict) and value and all(isinstance(cells, dict) for cells in value.values()):
        return _nested(path, value)
    records = [value] if isinstance(value, dict) else value
    are_records = all(isinstance(record, dict) for record in records)
    require(are_records, "a JSON table", "a list of objects or an object of columns", str(path), "write it as one")
    names = list(dict.fromkeys(name for record in records for name in record))
    _check_size(path, len(records) * len(names))
    return {name: [as_cell(record.get(name)) for record in records] for name in names}


def _nested(path: Path, outer: dict[str, dict[str, Any]]) -> dict[str, list[Cell]]:
    """Return the table of an object of objects. Those of a column number its cells, as pandas writes them; others are
    lines with a name each."""
    keys = list(dict.fromkeys(key for cells in outer.values() for key in cells))
    _check_size(path, len(outer) * len(keys))
    if keys == [str(n) for n in range(len(keys))]:
        columns = {name: [as_cell(cells.get(key)) for key in keys] for name, cells in outer.items()}
        return {"column 1": [*keys], **columns}
    return {"name": [*outer], **{key: [as_cell(cells.get(key)) for cells in outer.values()] for key in keys}}


def _record(path: Path, n: int, line: str) -> Any:
    try:
        return json_object(line)
    except FlawError as flaw:
        raise InputError(f"line {n} of '{path}' must be one JSON object, and is {flaw}; mend or remove it") from None


def as_cell(value: Any) -> Cell:
    """Keep texts and numbers as they are, and turn all else, such as dates and lists, into text."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict | list):
        return json.dumps(value)
    return None if str(value) in ("<NA>", "NaT") else str(value)  # so pandas writes missing values


def _parquet(path: Path) -> dict[str, list[Cell]]:
    columns: dict[str, list[Cell]] = {}
    n_bytes = 0
    try:
        for row, _, batch in parquet_batches(path):
            _check_size(path, (row + len(batch)) * batch.num_columns)
            n_bytes += batch.nbytes
            fitting = f"at most {MOST_BYTES >> 20} MiB when it is unpacked"
            require(n_bytes <= MOST_BYTES, "a table", fitting, str(path), "keep the columns that are needed")
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                columns.setdefault(name, []).extend(map(as_cell, column.to_pylist()))
        return columns
    except InputError:
        raise
    except Exception as error:  # pyarrow and its decoders raise many classes
        reason = str(error).split("\n", 1)[0]
        raise InputError(f"'{path}' must be a Parquet file, and cannot be read: {reason}; write it anew") from error


def _check_size(path: Path, n_cells: int) -> None:
    require(
        n_cells <= MOST_CELLS, "a table", f"at most {MOST_CELLS:,} cells", str(path), "keep the columns that are needed"
    )
