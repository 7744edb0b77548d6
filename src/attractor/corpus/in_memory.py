"""Read the documents of a file or folder into memory: a text as a whole, a table row by row.

Data that do not fit are refused; `attractor data prepare` reads texts of any size and keeps their tokens on disk.
"""

import codecs
import io
import os
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from attractor.console import in_bytes
from attractor.corpus.columns import columns_from
from attractor.corpus.compression import plain_name
from attractor.corpus.documents import SEPARATOR_LINE, Document
from attractor.corpus.readers import READ_SIZE, Opened, is_json
from attractor.corpus.sources import SPLITS, STATE, FileSource, documents, files_below, holds_table, readable
from attractor.errors import DamageWarning, InputError

MEMORY_SHARE = 4  # text may take a quarter of the machine's memory, since its tokens take twice as much
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class BinaryFileError(InputError):
    """A file that should be text is not UTF-8."""


def documents_at(path: Path, column: str | None = None) -> list[Document]:
    """Return the documents of a file, or of all files below a folder that are not hidden, by sorted name.

    A line `<|endoftext|>` in a .txt file separates documents. Every row of a table is a document: its column `text`,
    its only column of strings, or the columns that `column` names. A binary file is refused; in a folder it is skipped.
    """
    read, n_bytes = [], 0
    try:
        for document in _documents_at(path, column):
            read.append(document)
            n_bytes += len(document[1])
            _check_fits(n_bytes, path)
    except OSError as error:
        place = error.filename or path
        raise InputError(f"corpus file must be readable, but '{place}' is not: {error.strerror}; check it") from error
    return read


def _documents_at(path: Path, column: str | None) -> Iterator[Document]:
    columns = columns_from(column)
    if (path / SPLITS).is_file() or (path / STATE).is_file():
        yield from documents(FileSource.at(path.name, path, columns, "train"), max_bad=0)
        return
    alone = path.is_file()
    places = {path.name: path} if alone else {name: path / name for name in files_below(path)}
    tables = [name for name, place in places.items() if holds_table(place) or (alone and is_json(name))]
    if columns is not None and places and not tables:
        raise InputError(f"column must be left out with plain text, got '{column}' for '{path}'; leave it out")
    rows = FileSource.of(path.name, [places[name] for name in tables], tables, columns)
    binary = []
    for name, place in places.items():
        if name in tables:
            number = tables.index(name)
            table = replace(rows, paths=(place,), files=(name,), sizes=(rows.sizes[number],))
            yield from documents(table, max_bad=0)
            continue
        try:
            yield from _texts_in(place, name)
        except BinaryFileError:
            if alone:
                raise
            binary.append(name)
    if binary:
        text = f"skipped {len(binary)} binary file(s) in '{path}', the first is '{binary[0]}'"
        warnings.warn(text, DamageWarning, stacklevel=4)


def _texts_in(path: Path, name: str) -> list[Document]:
    content = io.BytesIO()
    for block in checked_blocks(path):
        content.write(block)
        _check_fits(content.tell(), path)
    text = content.getvalue().removeprefix(codecs.BOM_UTF8)
    if not plain_name(name).lower().endswith(".txt"):
        return [(name, text)]
    parts = SEPARATOR_LINE.split(text)
    return [(name, text)] if len(parts) == 1 else [(f"{name}#{i}", part) for i, part in enumerate(parts)]


def checked_blocks(path: Path) -> Iterator[bytes]:
    """Yield the content of a file in blocks, and refuse a block that is no text."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0
    with readable(path), Opened(path) as opened:
        while True:
            block = opened.file.read(READ_SIZE)
            utf_16 = not offset and block.startswith(UTF_16)
            if b"\0" in block and not utf_16:
                flaw = f"a NUL byte at offset {offset + block.index(0)}"
                raise _not_text(path, flaw, "it is binary, so give another file")
            undecided = len(decoder.getstate()[0])  # bytes of a character that the block before began
            try:
                decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                flaw = f"a byte at offset {offset - undecided + error.start} that is not UTF-8"
                step = f"convert it, as by: iconv -f {'utf-16' if utf_16 else 'latin-1'} -t utf-8 FILE > NEW"
                raise _not_text(path, flaw, step) from error
            if not block:
                return
            yield block
            offset += len(block)


def _not_text(path: Path, flaw: str, step: str) -> BinaryFileError:
    return BinaryFileError(f"corpus file must be UTF-8 text, but '{path}' has {flaw}; {step}")


def _check_fits(n_bytes: int, path: Path) -> None:
    limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // MEMORY_SHARE
    if n_bytes > limit:
        raise InputError(
            f"corpus must be at most {in_bytes(limit)} of text to be held in memory on this machine, but '{path}' has "
            "more; run 'attractor data prepare' on it and give the folder that it writes"
        )
