"""Pack a run folder into bytes, and unpack it on a machine that shares no file system.

An archive is a tar of plain files with relative names, and nothing in it is executed or unpickled. Arrived files are
renamed into place, the summary last, because its presence means that the run is complete.
"""

import io
import os
import tarfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from attractor.errors import InputError
from attractor.runs.lock import hold
from attractor.runs.run_folder import RunFolder
from attractor.train.checkpoint import best_checkpoint, list_checkpoints

IN_PROGRESS = ("seal.json", "config.json", "environment.json", "metrics.jsonl", "notes.txt")
FIRST, LAST = "config.json", "summary.json"


def pack(folder: Path, every_checkpoint: bool = False) -> bytes:
    """Pack the whole folder, with its best and its last checkpoint, or with all."""
    inside = RunFolder.open(folder).checkpoints
    complete = list_checkpoints(inside)
    kept = set(complete) if every_checkpoint else {best_checkpoint(inside), *complete[-1:]}
    paths = []
    for path in sorted(folder.rglob("*")):
        of_checkpoint = inside in path.parents and path.parent != inside
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)  # locks, unfinished files
        if path.is_file() and not path.is_symlink() and not hidden and (not of_checkpoint or path.parent in kept):
            paths.append(path)
    return _tar(folder, paths)


def pack_progress(folder: Path) -> bytes:
    """Pack the files of a run in progress that the live view reads."""
    return _tar(folder, [folder / name for name in IN_PROGRESS if (folder / name).exists()])


def unpack(archive: bytes, folder: Path) -> None:
    """Unpack an archive into `folder`. Subfolders are replaced as a whole. A run that a process holds is refused."""
    folder.mkdir(parents=True, exist_ok=True)
    with hold(folder), TemporaryDirectory(dir=folder, prefix=".arriving-") as temporary:
        arrived, replaced = Path(temporary, "new"), Path(temporary, "old")
        arrived.mkdir()
        replaced.mkdir()
        _write_files(archive, arrived)
        for path in sorted(arrived.iterdir(), key=lambda path: (path.name == LAST, path.name != FIRST, path.name)):
            target = folder / path.name
            if path.is_dir() and target.exists():
                target.rename(replaced / path.name)
            path.replace(target)


def _tar(folder: Path, paths: Iterable[Path]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for path in paths:
            content = path.read_bytes()  # read before its size is set, since metrics grow meanwhile
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return written.getvalue()


def _write_files(archive: bytes, folder: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
        for entry in tar:
            name = PurePosixPath(entry.name)
            content = tar.extractfile(entry) if entry.isreg() else None
            if content is None or name.is_absolute() or ".." in name.parts or "\\" in entry.name:
                raise InputError(
                    f"what a worker sends must be plain files inside the run's folder, got '{entry.name}'; "
                    "nothing of it was kept. Look at who can reach the cluster"
                )
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.write(content.read())
                file.flush()
                os.fsync(file.fileno())
