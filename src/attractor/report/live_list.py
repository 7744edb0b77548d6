"""The runs of a folder as they are at this moment: what `attractor watch` shows.

A folder is looked through again and again while runs train. So each run keeps what was read of it, and only the lines
that were added to its metrics are read. A run that is damaged shows as such, and stops nobody from seeing the others.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from attractor.console import in_time, with_prefix
from attractor.errors import InputError
from attractor.report.page import fill, show, verbatim
from attractor.report.run_figure import small_line
from attractor.runs.appended_lines import AddedLines
from attractor.runs.index import DAMAGED
from attractor.runs.run_folder import CONFIG, METRICS, SEAL, SUMMARY, RunFolder, run_paths
from attractor.runs.study_record import stored_loss_unit

ORDER = ("running", DAMAGED, "not begun", "interrupted", "finished")
FILES = (CONFIG, METRICS, SUMMARY, SEAL)  # what a line of the list is made of
Version = tuple[int, int, int] | None


@dataclass(frozen=True)
class RunLine:
    """What the list says of one run."""

    key: str  # the path of its folder within the folder that is watched
    label: str
    state: str
    begun: float = 0.0
    share: float | None = None  # of its steps that are done
    numbers: dict[str, str] = field(default_factory=dict)
    curve: str = ""
    remark: str = ""

    @property
    def address(self) -> str:
        return f"/run/{quote(self.key, errors='surrogateescape')}"

    @property
    def place(self) -> str:
        return legible(self.key)


def legible(name: str | Path) -> str:
    """Return a name as text, whatever bytes it has on disk."""
    return os.fsencode(name).decode("utf-8", "replace")


def version_of(path: Path) -> Version:
    """Return a value that changes when the file is written; None where there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


class WatchedFolder:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: dict[str, WatchedRun] = {}

    def look(self) -> list[RunLine]:
        """Return the line of every run: running ones first, and within a state the latest first."""
        paths = {"/".join(path.relative_to(self.folder).parts): path for path in self._inside()}
        self.runs = {key: self.runs.get(key) or WatchedRun(key, path) for key, path in paths.items()}
        lines = [run.look() for run in self.runs.values()]
        return sorted(lines, key=lambda line: (ORDER.index(line.state), -line.begun, line.key))

    def _inside(self) -> Iterator[Path]:
        """Yield every run's folder, except those that a link leads to outside of the watched folder."""
        root = self.folder.resolve()
        for path in run_paths(self.folder, skip_unreadable=True):
            with suppress(OSError):  # a folder that was removed meanwhile
                if path.resolve().is_relative_to(root):
                    yield path


class WatchedRun:
    """One run, followed: its latest step, and the losses of all steps that were logged."""

    def __init__(self, key: str, path: Path) -> None:
        self.key, self.path = key, path
        self.added = AddedLines(path / METRICS)
        self.line: RunLine | None = None
        self.version: tuple[Version, ...] = ()
        self.n_lines = 0
        self.latest: dict[str, Any] = {}
        self.losses: list[float | None] = []
        self.best: float | None = None

    def look(self) -> RunLine:
        """Return the line of the run. A finished run is read again only when its files have changed."""
        version = tuple(version_of(self.path / name) for name in FILES)
        if self.line is None or self.line.state != "finished" or version != self.version:
            self.line, self.version = self._line(), version
        return self.line

    def _line(self) -> RunLine:
        name = legible(self.path.name)
        try:
            return self._look()
        except InputError as error:
            return RunLine(self.key, name, DAMAGED, remark=str(error))
        except Exception as error:  # any content may stand in a damaged file
            return RunLine(self.key, name, DAMAGED, remark=f"it cannot be read: {type(error).__name__}: {error}")

    def _look(self) -> RunLine:
        run = RunFolder.open(self.path)
        summary = run.summary() or {}
        self._follow(run)
        state = run.state
        step, n_steps = summary.get("steps", self.latest.get("step", 0)), run.config.get("n_steps")
        unit = stored_loss_unit(summary, run.config)
        speed = summary.get("tokens_per_second", self.latest.get("tokens_per_second"))
        numbers = {
            "step": f"{step:,}" + (f" of {n_steps:,}" if n_steps else ""),
            "loss": _loss(self.losses[-1]) if self.losses else "",
            "best validation": "" if self.best is None else f"{_loss(self.best)} {unit}",
            "speed": f"{with_prefix(speed)} tok/s" if speed else "",
            "time left": self._time_left(run, n_steps, speed) if state == "running" else "",
        }
        label = show(run.config.get("label", "run"))
        seed = run.config.get("seed")
        return RunLine(
            self.key,
            label if seed is None else f"{label}, seed {show(seed)}",
            state,
            (self.path / "config.json").stat().st_mtime,
            min(1.0, step / n_steps) if n_steps else None,
            numbers,
            small_line(self.losses, f"loss of {label} by step"),
        )

    def _follow(self, run: RunFolder) -> None:
        """Read the lines that were added to the metrics, or all of them where a resumed run wrote them anew."""
        lines = self.added.read()
        if self.added.rewritten:
            self.n_lines, self.latest, self.losses, self.best = 0, {}, [], None
        try:
            if self.added.rewritten and not run.lacks_only_its_summary:  # such a run was interrupted while it finished
                run.refuse_altered()
            records = [run.record(number, line) for number, line in enumerate(lines, start=self.n_lines + 1)]
        except InputError:
            self.added = AddedLines(self.added.path)  # say it again at the next look, unless it was repaired
            raise
        self.n_lines += len(lines)
        for record in records:
            self.latest |= {name: record[name] for name in ("step", "tokens", "tokens_per_second") if name in record}
            if "loss" in record:
                self.losses.append(record["loss"])
            if record.get("valid_loss") is not None:
                self.best = min(record["valid_loss"], self.best if self.best is not None else record["valid_loss"])

    def _time_left(self, run: RunFolder, n_steps: int | None, speed: float | None) -> str:
        """Return the time for the tokens that are left, at the speed so far, without evaluations and checkpoints."""
        step, tokens = self.latest.get("step"), self.latest.get("tokens")
        if not (n_steps and speed and step and tokens):
            return ""
        return in_time((n_steps - step) * tokens / step / speed) if step < n_steps else "ending"


def _loss(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3f}"


def render_list(
    folder: Path, lines: list[RunLine], new: list[RunLine], n_looks: int, script: Markup, policy: str
) -> str:
    """Return the page of the list, with the new lines alone: the page that a browser shows has the others."""
    counts = {state: sum(line.state == state for line in lines) for state in ORDER}
    return fill(
        "live_list.html.j2",
        style=verbatim("page.css", "study_page.css", "live.css"),
        script=script,
        policy=policy,
        folder=legible(folder),
        counts={state: count for state, count in counts.items() if count},
        lines=new,
        is_part=len(new) < len(lines),
        n_looks=n_looks,
        headings=("step", "loss", "best validation", "speed", "time left"),
    )
