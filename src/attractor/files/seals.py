"""Seals: checksums of what was written, by which whoever reads it later recognises damage.

    {..., "checksum": SHA-256}       an object of JSON carries the checksum of its other fields
    {"weights.bin": SHA-256, ...}    a manifest lists the checksums of files, and is itself a sealed object
    RunningHash                      the checksum of a file that grows is kept by the process that appends to it

A checksum is computed from what a process writes, never from what lies on the disk when the seal is written: a file
that was damaged in between must not become valid. A seal tells damage. It does not tell who wrote a file.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attractor.errors import InputError
from attractor.files import from_json, open_regular, plain, read_regular, write_json

CHECKSUM = "checksum"
CHANGED = "does not have the content that was written (checksum)"
LARGEST_OBJECT = 64 << 20  # bytes of a file that holds one object of JSON
BLOCK = 1 << 20


class RunningHash:
    """The SHA-256 of bytes that are added one after another, and their number."""

    def __init__(self, content: bytes = b"") -> None:
        self.begin(content)

    def begin(self, content: bytes) -> None:
        """Start anew with this content."""
        self._hash, self.n_bytes = hashlib.sha256(content), len(content)

    def add(self, content: bytes) -> None:
        self._hash.update(content)
        self.n_bytes += len(content)

    @property
    def checksum(self) -> str:
        return self._hash.hexdigest()


def checksum_of(path: Path, n_bytes: int | None = None) -> str:
    """Return the SHA-256 of a file, or of its first bytes."""
    hashed = RunningHash()
    with open_regular(path) as file:
        while block := file.read(BLOCK if n_bytes is None else min(BLOCK, n_bytes - hashed.n_bytes)):
            hashed.add(block)
    return hashed.checksum


def changed(folder: Path, checksums: Mapping[str, str], lengths: Mapping[str, int] | None = None) -> list[str]:
    """Return the names of the files in a folder that are gone, or whose content, up to a length, was changed."""
    lengths = lengths or {}
    return [
        name
        for name, checksum in checksums.items()
        if not (folder / name).is_file() or checksum_of(folder / name, lengths.get(name)) != checksum
    ]


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object of JSON with a checksum of its content."""
    return {**content, CHECKSUM: _checksum_of_object(plain(dict(content)))}


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    write_json(path, sealed(content))


def seal_holds(stored: Mapping[str, Any]) -> bool:
    """Return whether a sealed object, as it was read from JSON, has the content that it was sealed with."""
    return CHECKSUM in stored and stored[CHECKSUM] == _checksum_of_object(without_checksum(stored))


def _checksum_of_object(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def without_checksum(stored: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in stored.items() if name != CHECKSUM}


def unsealed(stored: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the content of a sealed object, or refuse a changed one. Objects of earlier versions have no checksum, and
    are taken as they are."""
    if CHECKSUM in stored and not seal_holds(stored):
        raise InputError(f"{what} is damaged: it {CHANGED}; restore it or make it anew")
    return without_checksum(stored)


def read_sealed(path: Path) -> dict[str, Any] | None:
    """Return the content of a sealed object in a file, or None where there is no file."""
    stored = read_object(path)
    return None if stored is None else unsealed(stored, f"'{path}'")


def read_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None where there is no file."""
    try:
        value = from_json(read_regular(path, LARGEST_OBJECT).decode())
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None
    except InputError:
        raise
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InputError(f"'{path}' is damaged: it must hold one JSON object; restore it or run again elsewhere")
    return value
