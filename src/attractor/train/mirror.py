"""Keep copies of runs at another address, and fetch them from there.

A run is always written on this machine; its mirror is brought up to date from files that have their final names. An
address is a folder or anything else that fsspec opens, such as `s3://bucket/path`. Runs lie there as they lie here.

The files of a checkpoint are copied before its manifest, and a manifest is removed before its files. Each file has its
name only once it is whole. So whatever ends a copy, each checkpoint of a mirror that has a manifest is complete. The
summary of a run comes last. A checkpoint is removed from a mirror only if it was removed here and a newer one has been
copied.
"""

import hashlib
import json
import re
import shlex
import shutil
import threading
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attractor.errors import InputError, to_install
from attractor.files import flush_to_disk, write_bytes
from attractor.runs.index import TAIL
from attractor.runs.run_folder import METRICS, SEAL, RunFolder, run_paths
from attractor.train.checkpoint import (
    BEST,
    MANIFEST,
    WRITING,
    DamagedCheckpointError,
    list_checkpoints,
    replace_checkpoint,
    verify,
)

CHECKPOINT = re.compile(r"checkpoints/(step-\d{8,})/(\w[\w.-]*(?:/\w[\w.-]*)*)", re.ASCII)
SMALL_FILE = re.compile(r"\w[\w.-]*|checkpoints/best\.json", re.ASCII)
CONFIG, SUMMARY = "config.json", "summary.json"
RANKS = {CONFIG: -1, f"checkpoints/{BEST}": 1, SEAL: 2, SUMMARY: 3}  # small files below 1 come before the checkpoints
BLOCK = 1 << 22
SECONDS_BETWEEN_COPIES = 30.0
SECONDS_AT_THE_END = 30.0
Say = Callable[[str], None]
Version = tuple[int, int, int]


def opened(address: str) -> tuple[Any, str]:
    """Return fsspec's file system of an address, and the path within it."""
    try:
        from fsspec.core import url_to_fs

        files, root = url_to_fs(address)
    except (ImportError, ValueError) as error:  # no fsspec, no package for this kind of address, or an unknown kind
        rule = f"an address must be a folder or a URL that fsspec can open, and '{address}' is not ({error})"
        raise InputError(f"{rule}; correct it, or {to_install('remote')}") from error
    return files, root.rstrip("/")


