"""An index of the runs below a folder, so that thousands of them are listed and filtered in a second.

The run folders remain the only source. The index of a folder is one SQLite file in the user's cache, never in the
folder, which may come from somebody else. It holds what the small files of each run said when they were last read, and
is brought up to date before every use: new runs are added, changed runs are read again, and runs whose folders are gone
are dropped. It can be deleted at any time. Where the file cannot be used, since it is damaged, the cache is read-only
or another process holds the file for long, the file is removed, and the runs are listed without it.
"""

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attractor.errors import InputError
from attractor.files import cache_folder, follow_umask, open_regular
from attractor.files.seals import read_object
from attractor.runs.configuration import Presets, dotted_fields, named
from attractor.runs.lock import is_held
from attractor.runs.run_folder import METRICS, SEAL, SEALED, SUMMARY, RunFolder, ended

FORMAT = 2
DAMAGED = "damaged"
TAIL = 1 << 16  # bytes at the end of the metrics that are read for the latest step and loss
FILES = (*SEALED, SUMMARY, SEAL)
SECONDS_TO_WAIT = 1.0  # for another process that writes the index
SIMPLE = (str, int, float, bool, type(None))  # what a field of a list can show
IN_MEMORY = ":memory:"


@dataclass(frozen=True)
class IndexedRun:
    """A run as the index stores it."""

    key: str  # the path of its folder within the folder that was searched
    fields: dict[str, Any]  # by dotted name: the configuration, and `steps`, `loss`, `begun`, `state`, ...
    problem: str = ""  # the reason why a damaged run cannot be read

    @property
    def state(self) -> str:
        return DAMAGED if self.problem else str(self.fields["state"])


def index_of(folder: Path) -> Path:
    """Return where the index of a folder lies."""
    return cache_folder() / "runs" / f"{hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()}.sqlite3"


def indexed_runs(folder: str | Path, presets: Presets) -> list[IndexedRun]:
    """Return every run at or below a folder, in the order of their paths."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"runs are read from a folder, and '{folder}' is none; give a folder of runs")
    place = index_of(folder)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with closing(_opened(place)) as index:
            follow_umask(place)
            return _up_to_date(index, folder, presets)
    except (sqlite3.Error, OSError, ValueError, TypeError, KeyError):  # any content may stand in the file
        with suppress(OSError):
            place.unlink(missing_ok=True)
    with closing(_opened(IN_MEMORY)) as index:
        return _up_to_date(index, folder, presets)


def _opened(place: Path | str) -> sqlite3.Connection:
    index = sqlite3.connect(place, timeout=SECONDS_TO_WAIT, isolation_level=None)
    if _format_of(index) != FORMAT:
        index.execute("BEGIN IMMEDIATE")  # another process may be doing the same
        if _format_of(index) != FORMAT:
            index.execute("DROP TABLE IF EXISTS runs")
            index.execute("CREATE TABLE runs (key TEXT PRIMARY KEY, version TEXT, fields TEXT, problem TEXT)")
            index.execute(f"PRAGMA user_version = {FORMAT}")
        index.execute("COMMIT")
    return index


def _format_of(index: sqlite3.Connection) -> int:
    return index.execute("PRAGMA user_version").fetchone()[0]


def _up_to_date(index: sqlite3.Connection, folder: Path, presets: Presets) -> list[IndexedRun]:
    stored = {key: row for key, *row in index.execute("SELECT key, version, fields, problem FROM runs")}
    beginning = f"{os.fspath(folder).rstrip('/')}/"
    runs, changed = [], []
    for path, version in sorted(_run_folders(os.fspath(folder))):
        key = path.removeprefix(beginning) if path != os.fspath(folder) else "."
        row = stored.pop(key, None)
        if row is not None and row[0] == version:
            run = IndexedRun(key, json.loads(row[1]), row[2])
        else:
            run = _read(key, Path(path), presets)
            changed.append((key, version, json.dumps(run.fields), run.problem))
        if not run.problem and run.fields["state"] != "finished" and is_held(Path(path)):
            run.fields["state"] = "running"  # no file changes when a process starts or ends
        runs.append(run)
    if changed or stored:
        with suppress(sqlite3.Error):  # the runs were read all the same; a later call stores them
            index.execute("BEGIN IMMEDIATE")
            index.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?)", changed)
            index.executemany("DELETE FROM runs WHERE key = ?", [(key,) for key in stored])
            index.execute("COMMIT")
    return runs


def _run_folders(folder: str) -> Iterator[tuple[str, str]]:
    """Yield the path of every run at or below a folder, with a text that changes when one of its files does."""
    with os.scandir(folder) as listing:
        entries = {entry.name: entry for entry in listing}
    if "config.json" in entries:
        versions = []
        for name in FILES:
            with suppress(FileNotFoundError):
                if name in entries:
                    status = entries[name].stat()
                    versions.append(f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}")
                    continue
            versions.append("")
        yield folder, " ".join(versions)
        return
    for entry in entries.values():
        if entry.is_dir(follow_symlinks=False):
            with suppress(OSError):  # the folder was removed meanwhile, or may not be read
                yield from _run_folders(entry.path)


def _read(key: str, path: Path, presets: Presets) -> IndexedRun:
    try:
        run = RunFolder.open(path)
        if not run.lacks_only_its_summary:  # such a run was interrupted while it finished
            run.refuse_altered()
        summary = read_object(path / SUMMARY)  # `run.summary()` would look at the seal once more
        latest = summary or _latest(path / METRICS)
        metric = (summary or {}).get("metric")
        fields = dotted_fields(summary or {}) | dotted_fields(named(run.config, presets))
        fields |= {
            # As `RunFolder.state`, but for "running", which no file tells.
            "state": ended(summary) if summary is not None else "interrupted" if run.begun else "not begun",
            "steps": latest.get("steps", latest.get("step", 0)),
            "tokens": latest.get("tokens", 0),
            "loss": latest.get("valid_loss"),
            "begun": (path / "config.json").stat().st_mtime,
        }
        if isinstance(metric, dict):
            fields |= {"metric": metric.get("name"), "value": metric.get("value")}
        return IndexedRun(key, {name: value for name, value in fields.items() if isinstance(value, SIMPLE)})
    except Exception as error:  # any content may stand in a damaged file, and one run must not hide the others
        return IndexedRun(key, {}, str(error) or type(error).__name__)


def _latest(path: Path) -> dict[str, Any]:
    """Return the latest value of each field at the end of a run's metrics."""
    if not path.exists():
        return {}
    with open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
        *lines, _torn = file.read().split(b"\n")
    latest: dict[str, Any] = {}
    for line in lines:
        with suppress(ValueError):  # the first line may be cut
            record = json.loads(line)
            latest |= record if isinstance(record, dict) else {}
    return latest
