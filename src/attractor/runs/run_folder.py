"""The run folder is the only form in which the results of a run are stored.

    config.json        everything that determines the run
    environment.json   the machine, versions and commit of the run
    metrics.jsonl      one object a line, each with `step` and `tokens`
    summary.json       the outcome; its presence says that the run finished
    tokenizer.json, tokenizer_settings.json     of a run on text; absent where tokens are bytes
    seal.json          checksums of what the run wrote into the files above; of an unfinished run, up to a checkpoint
    samples.json       text sampled from the model of a finished language run
    probes.json        what the probes of a study measured, with a checksum of its own
    notes.txt, failure.txt     what a study's run printed, and why it failed
    checkpoints/

The files are plain and contain no absolute paths, so a folder can be copied anywhere and still be read. Runs share no
file, so any number of processes can add runs to one folder of results. Within a run one process writes at a time, the
one that holds it (`lock.py`).
"""

import errno
import json
import os
import shlex
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from attractor.errors import DamageWarning, InputError, LeftOutWarning, WritingError
from attractor.files import (
    flush_to_disk,
    from_json,
    in_json,
    open_regular,
    plain,
    remove_leftovers,
    set_aside,
    write_bytes,
    write_text,
)
from attractor.files.seals import (
    CHECKSUM,
    RunningHash,
    changed,
    checksum_of,
    read_object,
    read_sealed,
    seal_holds,
    write_sealed,
)
from attractor.runs.configuration import config_differences, config_hash
from attractor.runs.lock import hold, is_held, turn
from attractor.runs.machine import environment

__all__ = ["RunFolder", "config_differences", "config_hash", "environment", "find_runs"]

METRICS = "metrics.jsonl"
SEAL = "seal.json"
ENVIRONMENT = "environment.json"
SUMMARY = "summary.json"
CONFIG = "config.json"
DIVERGED = "diverged"  # a state, and in a summary the reason; the run has no loss then
ENDED = ("finished", DIVERGED)
CODE = "mechanism.py"  # the source of a mechanism that attractor does not define: to read, never executed
SMALL = (CONFIG, ENVIRONMENT, "tokenizer.json", "tokenizer_settings.json", CODE)
SEALED = (*SMALL, METRICS)  # and the summary of a finished run
LENGTH = "metrics_bytes"  # in the seal of an unfinished run: how much of the metrics it covers
SAMPLES = "samples.json"
MEASURED = ("loss", "valid_loss", "lr", "grad_norm", "tokens_per_second")  # in a line of metrics, if it has them
NUMBERS = frozenset({float, int, type(None)})  # null stands for what is not finite


