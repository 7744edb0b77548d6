"""Read files of many documents record by record, with the memory of a few records whatever the size of the file."""

import codecs
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from attractor.corpus.compression import decompressed, is_compressed, plain_name
from attractor.corpus.documents import SEPARATOR_LINE
from attractor.corpus.records import LONGEST_TEXT, cut_point, parse_line, parse_row, parse_text
from attractor.errors import InputError, require_package
from attractor.tables import FlawError, check_columns, json_object, parquet_batches, rows_of_cells

SEPARATOR = b"<|endoftext|>"
LONGEST_LINE = 64 << 20
READ_SIZE = 1 << 20
MARGIN = 64


class Opened:
    """An open file, decompressed if its name says so, that knows which share of it has been read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = max(path.stat().st_size, 1)
        self._raw = path.open("rb")
        try:
            self.file = decompressed(self._raw, path)
        except InputError:
            self._raw.close()
            raise

    @property
    def read(self) -> float:
        return min(self._raw.tell() / self.size, 1.0)

    def skip(self, n_bytes: int) -> None:
        """Skip the first bytes of the content."""
        if self.file.seekable():
            self.file.seek(n_bytes)
            return
        while n_bytes and (block := self.file.read(min(n_bytes, READ_SIZE))):
            n_bytes -= len(block)

    def __enter__(self) -> "Opened":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self._raw.close()


Read = Callable[[Path, int, Sequence[str]], Iterator[tuple[int, int, float, Any]]]


def read_text(path: Path, start: int, columns: Sequence[str]) -> Iterator[tuple[int, int, float, Any]]:
    """Yield texts between lines `<|endoftext|>`; positions are byte offsets."""
    with Opened(path) as opened:
        opened.skip(start)
        pending = bytearray()
        ended = False
        while not (ended and not pending):
            # Read enough to see a separator that begins within the longest text as a whole, and what follows.
            while not ended and len(pending) <= LONGEST_TEXT + MARGIN:
                block = opened.file.read(READ_SIZE)
                pending += block
                ended = not block
            begin = len(codecs.BOM_UTF8) if not start and pending.startswith(codecs.BOM_UTF8) else 0
            while len(pending) - begin > LONGEST_TEXT + MARGIN or (ended and begin < len(pending)):
                separator = _separator(pending, begin)
                if separator and separator.start() - begin <= LONGEST_TEXT:
                    stop, after = separator.span()
                elif len(pending) - begin > LONGEST_TEXT:
                    stop = after = cut_point(pending, begin)
                else:
                    stop = after = len(pending)
                yield start + begin, start + after, opened.read, bytes(pending[begin:stop])
                begin = after
            del pending[:begin]
            start += begin


def _separator(text: bytearray, begin: int) -> re.Match[bytes] | None:
    """Return the first separator line. Finding its fixed text first is several times as fast as a pattern alone."""
    at = text.find(SEPARATOR, begin)
    while at >= 0:
        if line := SEPARATOR_LINE.match(text, at):
            return line
        at = text.find(SEPARATOR, at + 1)
    return None


def read_lines(path: Path, start: int, columns: Sequence[str]) -> Iterator[tuple[int, int, float, Any]]:
    """Yield lines that are not blank; positions are byte offsets."""
    lines = read_text_lines(path, start, columns)
    return (line for line in lines if not (isinstance(line[-1], bytes) and line[-1].isspace()))


def read_text_lines(path: Path, start: int, columns: Sequence[str]) -> Iterator[tuple[int, int, float, Any]]:
    """Yield all lines with their line ends; positions are byte offsets."""
    with Opened(path) as opened:
        file = opened.file
        opened.skip(start)
        while line := file.readline(LONGEST_LINE):
            after = start + len(line)
            raw: Any = line
            if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                raw = FlawError(f"a line of more than {LONGEST_LINE >> 20} MiB")
                while rest := file.readline(READ_SIZE):
                    after += len(rest)
                    if rest.endswith(b"\n"):
                        break
            yield start, after, opened.read, raw
            start = after


def n_lines(path: Path, position: int) -> int:
    """Return the number of lines that end before a byte of a file's content."""
    n_ended = 0
    with Opened(path) as opened:
        while position > 0 and (block := opened.file.read(min(position, READ_SIZE))):
            n_ended += block.count(b"\n")
            position -= len(block)
    return n_ended


def read_table(path: Path, start: int, columns: Sequence[str]) -> Iterator[tuple[int, int, float, Any]]:
    """Yield the rows of a csv or tsv file below its header; positions are row numbers."""
    for number, (_, share, raw) in enumerate(_table(path, columns)):
        if number >= start:
            yield number, number + 1, share, raw


def line_of_row(path: Path, row: int) -> int:
    """Return the line on which a row of a csv or tsv file begins, since cells may hold line breaks."""
    return next(islice(_table(path, ()), row, None))[0]


