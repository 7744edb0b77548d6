"""Write files atomically: a run may be killed at any moment, and a file then holds its old or its new content.

The umask decides who may read what attractor writes, in every file and folder alike. Only folders for files that pass
between processes (`private_folder`) are for their user alone.
"""

import errno
import hashlib
import json
import math
import os
import re
import shutil
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from attractor.errors import InputError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NEXT_STEPS = {
    **dict.fromkeys(FULL, "make room there or choose another place"),
    errno.EROFS: "that file system cannot be written; choose another place",
    errno.EACCES: "change its permissions or choose another place",
    errno.EPERM: "change its permissions or choose another place",
    errno.ENOENT: "check the path, of which a part does not exist",
    errno.EISDIR: "give the path of a file, since this is a folder",
    errno.ENOTDIR: "choose another place, since a part of that path is a file",
    errno.EEXIST: "choose another name",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EMFILE: "allow more open files (ulimit -n)",
}


DECODER = json.JSONDecoder()
DAMAGED = ".damaged"  # ends the name of a file that was set aside


def next_step(error: OSError) -> str:
    """Return what a person can do about an error of the operating system."""
    return NEXT_STEPS.get(error.errno or 0, "choose another place")


def plain(value: Any) -> Any:
    """Convert `value` for JSON: tuples become lists, and NaN and infinity, which JSON lacks, become null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    return value


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON for people and programs to read, atomically."""
    # A file name that is not UTF-8 has lone surrogates. Their escape by backslashes is that of JSON.
    write_bytes(path, in_json(value).encode("utf-8", errors="backslashreplace"))


def from_json(text: bytes | str) -> Any:
    """Parse JSON, and raise a ValueError where it is none, or is nested too deeply."""
    try:
        return DECODER.decode(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def in_json(value: Any) -> str:
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


MACHINE = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]
TEMPORARY = re.compile(r"\..+\.(?:([0-9a-f]{6})-)?(\d+)(?:-\d+)?\.tmp")  # the machine and the process that write it
FORGOTTEN = 86_400.0  # seconds after which a temporary file of another machine is taken for a leftover


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading. A pipe or a device, which might never end, is refused without waiting for it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise InputError(f"'{path}' must be a regular file, and is a pipe or a device; write its content to a file first")


def read_regular(path: Path, largest: int, next_step: str = "restore it from a copy") -> bytes:
    """Return the content of a regular file of at most `largest` bytes."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > largest:
            raise InputError(f"'{path}' must be a file of at most {largest >> 20} MiB, and is larger; {next_step}")
        return file.read()


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Write the whole file or leave the old one untouched.

    The temporary file lies in the same folder because a rename is atomic only within one file system, and it reaches
    the disk before the rename so that a power cut cannot leave a new name over empty content.
    """
    temporary = temporary_path(path)
    refuse_folder(path)
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # the path that the user gave, not the temporary name
        raise
    finally:
        temporary.unlink(missing_ok=True)


def cache_folder() -> Path:
    """Return the user's folder for what can be computed anew at any time."""
    named = os.environ.get("ATTRACTOR_CACHE")
    usual = os.environ.get("XDG_CACHE_HOME") or Path("~", ".cache").expanduser()
    return Path(named) if named else Path(usual, "attractor")


def flush_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_open_folder(path: Path) -> None:
    """Refuse a folder for private files that another user owns or may enter, and may have made in advance."""
    status = path.lstat()
    is_private = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    if not is_private:
        raise InputError(
            f"folder must be yours alone (mode 0700), and '{path}' is not; remove it, or choose another place"
        )


def refuse_folder(path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))


def set_aside(path: Path) -> Path:
    """Rename a damaged file or folder, never over an earlier one, and return its new path."""
    number = 0
    while os.path.lexists(place := path.with_name(f"{path.name}{DAMAGED}{number or ''}")):
        number += 1
    return path.rename(place)


def prepare_place(file: Path | None) -> None:
    """Before long work, refuse an output path that is a folder, and create the folders above it."""
    if file is not None:
        refuse_folder(file)
        file.parent.mkdir(parents=True, exist_ok=True)


def temporary_path(path: Path) -> Path:
    """Return the name beside `path` under which this thread writes it, before it is renamed."""
    return path.with_name(f".{path.name}.{MACHINE}-{os.getpid()}-{threading.get_ident()}.tmp")


def remove_leftovers(*folders: Path) -> None:
    """Remove the temporary files and folders that killed processes left in folders, and none of a living process."""
    for folder in folders:
        for path in folder.glob(".*.tmp"):
            with suppress(OSError):  # another process removes it, too, or it is not ours to remove
                if _is_leftover(path):
                    remove(path)


def remove(path: Path) -> None:
    """Remove a folder with all it holds, or a file. Of a link, remove the link itself."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def is_running(process: int) -> bool:
    """Return whether a process of this machine has this id, of whichever user."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _is_leftover(path: Path) -> bool:
    name = TEMPORARY.fullmatch(path.name)
    if name is not None and name[1] in (None, MACHINE) and not is_running(int(name[2])):
        return True
    return time.time() - path.lstat().st_mtime > FORGOTTEN


def follow_umask(*paths: Path) -> None:
    """Give files the permissions of the umask, where a library made them readable by their user alone."""
    for path in paths:
        example = temporary_path(path)
        try:
            with example.open("xb") as file:
                mode = os.fstat(file.fileno()).st_mode
        finally:
            example.unlink(missing_ok=True)
        path.chmod(mode & 0o777)


@contextmanager
def private_folder(prefix: str, parent: str | None = None) -> Iterator[Path]:
    """Yield a new folder inside a temporary folder of mode 0700, and remove both at the end.

    The inner folder stays private even if a library opens it to all users."""
    outer = tempfile.mkdtemp(prefix=prefix, dir=parent)
    try:
        inner = Path(outer, "in")
        inner.mkdir(0o700)
        yield inner
    finally:
        shutil.rmtree(outer, ignore_errors=True)


def refuse_inhabited(out: Path) -> None:
    """Refuse an output folder that is neither new nor empty."""
    if out.is_file():
        raise InputError(f"out must be a folder, and '{out}' is a file; choose another name")
    if out.is_dir() and any(out.iterdir()):
        raise InputError(f"out must be a new or empty folder, and '{out}' holds files; choose another, or remove it")