class Mirror:
    """The copies of runs at an address, which `update` brings up to date with a folder of runs."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.files, self.root = opened(address)
        self.copied: dict[Path, Version] = {}
        self.problems: list[str] = []

    def update(self, folder: Path) -> list[str]:
        """Copy what is new in the runs at or below a folder, and return a line about all that cannot be copied."""
        self.problems = []
        self.files.invalidate_cache()
        for run in run_paths(folder):
            try:
                self._update_run(run, "/".join((self.root, *run.relative_to(folder).parts)))
            except InputError as error:
                self.problems.append(str(error))
        return self.problems

    def _update_run(self, run: Path, place: str) -> None:
        checkpoints = list_checkpoints(run / "checkpoints")  # before the metrics, so that these reach at least as far
        names = [path.name for path in run.iterdir() if SMALL_FILE.fullmatch(path.name) and path.is_file()]
        if SUMMARY not in names and SEAL in names:  # metrics are copied at another moment, so the seal would not match
            names.remove(SEAL)
        versions = {run / name: _version(run / name) for name in (*names, f"checkpoints/{BEST}")}
        versions |= {path / MANIFEST: _version(path / MANIFEST) for path in checkpoints}
        new = {path for path, version in versions.items() if version and self.copied.get(path) != version}
        if not new:
            return
        there = {path.removeprefix(f"{place}/"): size for path, size in _sizes(self.files, place).items()}
        self._refuse_other(run, place, there, checkpoints)
        if SUMMARY in there:  # a finished run changes no more
            new = {path for path in new if path.name == MANIFEST or there.get(_below(run, path)) != path.stat().st_size}
        small = sorted((_below(run, path) for path in new if path.name != MANIFEST), key=_rank)
        self._put_small(run, place, [name for name in small if _rank(name) <= 0])
        for path in reversed([path for path in checkpoints if path / MANIFEST in new]):
            self._copy_checkpoint(path, f"{place}/checkpoints/{path.name}", there)
        kept = {path.name for path in checkpoints}
        for step in sorted({match[1] for name in there if (match := CHECKPOINT.fullmatch(name))} - kept):
            if kept and step < max(kept):
                self._remove(f"{place}/checkpoints/{step}")
        self._put_small(run, place, [name for name in small if _rank(name) > 0])
        self.copied |= {path: version for path, version in versions.items() if version}

    def _refuse_other(self, run: Path, place: str, there: dict[str, int], checkpoints: list[Path]) -> None:
        if CONFIG in there and _parsed(self.files.cat_file(f"{place}/{CONFIG}")) != RunFolder.open(run).config:
            raise InputError(f"'{place}' must be a copy of '{run}', and holds another run; give another address")
        newest, here = max(_complete(there), default=""), checkpoints[-1].name if checkpoints else ""
        if here < newest:
            raise InputError(
                f"'{run}' must have reached the step of its copy, but has {here or 'no checkpoint'} where "
                f"'{place}' has {newest}; fetch that (attractor runs fetch), give another address, or let the run "
                "pass it"
            )

    def _put_small(self, run: Path, place: str, names: list[str]) -> None:
        for name in names:
            try:
                self._put(run / name, f"{place}/{name}")
            except FileNotFoundError:
                if (run / name).exists():  # so it is the address that is missing
                    raise

    def _copy_checkpoint(self, path: Path, place: str, there: dict[str, int]) -> None:
        try:
            content = (path / MANIFEST).read_bytes()
            if f"checkpoints/{path.name}/{MANIFEST}" in there:
                if self.files.cat_file(f"{place}/{MANIFEST}") == content:
                    return
                self.files.rm_file(f"{place}/{MANIFEST}")
            damaged = [
                name
                for name, checksum in json.loads(content)["sha256"].items()
                if self._put(path / name, f"{place}/{name}") != checksum
            ]
            if damaged:
                self.problems.append(f"'{path}' is left out, since its checksums do not hold: {', '.join(damaged)}")
            else:
                with _written(self.files, f"{place}/{MANIFEST}") as target:
                    target.write(content)
        except FileNotFoundError:
            if path.exists():  # otherwise the run has dropped it meanwhile
                raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self.problems.append(f"'{path}' is left out, since its {MANIFEST} is damaged ({error})")

    def _remove(self, place: str) -> None:
        if self.files.exists(f"{place}/{MANIFEST}"):
            self.files.rm_file(f"{place}/{MANIFEST}")
        self.files.rm(place, recursive=True)

    def _put(self, path: Path, place: str) -> str:
        """Copy a file, and return the checksum of what was copied."""
        checksum = hashlib.sha256()
        with path.open("rb") as source, _written(self.files, place) as target:
            while block := source.read(BLOCK):
                checksum.update(block)
                target.write(block)
        return checksum.hexdigest()


@contextmanager
def mirrored(folder: Path, address: str | None, say: Say) -> Iterator[None]:
    """While the block runs, a thread keeps the copy of a run up to date. Then it has limited time to finish."""
    if address is None:
        yield
        return
    mirror, ended = Mirror(address), threading.Event()
    thread = threading.Thread(target=follow, args=(mirror, folder, ended, say), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(SECONDS_AT_THE_END)
        if thread.is_alive():
            command = shlex.join(["attractor", "runs", "mirror", str(folder), address])
            say(f"the copy at '{address}' is behind; this command completes it: {command}")


def follow(mirror: Mirror, folder: Path, ended: threading.Event, say: Say) -> None:
    """Bring a mirror up to date again and again, and once more at the end. Each new problem is said once."""
    said: list[str] = []
    while True:
        is_last = ended.is_set()
        try:
            problems = mirror.update(folder)
        except Exception as error:  # file systems raise errors of any class; a run never depends on its copy
            again = "" if is_last else "; it is tried again"
            problems = [f"could not copy to '{mirror.address}': {type(error).__name__}: {error}{again}"]
        for problem in problems:
            if problem not in said:
                say(f"mirror: {problem}")
        said = problems
        if is_last:
            return
        ended.wait(SECONDS_BETWEEN_COPIES)


def fetch(address: str, folder: Path, say: Say) -> list[Path]:
    """Fetch the run, or all runs, at an address into a folder, and return their folders. Checksums are compared."""
    files, root = opened(address)
    runs = _runs_at(files, root, address)
    return [_fetch_run(files, place, there, folder / place.removeprefix(root).strip("/"), say) for place, there in runs]


def _fetch_run(files: Any, place: str, there: dict[str, int], folder: Path, say: Say) -> Path:
    run = RunFolder.create(folder, _parsed(files.cat_file(f"{place}/{CONFIG}")))
    if run.finished:
        say(f"'{folder}' is finished already")
        return folder
    with run.hold():
        here, steps = list_checkpoints(run.checkpoints), _complete(there)
        if here and here[-1].name > max(steps, default=""):
            raise InputError(
                f"'{folder}' must not be further than its copy, and has {here[-1].name}; resume it instead"
            )
        n_damaged = 0
        for step in sorted(steps, reverse=True):
            names = [match[2] for name in there if (match := CHECKPOINT.fullmatch(name)) and match[1] == step]
            try:
                _fetch_checkpoint(files, f"{place}/checkpoints/{step}", names, run.checkpoints / step)
            except DamagedCheckpointError as damage:
                n_damaged += 1
                say(f"damaged checkpoint in the copy, left out: {damage}")
        if n_damaged and n_damaged == len(steps):
            raise InputError(f"'{place}' must have an intact checkpoint, and all {n_damaged} are damaged")
        for name in sorted((name for name in there if SMALL_FILE.fullmatch(name)), key=_rank):
            write_bytes(folder / name, files.cat_file(f"{place}/{name}"))
        run.refuse_altered()
    return folder


def _fetch_checkpoint(files: Any, place: str, names: list[str], path: Path) -> None:
    """Fetch a checkpoint under a hidden name, and rename it once its checksums hold."""
    temporary = path.with_name(f"{WRITING}{path.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        for name in names:
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            with files.open(f"{place}/{name}", "rb") as source, (temporary / name).open("wb") as target:
                shutil.copyfileobj(source, target, BLOCK)
            flush_to_disk(temporary / name)
        flush_to_disk(temporary)
        verify(temporary)
        replace_checkpoint(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def small_files(address: str) -> Iterator[Path]:
    """Yield a local folder with those small files of the runs at an address from which the runs can be listed."""
    files, root = opened(address)
    with TemporaryDirectory(prefix="attractor-") as made:
        wanted: dict[str, Path] = {}
        for place, there in _runs_at(files, root, address):
            folder = Path(made, place.removeprefix(root).strip("/"))
            folder.mkdir(parents=True, exist_ok=True)
            wanted |= {f"{place}/{name}": folder / name for name in (CONFIG, SUMMARY) if name in there}
            if SUMMARY not in there and METRICS in there:
                first = max(0, there[METRICS] - TAIL)
                (folder / METRICS).write_bytes(files.cat_file(f"{place}/{METRICS}", start=first))
        for path, content in files.cat(list(wanted)).items():
            wanted[path].write_bytes(content)
        yield Path(made)


def _runs_at(files: Any, root: str, address: str) -> list[tuple[str, dict[str, int]]]:
    """Return the place of every run at an address, with the sizes of its files by name."""
    sizes = _sizes(files, root)
    by_run: dict[str, dict[str, int]] = {}
    for path in sorted(sizes, key=lambda path: path.count("/")):
        place, _, name = path.rpartition("/")
        if name == CONFIG and ".." not in path.split("/") and _run_around(place, root, by_run) is None:
            by_run[place] = {}
    if not by_run:
        raise InputError(f"address must hold runs, and '{address}' holds none; a run is a folder with {CONFIG}")
    for path, size in sizes.items():
        if (run := _run_around(path, root, by_run)) is not None:
            by_run[run][path.removeprefix(f"{run}/")] = size
    return sorted(by_run.items())


def _run_around(path: str, root: str, runs: Container[str]) -> str | None:
    """Return the run that a path lies in. The inside of a run, such as an export, holds no other runs."""
    while len(path) > len(root) and path not in runs:
        path = path.rpartition("/")[0]
    return path if path in runs else None


def _sizes(files: Any, place: str) -> dict[str, int]:
    try:
        return {path: entry["size"] or 0 for path, entry in files.find(place, detail=True).items()}
    except FileNotFoundError:
        return {}


def _complete(there: dict[str, int]) -> list[str]:
    matches = (CHECKPOINT.fullmatch(name) for name in there)
    return [match[1] for match in matches if match and match[2] == MANIFEST]


def _rank(name: str) -> int:
    return RANKS.get(name, 0)


def _below(run: Path, path: Path) -> str:
    return path.relative_to(run).as_posix()


def _version(path: Path) -> Version | None:
    try:
        status = path.stat()
    except FileNotFoundError:  # a run drops old checkpoints
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _parsed(content: bytes) -> dict[str, Any]:
    try:
        config = json.loads(content)
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise InputError(
            f"the {CONFIG} of a run must hold one JSON object, and the copy's does not; "
            "remove it there, and copy the run again"
        )
    return config


@contextmanager
def _written(files: Any, place: str) -> Iterator[Any]:
    """Open a file that has its name after the block only: object stores work so, and in a folder it is renamed."""
    folder, _, name = place.rpartition("/")
    temporary = f"{folder}/.{name}.partial" if getattr(files, "local_file", False) else place
    try:
        target = files.open(temporary, "wb")
    except FileNotFoundError:  # a file system with folders
        files.makedirs(folder, exist_ok=True)
        target = files.open(temporary, "wb")
    with target:
        yield target
    if temporary != place:
        files.mv(temporary, place)