def _table(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, float, Any]]:
    """Yield the line on which each row begins, the share of the file read after it, and the row."""
    delimiter = "\t" if plain_name(path.name).lower().endswith(".tsv") else ","
    with Opened(path) as opened:
        # Bytes that are not UTF-8 become lone surrogates here; `parse_row` reports them as a flaw.
        lines = io.TextIOWrapper(opened.file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        rows = rows_of_cells(_bounded(lines, path), delimiter)
        _, header = next(rows, (0, None))
        if header is None:
            return
        if isinstance(header, FlawError):
            reason = f"'{path}' does not ({header})"
            raise InputError(f"table must begin with its columns' names, but {reason}; mend it") from header
        if re.search("[\0\udc80-\udcff]", "".join(header)):
            raise InputError(
                f"table must be UTF-8 text, but the columns' names in '{path}' are not; convert it, as by: "
                "iconv -f utf-16 -t utf-8 FILE > NEW (or -f latin-1)"
            )
        check_columns(path, header, columns)
        for line, cells in rows:
            yield line, opened.read, dict(zip(header, cells, strict=True)) if isinstance(cells, list) else cells


def _bounded(lines: io.TextIOWrapper, path: Path) -> Iterator[str]:
    while line := lines.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise InputError(
                f"table must have lines of at most {LONGEST_LINE >> 20} MiB, but '{path}' has a longer one; give a "
                "table, or name the file .txt if it is a text"
            )
        yield line


def read_parquet(path: Path, start: int, columns: Sequence[str]) -> Iterator[tuple[int, int, float, Any]]:
    """Yield the rows of a parquet file; positions are row numbers."""
    return _rows(parquet_batches(path, columns, start), path, start)


def read_arrow(path: Path, start: int, columns: Sequence[str]) -> Iterator[tuple[int, int, float, Any]]:
    """Yield the rows of an arrow file, as the datasets library writes it; positions are row numbers."""

    def numbered(batches: Iterable[Any]) -> Iterator[tuple[int, float, Any]]:
        row = 0
        for batch in batches:
            yield row, 0.0, batch.select(list(dict.fromkeys(columns)))
            row += len(batch)

    with _arrow_reader(path) as reader:
        check_columns(path, reader.schema.names, columns)
        is_stream = not hasattr(reader, "num_record_batches")
        batches = reader if is_stream else (reader.get_batch(i) for i in range(reader.num_record_batches))
        yield from _rows(numbered(batches), path, start)


@contextmanager
def _arrow_reader(path: Path) -> Iterator[Any]:
    arrow = require_package("pyarrow")
    with arrow.OSFile(str(path)) as file:
        is_stream = file.read(6) != b"ARROW1"
        file.seek(0)
        yield arrow.ipc.open_stream(file) if is_stream else arrow.ipc.open_file(file)


def string_columns(path: Path) -> dict[str, bool]:
    """Return every column of a parquet or arrow file, and whether it holds strings."""
    arrow = require_package("pyarrow")
    if format_of(path.name) is ARROW:
        with _arrow_reader(path) as reader:
            schema = reader.schema
    else:
        import pyarrow.parquet as parquet

        schema = parquet.read_schema(path)
    is_dictionary, strings = arrow.types.is_dictionary, (arrow.string(), arrow.large_string())
    return {
        field.name: (field.type.value_type if is_dictionary(field.type) else field.type) in strings for field in schema
    }


def _rows(batches: Iterator[tuple[int, float, Any]], path: Path, start: int) -> Iterator[tuple[int, int, float, Any]]:
    for first, share, batch in batches:
        names = batch.schema.names
        values = [_as_bytes(batch.column(i), name, path) for i, name in enumerate(names)]
        for row, cells in enumerate(zip(*values, strict=True), start=first):
            if row >= start:
                raw: Any = dict(zip(names, cells, strict=True))
                if any(cell is not None and len(cell) > LONGEST_LINE for cell in cells):
                    raw = FlawError(f"a text of more than {LONGEST_LINE >> 20} MiB")
                yield row, row + 1, share, raw


def _as_bytes(column: Any, name: str, path: Path) -> list[bytes | None]:
    """Return texts as bytes, because arrow does not check that they are UTF-8. Equal codes share their text."""
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        texts = _as_bytes(column.dictionary, name, path)
        return [None if code is None else texts[code] for code in column.indices.to_pylist()]
    if pyarrow.types.is_null(column.type):
        return [None] * len(column)
    for kind, raw in ((pyarrow.string(), pyarrow.binary()), (pyarrow.large_string(), pyarrow.large_binary())):
        if column.type in (kind, raw):
            return column.cast(raw).to_pylist()
    raise InputError(f"column '{name}' must hold text, but in '{path}' it holds {column.type}; give another --column")


@dataclass(frozen=True)
class Format:
    read: Read
    parse: Callable[[Any, Sequence[str]], str]


TEXT = Format(read_text, parse_text)
TEXT_LINES = Format(read_text_lines, parse_text)
LINES = Format(read_lines, parse_line)
TABLE = Format(read_table, parse_row)
PARQUET = Format(read_parquet, parse_row)
ARROW = Format(read_arrow, parse_row)
ARROWS = (PARQUET, ARROW)
FORMATS = {
    ".txt": TEXT,
    ".md": TEXT,
    ".jsonl": LINES,
    ".json": LINES,
    ".csv": TABLE,
    ".tsv": TABLE,
    ".parquet": PARQUET,
    ".arrow": ARROW,
}


def format_of(name: str) -> Format | None:
    """Return the format of a file by its name. Parquet and arrow are never compressed as a whole."""
    kind = FORMATS.get(Path(plain_name(name)).suffix.lower())
    return None if kind in ARROWS and is_compressed(name) else kind


def format_at(path: Path) -> Format | None:
    """Return the format of a file. A .json file counts as a table only if its first line is an object."""
    kind = format_of(path.name)
    return kind if not is_json(path.name) or begins_with_object(path) else None


def is_json(name: str) -> bool:
    return Path(plain_name(name)).suffix.lower() == ".json"


def begins_with_object(path: Path) -> bool:
    try:
        return isinstance(json_object(next((raw for *_, raw in read_lines(path, 0, ())), b"{}")), dict)
    except (FlawError, TypeError):
        return False
