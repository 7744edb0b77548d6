"""Store an unfinished preparation on disk, so that it can be killed at any moment and resumed.

Files only grow. A commit replaces one small JSON file as a whole. It holds the length of every other file, the position
in the source after the last record, and all counts. What was written after the last commit is cut off when the
preparation resumes, so the result does not depend on where it stopped.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from attractor.corpus.shards import SIDES
from attractor.errors import InputError
from attractor.files import write_json

PROGRESS = "progress.json"
LOCK = "lock"
DOCUMENT = np.dtype([("key", "<u8"), ("position", "<u8"), ("file", "<u4"), ("n_tokens", "<u4")])
PORTION = 1 << 20
N_SAMPLES = 5


@dataclass
class TokenBlock:
    """The tokens and documents that a block of records adds to one side."""

    tokens: np.ndarray
    documents: np.ndarray
    n_bytes: int


@dataclass
class PreparationCounts:
    """Totals up to the last record. `place` is the file and position from which to resume."""

    place: tuple[int, int] = (0, 0)
    n_records: int = 0
    n_empty: int = 0
    n_malformed: int = 0
    malformed: list[str] = field(default_factory=list)
    n_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SIDES, 0))
    n_tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SIDES, 0))
    n_documents: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SIDES, 0))
    finished: bool = False


class UnfinishedCorpus:
    """The growing files of a preparation."""

    def __init__(self, folder: Path, dtype: np.dtype) -> None:
        self.folder = folder
        self.dtype = dtype
        self.counts = PreparationCounts()
        committed: dict[str, int] = {}
        if (folder / PROGRESS).is_file():
            try:
                stored: dict[str, Any] = json.loads((folder / PROGRESS).read_text(encoding="utf-8"))
                committed = stored["lengths"]
                self.counts = PreparationCounts(**stored["counts"] | {"place": tuple(stored["counts"]["place"])})
            except (ValueError, KeyError, TypeError) as error:
                raise _damaged(folder, f"{PROGRESS} must be as it was written, but cannot be read") from error
        for name, length in committed.items():
            size = (folder / name).stat().st_size if (folder / name).is_file() else 0
            if size < length:
                raise _damaged(folder, f"{name} must have at least {length:,} bytes, but has {size:,}")
        self._files: dict[str, BinaryIO] = {}
        for name in (f"{side}.{kind}" for side in SIDES for kind in ("tokens", "documents")):
            file = (folder / name).open("ab")
            file.truncate(committed.get(name, 0))
            file.seek(0, os.SEEK_END)
            self._files[name] = file

    def append(self, side: str, part: TokenBlock) -> None:
        self._files[f"{side}.tokens"].write(part.tokens.astype(self.dtype).tobytes())
        self._files[f"{side}.documents"].write(part.documents.tobytes())
        self.counts.n_bytes[side] += part.n_bytes
        self.counts.n_tokens[side] += len(part.tokens)
        self.counts.n_documents[side] += len(part.documents)

    def commit(self) -> None:
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        lengths = {name: file.tell() for name, file in self._files.items()}
        write_json(self.folder / PROGRESS, {"lengths": lengths, "counts": asdict(self.counts)})

    def close(self) -> None:
        for file in self._files.values():
            file.close()

    def side(self, side: str) -> "WrittenSide":
        return WrittenSide(self.folder / side, self.dtype)


class WrittenSide:
    """The written documents of one side, read in portions."""

    def __init__(self, stem: Path, dtype: np.dtype) -> None:
        self._stem = stem
        self._dtype = dtype
        self.documents = np.fromfile(stem.with_suffix(".documents"), dtype=DOCUMENT)

    def tokens(self, kept: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the tokens of the documents that are kept (a boolean for each), in blocks."""
        ends = np.cumsum(self.documents["n_tokens"], dtype=np.int64)
        starts = ends - self.documents["n_tokens"]
        changes = np.flatnonzero(np.diff(np.concatenate(([False], kept, [False])).astype(np.int8)))
        with self._stem.with_suffix(".tokens").open("rb") as file:
            for first, behind in changes.reshape(-1, 2):
                file.seek(int(starts[first]) * self._dtype.itemsize)
                left = int(ends[behind - 1] - starts[first])
                while left:
                    block = np.fromfile(file, dtype=self._dtype, count=min(left, PORTION))
                    left -= len(block)
                    yield block


def _damaged(folder: Path, fault: str) -> InputError:
    return InputError(f"{fault}; remove '{folder}', and the same command begins anew")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the work folder for one process. The kernel releases the lock however the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"out must be free, but another process prepares '{folder.parent}'; wait until it ends, or stop it"
            ) from None
        yield
