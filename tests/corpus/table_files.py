"""Texts in a file of every format that is read."""

import csv
import gzip
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow
from pyarrow import parquet

from attractor.corpus import compression


def as_lines(texts: Sequence[str], column: str = "text") -> bytes:
    """Return objects with a blank line between them."""
    return "\n\n".join(json.dumps({"id": i, column: text}) for i, text in enumerate(texts)).encode()


def as_cells(texts: Sequence[str], delimiter: str = ",", column: str = "text") -> bytes:
    """Return rows behind the mark that some spreadsheets write."""
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter).writerows([("id", column), *enumerate(texts)])
    return file.getvalue().encode("utf-8-sig")


def as_parquet(texts: Sequence[str], column: str = "text") -> bytes:
    file = io.BytesIO()
    parquet.write_table(pyarrow.table({"id": range(len(texts)), column: texts}), file, row_group_size=2)
    return file.getvalue()


def as_arrow(texts: Sequence[str]) -> bytes:
    file = io.BytesIO()
    table = pyarrow.table({"text": pyarrow.array(texts).dictionary_encode(), "id": range(len(texts))})
    with pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return file.getvalue()


def zstd(content: bytes) -> bytes:
    """Compress into two frames, as a program that appends to a file leaves them."""
    return b"".join(pyarrow.Codec("zstd").compress(part, asbytes=True) for part in (content[:100], content[100:]))


FILES: dict[str, Callable[[Sequence[str]], bytes]] = {
    "a.txt": lambda texts: "\n<|endoftext|>\n".join(texts).encode(),
    "a.jsonl": as_lines,
    "a.json": as_lines,
    "a.csv": as_cells,
    "a.tsv": lambda texts: as_cells(texts, "\t"),
    "a.parquet": as_parquet,
    "a.arrow": as_arrow,
}


def written(folder: Path, name: str, texts: Sequence[str]) -> Path:
    """Write the texts to a file of that name. In a text file a line break precedes each separator of documents."""
    content = FILES[compression.plain_name(name)](texts)
    if name.endswith(".gz"):
        content = gzip.compress(content)
    path = folder / name
    path.write_bytes(zstd(content) if name.endswith(".zst") else content)
    return path
