"""Read compressed files as a stream, so that a small file that expands to a huge one never fills the memory."""

import gzip
import io
import zlib
from pathlib import Path
from typing import BinaryIO

from attractor.errors import require_package

SUFFIXES = (".gz", ".zst")
BUFFER = 1 << 20


def is_compressed(name: str) -> bool:
    return Path(name).suffix.lower() in SUFFIXES


def plain_name(name: str) -> str:
    """Return the name of a file without its folder and without the suffix of its compression."""
    return Path(name).stem if is_compressed(name) else Path(name).name


def decompressed(raw: BinaryIO, path: Path) -> BinaryIO:
    """Return the content of a file, which is decompressed if the name says so."""
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return gzip.GzipFile(fileobj=raw)  # type: ignore[return-value]
    if suffix == ".zst":
        arrow = require_package("pyarrow")
        stream = arrow.CompressedInputStream(arrow.PythonFile(raw, mode="r"), "zstd")
        return io.BufferedReader(stream, BUFFER)
    return raw


DAMAGED_GZIP = (EOFError, gzip.BadGzipFile, zlib.error)
