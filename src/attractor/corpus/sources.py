"""Where large corpora are read from: files, folders, dumps, the Hugging Face Hub, Python's own library."""

import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from attractor.corpus.articles import Articles
from attractor.corpus.documents import CORPORA, Document
from attractor.corpus.hub import ALIASES, hub_source
from attractor.corpus.readers import (
    ARROWS,
    FORMATS,
    LINES,
    TEXT,
    TEXT_LINES,
    Format,
    check_columns,
    format_of,
    has_known_suffix,
    read_lines,
)
from attractor.corpus.records import FlawError, Record, Source, decoded, parts
from attractor.errors import InputError, unknown


def open_source(name: str, columns: Sequence[str] = ("text",), split: str = "train", articles: bool = False) -> Source:
    """A file, a folder, a pattern, a dump, the name of a built-in corpus, or `name:config:column` on the Hub; with
    `articles`, the rows of tables and the lines of texts are lines of longer documents."""
    if not all(columns):
        raise InputError(f"column must be one name or several, as title,abstract, got '{','.join(columns)}'; name one")
    source = _open(name, columns, split)
    if articles and isinstance(source, FileSource):
        source = replace(source, by_line=True)
    return Articles(source) if articles and not isinstance(source, Articles) else source


def _open(name: str, columns: Sequence[str], split: str) -> Source:
    path = Path(name).expanduser()
    if path.exists():
        return FileSource.at(name, path, columns, split)
    if name in CORPORA:
        return BuiltIn(name)
    if re.search(r"[*?\[]", name):
        found = sorted(each for each in Path(path.anchor).glob(str(path.relative_to(path.anchor))) if each.is_file())
        if not found:
            raise InputError(f"source must match files, but '{name}' matches none; check the pattern")
        return FileSource.of(name, found, [each.as_posix() for each in found], columns)
    if name in ALIASES or (re.fullmatch(r"[\w.-]+(/[\w.-]+)?(:[^:]*){0,2}", name) and not has_known_suffix(name)):
        if re.fullmatch(r"[\w-]+", name) and name not in ALIASES:
            raise unknown(
                "source", name, [*CORPORA, *ALIASES], see="or a file, a folder, a pattern, owner/name:config:column"
            )
        return hub_source(name, columns, split)
    raise InputError(f"source must be a file, a folder, a pattern or a dataset, but '{name}' does not exist; check it")


def documents(source: Source) -> Iterator[Document]:
    """Every readable document with its place, for whoever needs only the texts."""
    for record in source.records():
        try:
            text = source.text(record)
        except FlawError:
            continue
        for part in parts(text):
            yield place_name(source, record.file, record.position), part


def place_name(source: Source, file: int, position: int) -> str:
    return f"{source.files[file]}@{position}"


@dataclass(frozen=True)
class FileSource:
    name: str
    paths: tuple[Path, ...]
    files: tuple[str, ...]
    sizes: tuple[int, ...]
    columns: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    by_line: bool = False
    """Whether each line of a text is a record, rather than each text."""

    @classmethod
    def at(cls, name: str, path: Path, columns: Sequence[str], split: str) -> "FileSource":
        """One file, a folder, or what `save_to_disk` of the datasets library left."""
        if path.is_file():
            return cls.of(name, [path], [path.name], columns)
        if (path / "dataset_dict.json").is_file():
            splits = _listed(path / "dataset_dict.json", "splits")
            if split not in splits:
                raise unknown("split", split, splits)
            path = path / split
        if (path / "state.json").is_file():
            saved = [str(entry["filename"]) for entry in _listed(path / "state.json", "_data_files")]
            return cls.of(name, [path / each for each in saved], saved, columns)
        below = sorted(found.relative_to(path).as_posix() for found in path.rglob("*") if found.is_file())
        shown = [found for found in below if not any(part.startswith(".") for part in found.split("/"))]
        known = [found for found in shown if has_known_suffix(found)]
        if not known:
            suffixes = sorted({Path(found).suffix or "no suffix" for found in shown})
            raise InputError(
                f"source folder must hold files of a known type ({', '.join(FORMATS)}), but '{name}' has "
                f"{', '.join(suffixes[:5]) or 'no files'}; give another folder or rename them"
            )
        skipped = [found for found in shown if not has_known_suffix(found)]
        return cls.of(name, [path / found for found in known], known, columns, skipped)

    @classmethod
    def of(
        cls, name: str, paths: Sequence[Path], files: Sequence[str], columns: Sequence[str], skipped: Sequence[str] = ()
    ) -> "FileSource":
        for path in paths:
            if not has_known_suffix(path.name):
                raise InputError(
                    f"file type must be one of {', '.join(FORMATS)} (texts and tables also with .gz), but '{path}' is "
                    "none of them; convert or rename it"
                )
            if not path.is_file():
                raise InputError(f"source must be whole, but '{path}' is missing; fetch it again")
        sizes = tuple(path.stat().st_size for path in paths)
        source = cls(name, tuple(paths), tuple(files), sizes, tuple(columns), tuple(skipped))
        source._check_first_object()
        return source

    @property
    def identity(self) -> dict[str, Any]:
        files = [{"name": name, "size": size} for name, size in zip(self.files, self.sizes, strict=True)]
        return {"kind": "files", "name": self.name, "columns": list(self.columns), "files": files}

    def records(self, file: int = 0, position: int = 0) -> Iterator[Record]:
        for number in range(file, len(self.paths)):
            path = self.paths[number]
            with _readable(path):
                for record in self._format(path).read(path, position if number == file else 0, self.columns):
                    yield Record(number, *record)

    def text(self, record: Record) -> str:
        if isinstance(record.raw, FlawError):
            raise record.raw
        return self._format(self.paths[record.file]).parse(record.raw, self.columns)

    def _format(self, path: Path) -> Format:
        kind = format_of(path.name)
        assert kind is not None
        return TEXT_LINES if self.by_line and kind is TEXT else kind

    def _check_first_object(self) -> None:
        """Tables name their columns; of lines, the first that is an object shows them."""
        for path in self.paths[:1]:
            if format_of(path.name) is not LINES:
                continue
            with _readable(path):
                first = [raw for *_, raw in islice(read_lines(path, 0, self.columns), 100)]
            for raw in first:
                try:
                    row = json.loads(raw)
                except (TypeError, ValueError, RecursionError):
                    continue
                if isinstance(row, dict):
                    check_columns(path, list(row), self.columns)
                    return


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """What the libraries say of a damaged file, in one line."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"gzip file must be whole, but '{path}' is not ({error}); fetch it again") from error
    except (ValueError, OSError, NotImplementedError) as error:
        # What arrow finds wrong with the content may be any of these; what the system refuses has a number.
        if format_of(path.name) not in ARROWS or isinstance(error, InputError) or getattr(error, "errno", None):
            raise
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"file must be {path.suffix[1:]}, but '{path}' cannot be read as such ({said}); fetch it again"
        ) from error


def _listed(path: Path, key: str) -> list[Any]:
    """What a file beside a saved data set lists under that name."""
    try:
        return list(json.loads(path.read_bytes())[key])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"'{path}' must be what save_to_disk of the datasets library writes, but has no '{key}'; save the data set "
            "again, or move that file elsewhere if it belongs to none"
        ) from error


class BuiltIn:
    """A corpus that every Python has, one document a file."""

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