@dataclass(frozen=True, eq=False)
class RunFolder:
    """A run on disk. One process carries it out and writes it; any number may read it meanwhile."""

    path: Path
    config: dict[str, Any]

    @classmethod
    def create(cls, path: str | Path, config: Mapping[str, Any]) -> Self:
        """Start a run, or continue the run in the folder if it has the same configuration."""
        path, asked = Path(path), plain(dict(config))
        written = {}
        if not (path / CONFIG).exists():
            _refuse_foreign_folder(path)
            path.mkdir(parents=True, exist_ok=True)
            with suppress(OSError):  # not everybody may read the folder that the run lies in
                flush_to_disk(path.parent)
            with turn(path):
                if not (path / CONFIG).exists():  # another process may start the same run at this moment
                    (new := cls(path, asked)).write(CONFIG, asked)
                    written = new._written
        run = cls.open(path)
        _refuse_other_config(run, asked)
        run._written.update(written)
        if not (path / ENVIRONMENT).exists():
            here = environment()
            with turn(path):
                if not (path / ENVIRONMENT).exists():  # every process of a distributed run comes here
                    run.write(ENVIRONMENT, here)
        run.checkpoints.mkdir(exist_ok=True)
        return run

    @classmethod
    def open(cls, path: str | Path) -> Self:
        path = Path(path)
        config = read_object(path / CONFIG)
        if not path.exists():
            raise InputError(
                f"run must be a folder that exists, and '{path}' does not; 'attractor runs list' shows runs"
            )
        if config is None:
            raise InputError(f"a run folder must hold config.json, and '{path}' does not; give the folder of a run")
        if "model_type" in config and "model" not in config:
            raise InputError(
                f"a run folder must hold the configuration of a run, and '{path}' holds that of a Hugging Face model; "
                f"'attractor import {shlex.quote(str(path))}' makes a run of it"
            )
        run = cls(path, config)
        try:
            config_changed = CONFIG in run.altered(CONFIG)
        except InputError:  # those who read results report a damaged seal
            config_changed = False
        if config_changed:
            raise InputError(
                f"'{path / CONFIG}' changed since the run was sealed, and nothing else says what the run was; restore "
                "it from a copy, or train the run anew elsewhere"
            )
        return run

    @property
    def environment(self) -> dict[str, Any]:
        self.refuse_altered(ENVIRONMENT)
        return read_object(self.path / ENVIRONMENT) or {}

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def finished(self) -> bool:
        return (self.path / SUMMARY).exists()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Lock the run for this process: while the lock is held, a second process is refused."""
        with hold(self.path):
            remove_leftovers(self.path, self.checkpoints)
            yield

    def reopen(self) -> None:
        """Let a run go on that ended since it diverged."""
        if DIVERGED in (self.summary() or {}):
            (self.path / SUMMARY).unlink()
            self.unseal(SUMMARY)
            self.seal()

    @property
    def state(self) -> str:
        """Return `finished`, `diverged`, `running`, `interrupted`, or `not begun` where nothing was recorded yet."""
        if self.finished:
            return ended(read_object(self.path / SUMMARY) or {})
        if is_held(self.path):
            return "running"
        return "interrupted" if self.begun else "not begun"

    @property
    def begun(self) -> bool:
        """Whether anything was recorded."""
        return self._metrics.exists()

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one line of metrics in a single write, so that readers see whole lines and a crash tears at most one."""
        assert {"step", "tokens"} <= record.keys(), "a record of metrics needs step and tokens"
        line = json.dumps(plain(dict(record)), ensure_ascii=False, allow_nan=False).encode() + b"\n"
        try:
            self._refuse_lost_lines()
            with self._metrics.open("ab", buffering=0) as file:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise WritingError(
                f"could not write to '{self._metrics}': {error.strerror}; make room or make it writable, then resume"
            ) from error
        self._written_metrics.add(line)

    def write(self, name: str, content: bytes | Mapping[str, Any]) -> None:
        """Write a small file of the run, and remember its checksum for the seal."""
        content = content if isinstance(content, bytes) else in_json(dict(content)).encode(errors="backslashreplace")
        write_bytes(self.path / name, content)
        self._written[name] = RunningHash(content).checksum

    @property
    def _metrics(self) -> Path:
        return self.path / METRICS

    def metrics(self) -> list[dict[str, Any]]:
        """Return all records in order. Only a last line that a crash cut short is ignored."""
        return list(self.records())

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the records one after another, since millions of them would not fit into memory."""
        self.refuse_altered(METRICS)
        with suppress(FileNotFoundError), open_regular(self._metrics) as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    yield self.record(number, line)

    def keep_until(self, step: int) -> None:
        """Drop the records after `step`, because a run resumed from a checkpoint will record them again."""
        kept = [record for record in self.records() if record["step"] <= step]
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in kept)
        self.unseal(METRICS)  # its checksum would not match if a crash came between the two
        flush_to_disk(self.path)
        write_text(self._metrics, text)
        self._written_metrics.begin(text.encode())
        self.seal()

    @property
    def samples(self) -> list[dict[str, Any]]:
        """The text samples of the finished run's model, with temperature and seed."""
        return (read_sealed(self.path / SAMPLES) or {}).get("samples", [])

    def write_samples(self, samples: list[dict[str, Any]]) -> None:
        write_sealed(self.path / SAMPLES, {"samples": samples})

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Finish the run. Its seal is written first, since a run with a summary is finished."""
        text = in_json(dict(summary))
        write_sealed(self.path / SEAL, self._checksums() | {SUMMARY: RunningHash(text.encode()).checksum})
        flush_to_disk(self.path)
        write_text(self.path / SUMMARY, text)
        flush_to_disk(self.path)

    def seal(self) -> None:
        """Write down checksums of the unfinished run, whose metrics may grow."""
        checksums: dict[str, Any] = self._checksums()
        flush_to_disk(self.path)
        if METRICS in checksums:
            flush_to_disk(self._metrics)  # after a power cut the metrics have at least what the seal covers
            checksums[LENGTH] = self._written_metrics.n_bytes
        write_sealed(self.path / SEAL, checksums)

    def unseal(self, name: str) -> None:
        """Drop a file from the seal of the others, as one that was set aside."""
        self._written.pop(name, None)
        seal = read_object(self.path / SEAL) or {}
        if name in seal and seal_holds(seal):
            write_sealed(self.path / SEAL, {key: seal[key] for key in seal if key not in (name, CHECKSUM)})

    @cached_property
    def _written(self) -> dict[str, str]:
        """The checksums of small files as they were written, by this process or by those whose seal the run has."""
        try:
            seal = read_object(self.path / SEAL) or {}
        except InputError:  # who resumes the run sets a damaged seal aside
            return {}
        return {name: seal[name] for name in SMALL if name in seal} if seal_holds(seal) else {}

    @cached_property
    def _written_metrics(self) -> RunningHash:
        """A running hash of the metrics. Lines of earlier processes are first compared with their seal."""
        self.refuse_altered(METRICS)
        if not self.begun:
            return RunningHash()
        with open_regular(self._metrics) as file:
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:  # a crash left an incomplete last line, which a new record would continue
            os.truncate(self._metrics, len(whole))
        return RunningHash(whole)

    def _checksums(self) -> dict[str, str]:
        """Return the checksums of what was written. A small file that was not sealed before counts as it lies there."""
        for name in SMALL:
            if name not in self._written and (self.path / name).is_file():
                self._written[name] = checksum_of(self.path / name)
        self._refuse_lost_lines()
        return self._written | ({METRICS: self._written_metrics.checksum} if self.begun else {})

    def _refuse_lost_lines(self) -> None:
        """Stop a run whose metrics are not what it wrote. What others have only appended is set aside."""
        written = self._written_metrics
        size = self._metrics.stat().st_size if self.begun else 0
        if size == written.n_bytes:
            return
        if size < written.n_bytes or checksum_of(self._metrics, written.n_bytes) != written.checksum:
            raise InputError(
                f"'{self._metrics}' must be written by its run alone, and something else removed or changed lines; "
                f"restore it, or 'attractor train --resume {shlex.quote(str(self.path))}' goes on with what is intact"
            )
        kept = set_aside(self._metrics)
        with open_regular(kept) as file:
            write_bytes(self._metrics, file.read(written.n_bytes))
        text = f"something else appended to '{self._metrics}'; only its run's lines stay, and all are in {kept.name}"
        warnings.warn(text, DamageWarning, stacklevel=4)

    @property
    def lacks_only_its_summary(self) -> bool:
        """Whether the seal is that of a finished run without a summary, as after a kill between writing the two."""
        return not self.finished and self.altered() == [SUMMARY]

    def refuse_altered(self, *names: str) -> None:
        """Refuse a run if one of these files (by default any) changed since it was sealed. Older runs have no seal."""
        if altered := self.altered(*names):
            if altered == [SUMMARY] and not self.finished:
                path = shlex.quote(str(self.path))
                raise InputError(
                    f"'{self.path}' has a seal but no summary.json: the run was ended while it finished, or the file "
                    f"was deleted; 'attractor train --resume {path}' writes the file anew"
                )
            raise InputError(
                f"'{self.path}' does not have the content that it was sealed with: {', '.join(altered)} changed; "
                f"restore the files from a copy, or 'attractor train --resume {shlex.quote(str(self.path))}' sets "
                "them aside and goes on with the rest"
            )

    def altered(self, *names: str) -> list[str]:
        """Return the sealed files that changed or are gone, of these or of all."""
        seal = read_object(self.path / SEAL)
        if seal is None:
            return []
        if not seal_holds(seal):
            return [SEAL]
        checksums = {name: seal[name] for name in (names or seal) if name in seal and name not in (LENGTH, CHECKSUM)}
        return changed(self.path, checksums, {METRICS: seal[LENGTH]} if isinstance(seal.get(LENGTH), int) else {})

    def summary(self) -> dict[str, Any] | None:
        if not self.finished:
            return None
        self.refuse_altered(CONFIG, SUMMARY)
        return read_object(self.path / SUMMARY)

    def record(self, number: int, line: bytes) -> dict[str, Any]:
        """Return the record in a line of the metrics."""
        try:
            record = from_json(line)
        except ValueError:
            record = None
        if not isinstance(record, dict) or not _holds_numbers(record):
            raise InputError(f"line {number} of '{self._metrics}' is damaged; restore the file or run again elsewhere")
        return record


def ended(summary: Mapping[str, Any]) -> str:
    return DIVERGED if DIVERGED in summary else "finished"


def _holds_numbers(record: Mapping[str, Any]) -> bool:
    counts = type(record.get("step")) is int and type(record.get("tokens")) is int
    return counts and NUMBERS.issuperset(map(type, map(record.get, MEASURED)))


def find_runs(root: str | Path) -> list[RunFolder]:
    """Return every run at or below `root`, sorted by path. The inside of a run, such as an export, is not searched."""
    root = Path(root)
    if not root.is_dir():
        raise InputError(f"runs are read from a folder, and '{root}' is none; give a run or a folder of runs")
    runs = []
    for path in run_paths(root):
        try:
            runs.append(RunFolder.open(path))
        except InputError as error:
            warnings.warn(f"skipped a damaged run: {error}", LeftOutWarning, stacklevel=2)
    if not runs:
        raise InputError(f"'{root}' holds no readable runs; a run is a folder with config.json")
    return runs


def run_paths(folder: Path, skip_unreadable: bool = False) -> Iterator[Path]:
    """Yield the folder of every run at or below `folder`, damaged runs included, by path. A folder that was removed
    meanwhile, or may not be read, is an error or is skipped."""
    with suppress(*([OSError] if skip_unreadable else [])):
        if (folder / CONFIG).exists():
            yield folder
            return
        for child in sorted(folder.iterdir()):
            if child.is_dir() and not child.is_symlink():  # a link may lead back to a folder above
                yield from run_paths(child, skip_unreadable)


def _refuse_other_config(run: RunFolder, config: dict[str, Any]) -> None:
    differences = config_differences({"there": run.config, "asked": config})
    if differences:
        fields = [
            f"{name} is {json.dumps(values['there']) if 'there' in values else 'absent'} there, "
            f"{json.dumps(values['asked']) if 'asked' in values else 'absent'} here"
            for name, values in list(differences.items())[:3]
        ]
        more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise InputError(
            f"'{run.path}' holds a run with another configuration: {'; '.join(fields)}{more}; "
            "choose another folder, or change it back"
        )


def _refuse_foreign_folder(path: Path) -> None:
    """Refuse a folder that holds other files. Hidden files do not count: an interrupted start leaves one."""
    if path.exists() and not path.is_dir():
        raise InputError(f"a run needs a folder, and '{path}' is a file; choose another name")
    inhabited = path.is_dir() and any(not child.name.startswith(".") for child in path.iterdir())
    # This is checked last, because another process may be creating the run.
    if inhabited and not (path / CONFIG).exists():
        raise InputError(f"'{path}' holds files but no config.json, so it is no run; choose a new or empty folder")
