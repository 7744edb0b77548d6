"""Open sources of documents: files, folders, dumps, the Hugging Face Hub, and Python's standard library."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from attractor.corpus.articles import Articles
from attractor.corpus.columns import N_ROWS, USUAL, as_object, text_column
from attractor.corpus.compression import DAMAGED_GZIP
from attractor.corpus.data_paths import expanded, matching_files, searched_places
from attractor.corpus.documents import CORPORA, Document
from attractor.corpus.hub import ALIASES, hub_source
from attractor.corpus.readers import (
    ARROWS,
    FORMATS,
    LINES,
    TABLE,
    TEXT,
    TEXT_LINES,
    Format,
    format_at,
    format_of,
    is_json,
    line_of_row,
    n_lines,
    read_lines,
)
from attractor.corpus.records import EARLIEST_VERDICT, Record, Source, decoded, parts, refuse_many_flaws
from attractor.corpus.shards import MANIFEST, PLAN, WORK, is_prepared
from attractor.errors import InputError, require_known, unknown
from attractor.tables import FlawError, check_columns

SPLITS, STATE = "dataset_dict.json", "state.json"  # files that save_to_disk of the datasets library writes
MOST_LISTED = 10_000  # files that the manifest of a corpus lists one by one


def open_source(
    name: str, columns: Sequence[str] | None = None, split: str = "train", articles: bool = False
) -> Source:
    """Open a file, a folder, a pattern, a dump, a built-in corpus by name, or `name:config:column` on the Hub.

    Without `columns`, the text of a table is its column `text`, or else its only column of strings. With `articles`,
    the rows of tables and the lines of texts are lines of longer documents."""
    source = _open(name, columns, split)
    if articles and isinstance(source, FileSource):
        source = replace(source, by_line=True)
    return Articles(source) if articles and not isinstance(source, Articles) else source


def _open(name: str, columns: Sequence[str] | None, split: str) -> Source:
    if name in CORPORA:
        return BuiltIn(name)
    path = expanded(name)
    if path.exists():
        return FileSource.at(name, path, columns, split)
    if re.search(r"[*?\[]", name):
        files = matching_files(path)
        if not files:
            raise InputError(f"source must match files, but '{name}' matches none; check the pattern")
        names = [file.as_posix() for file in files]
        return FileSource.of(name, FilePaths(Path(), names), names, columns)
    if name in ALIASES or (re.fullmatch(r"[\w.-]+(/[\w.-]+)?(:[^:]*){0,2}", name) and not format_of(name)):
        if re.fullmatch(r"[\w-]+", name) and name not in ALIASES:
            raise unknown(
                "source", name, [*CORPORA, *ALIASES], see="or a file, a folder, a pattern, owner/name:config:column"
            )
        try:
            return hub_source(name, columns or (USUAL,), split)
        except InputError as error:
            if name in ALIASES:
                raise
            raise InputError(f"'{name}' is no file or folder here, and on the Hub: {error}") from error
    missing = f"source must be a file, a folder, a pattern or a dataset, but '{name}' does not exist"
    raise InputError(f"{missing}; {searched_places(name)}")


def refuse_unused_options(source: Source, columns: Sequence[str] | None, split: str = "train") -> None:
    """Refuse a column for a source without tables, and a split for a source without splits."""
    rows = source.rows if isinstance(source, Articles) else source
    if not isinstance(rows, FileSource | BuiltIn):
        return
    if columns is not None and all(format_of(name) in (None, TEXT) for name in rows.files):
        rule = "column must be left out with plain text"
        raise InputError(f"{rule}, got '{','.join(columns)}' for '{rows.name}'; leave it out")
    if split != "train" and not (expanded(rows.name) / SPLITS).is_file():
        raise InputError(f"split must be left out with '{rows.name}', which has no splits, got '{split}'; leave it out")


def modification_times(source: Source) -> list[int]:
    """Return when each file of a source was last written, in nanoseconds; nothing where the files are not here."""
    rows = source.rows if isinstance(source, Articles) else source
    return [path.stat().st_mtime_ns for path in rows.paths] if isinstance(rows, FileSource) else []


def continues(source: Source, before: Record, record: Record) -> bool:
    """Whether a record is the next part of a text that is cut because it is too long."""
    return (
        isinstance(source, FileSource)
        and source.format_of_file(record.file) is TEXT
        and record.file == before.file
        and len(before.raw) == before.after - before.position  # no separator lies between the parts
    )


def documents(source: Source, max_bad: float = 0.01) -> Iterator[Document]:
    """Yield every document with its place as its name, leaving out records that cannot be read.

    If more than the share `max_bad` of the records cannot be read, raise an error that names the first."""
    first = ""
    n_flaws = n_records = 0

    for n_records, record in enumerate(source.records(), start=1):
        try:
            text = source.text(record)
        except FlawError as flaw:
            n_flaws += 1
            first = first or f"{record_name(source, record)}: {flaw}"
            if n_records >= EARLIEST_VERDICT:
                refuse_many_flaws(n_flaws, n_records, max_bad, first)
            continue
        for part in parts(text):
            yield place_name(source, record.file, record.position), part
    refuse_many_flaws(n_flaws, n_records, max_bad, first)


def record_name(source: Source, record: Record) -> str:
    """Name a record by its line in a file of lines or cells, and by its number in another table."""
    rows = source.rows if isinstance(source, Articles) else source
    if not isinstance(rows, FileSource):
        return place_name(source, record.file, record.position)
    path, name = rows.paths[record.file], rows.files[record.file]
    kind = format_of(name)
    if kind in ARROWS:
        return f"row {record.position + 1} of '{name}'"
    line = line_of_row(path, record.position) if kind is TABLE else 1 + n_lines(path, record.position)
    return f"line {line} of '{name}'"


def place_name(source: Source, file: int, position: int) -> str:
    return f"{source.files[file]}@{position}"


@dataclass(frozen=True)
class FilePaths(Sequence[Path]):
    """The paths of files below a folder. Each is made when it is asked for: a million of them would fill a gigabyte."""

    folder: Path
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return FilePaths(self.folder, self.names[number])
        return self.folder / self.names[number]


@dataclass(frozen=True)
class FileSource:
    name: str
    paths: Sequence[Path]
    files: tuple[str, ...]
    sizes: tuple[int, ...]
    columns: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    by_line: bool = False
    """Whether each line of a text is a record, rather than each text."""

    @classmethod
    def at(cls, name: str, path: Path, columns: Sequence[str] | None, split: str) -> "FileSource":
        """Open a file, a folder, or a data set that `save_to_disk` of the datasets library wrote."""
        if path.is_file():
            return cls.of(name, [path], [path.name], columns)
        if (path / SPLITS).is_file():
            splits = _listed(path / SPLITS, "splits")
            require_known("split", split, splits)
            path = path / split
        if (path / STATE).is_file():
            saved = [str(entry["filename"]) for entry in _listed(path / STATE, "_data_files")]
            return cls.of(name, FilePaths(path, saved), saved, columns)
        if is_prepared(path):
            raise InputError(
                f"source must be text, but '{name}' is a prepared corpus; give the source that it was made from"
            )
        files = files_below(path)
        known: list[str] = []
        skipped: list[str] = []
        for file in files:
            (skipped if readable_format(path / file) is None else known).append(file)
        if not known:
            suffixes = sorted({Path(file).suffix or "no suffix" for file in files})
            raise InputError(
                f"source folder must hold files of a known type ({', '.join(FORMATS)}), but '{name}' has "
                f"{', '.join(suffixes[:5]) or 'no files'}; give another folder or rename them"
            )
        return cls.of(name, FilePaths(path, known), known, columns, skipped)

    @classmethod
    def of(
        cls,
        name: str,
        paths: Sequence[Path],
        files: Sequence[str],
        columns: Sequence[str] | None,
        skipped: Sequence[str] = (),
    ) -> "FileSource":
        for path in paths:
            if format_of(path.name) is None:
                raise InputError(
                    f"file type must be one of {', '.join(FORMATS)} (all but the last two also with .gz or .zst), but "
                    f"'{path}' is none of them; convert or rename it"
                )
            if not path.is_file():
                raise InputError(f"source must be whole, but '{path}' is missing; fetch it again")
            if is_json(path.name) and not holds_table(path):
                raise InputError(
                    f"json file must hold one object in each line, but '{path}' does not begin with one; for a list, "
                    "run: jq -c '.[]' FILE.json > FILE.jsonl"
                )
        if columns is None:
            columns = [USUAL]
            if table := next(filter(holds_table, paths), None):
                with readable(table):
                    columns = [text_column(table)]
        sizes = tuple(path.stat().st_size for path in paths)
        source = cls(name, paths, tuple(files), sizes, tuple(columns), tuple(skipped))
        source._check_first_object()
        return source

    @property
    def identity(self) -> dict[str, Any]:
        files = listing(self.files, self.sizes)
        return {"kind": "files", "name": self.name, "columns": list(self.columns), "files": files}

    def records(self, file: int = 0, position: int = 0) -> Iterator[Record]:
        for number in range(file, len(self.paths)):
            path = self.paths[number]
            with readable(path):
                for record in self.format_of_file(number).read(path, position if number == file else 0, self.columns):
                    yield Record(number, *record)

    def text(self, record: Record) -> str:
        if isinstance(record.raw, FlawError):
            raise record.raw
        return self.format_of_file(record.file).parse(record.raw, self.columns)

    def format_of_file(self, number: int) -> Format:
        kind = format_of(self.paths[number].name)
        assert kind is not None
        return TEXT_LINES if self.by_line and kind is TEXT else kind

    def _check_first_object(self) -> None:
        """Check the columns of a file of lines by its first object; other tables name their columns."""
        for path in self.paths[:1]:
            if format_of(path.name) is LINES:
                with readable(path):
                    first = [raw for *_, raw in islice(read_lines(path, 0, self.columns), N_ROWS)]
                if row := next(filter(None, map(as_object, first)), None):
                    check_columns(path, list(row), self.columns)


def listing(names: Sequence[str], sizes: Sequence[int]) -> Any:
    """Return the name and the size of each file, or where there are many of them, their number, bytes and checksum."""
    if len(names) <= MOST_LISTED:
        return [{"name": name, "size": size} for name, size in zip(names, sizes, strict=True)]
    checksum = hashlib.sha256()
    for name, size in zip(names, sizes, strict=True):
        checksum.update(f"{size} {name}\n".encode(errors="surrogateescape"))
    return {"count": len(names), "bytes": sum(sizes), "sha256": checksum.hexdigest()}


def files_below(folder: Path) -> list[str]:
    """Return the files below a folder, by sorted name, without hidden ones and those of prepared corpora."""
    below = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    shown = [name for name in below if not any(part.startswith(".") for part in name.split("/"))]
    ends = (f"/{MANIFEST}", f"/{WORK}/{PLAN}")
    places = {name.removesuffix(end) for name in shown for end in ends if name.endswith(end)}
    corpora = tuple(f"{place}/" for place in places if is_prepared(folder / place))
    return [name for name in shown if not name.startswith(corpora)]


def holds_table(path: Path) -> bool:
    """Whether a file holds rows with columns rather than a text."""
    return readable_format(path) not in (None, TEXT)


def readable_format(path: Path) -> Format | None:
    with readable(path):
        return format_at(path)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn the errors of libraries about a damaged file into one line."""
    try:
        yield
    except DAMAGED_GZIP as error:
        fault = f"gzip file must be whole, but '{path}' is not ({reason_of(error)})"
        raise InputError(f"{fault}; fetch it again") from error
    except (ValueError, OSError) as error:
        # Arrow raises either for damaged content. Errors of the operating system have an errno.
        is_zst = path.suffix.lower() == ".zst" and isinstance(error, OSError)
        is_of_arrow = is_zst or (format_of(path.name) in ARROWS and not isinstance(error, InputError))
        if not is_of_arrow or getattr(error, "errno", None):
            raise
        fault = f"file must be {path.suffix[1:]}, but '{path}' cannot be read as such ({reason_of(error)})"
        if is_zst:
            fault = f"zst file must be whole, but '{path}' is not ({reason_of(error)})"
        raise InputError(f"{fault}; fetch it again") from error


def reason_of(error: Exception) -> str:
    """Return the first line of what a library says."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _listed(path: Path, key: str) -> list[Any]:
    """Return the list under a key of a file that belongs to a saved data set."""
    try:
        return list(json.loads(path.read_bytes())[key])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"'{path}' must be what save_to_disk of the datasets library writes, but has no '{key}'; save the data set "
            "again, or move that file elsewhere if it belongs to none"
        ) from error


class BuiltIn:
    """A corpus from Python's standard library, with one document per file."""

    sizes = None

    def __init__(self, name: str) -> None:
        self.name = name
        self._documents = CORPORA[name]()
        self.files = [place for place, _ in self._documents]

    @property
    def identity(self) -> dict[str, Any]:
        return {"kind": "built-in", "name": self.name, "files": len(self.files)}

    def records(self, file: int = 0, position: int = 0) -> Iterator[Record]:
        for number in range(file + (position > 0), len(self._documents)):
            yield Record(number, 0, 1, 1.0, self._documents[number][1])

    def text(self, record: Record) -> str:
        return decoded(record.raw)
