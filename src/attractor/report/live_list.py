"""The runs of a folder as they are at this moment: what `attractor watch` shows.

A folder is looked through again and again while runs train. So each run keeps what was read of it, and only the lines
that were added to its metrics are read. A run that is damaged shows as such, and stops nobody from seeing the others.
"""

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from attractor.console import in_time, with_prefix
from attractor.errors import InputError
from attractor.report.canvas import as_svg
from attractor.report.page import fill, show
from attractor.report.run_figure import overlaid, small_line
from attractor.runs.appended_lines import AddedLines
from attractor.runs.index import DAMAGED
from attractor.runs.run_folder import CONFIG, DIVERGED, ENDED, METRICS, SEAL, SUMMARY, RunFolder, run_paths
from attractor.runs.study_record import STUDY_FILE, stored_loss_unit, study_runs

ORDER = ("running", DAMAGED, "not begun", "interrupted", DIVERGED, "finished")
FILES = (CONFIG, METRICS, SUMMARY, SEAL)  # what a line of the list is made of
REPORT = "report.html"
Version = tuple[int, int, int] | None
Values = list[tuple[int, float | None]]  # by step; None is a value that was not finite


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
    study: str | None = None  # the path of the folder of the study that it belongs to; that of several is the first
    report: str = ""  # the address of the study's report, where it has one

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
        self.folder, self.root = folder, folder.resolve()
        self.runs: dict[str, WatchedRun] = {}

    def look(self) -> list[RunLine]:
        """Return the line of every run: running ones first, within a state the latest first, and studies together."""
        paths = {self._key(path): path for path in run_paths(self.folder, skip_unreadable=True) if self.holds(path)}
        self.runs = {key: self.runs.get(key) or WatchedRun(key, path) for key, path in paths.items()}
        studies = self._studies()
        lines = [replace(run.look(), **studies.get(self.root / key, {})) for key, run in self.runs.items()]
        lines.sort(key=lambda line: (ORDER.index(line.state), -line.begun, line.key))
        first = {line.study: rank for rank, line in reversed(list(enumerate(lines)))}
        return sorted(lines, key=lambda line: first[line.study])

    def _key(self, path: Path) -> str:
        return "/".join(path.relative_to(self.folder).parts)

    def holds(self, path: Path) -> bool:
        """Whether a path lies in the watched folder, and no link leads out of it."""
        with suppress(OSError):  # it was removed meanwhile
            return path.resolve().is_relative_to(self.root)
        return False

    def _studies(self) -> dict[Path, dict[str, Any]]:
        """Return for each run of a study in this folder, or in a folder of it, which study that is."""
        studies: dict[Path, dict[str, Any]] = {}
        for file in sorted(path for name in (STUDY_FILE, f"*/{STUDY_FILE}") for path in self.folder.glob(name)):
            key, report = self._key(file.parent), file.with_name(REPORT)
            address = f"/report/{quote(key, errors='surrogateescape')}"
            of_study = {"study": key, "report": address if report.is_file() and self.holds(report) else ""}
            for path in planned_runs(file.parent, version_of(file)):
                studies.setdefault(path, of_study)
        return studies


@lru_cache(maxsize=1024)
def planned_runs(study: Path, _version: Version) -> list[Path]:
    """Return the folders of a study's runs, read anew with each version of its plan; none where that is damaged."""
    with suppress(InputError, OSError):
        return [path for by_seed in study_runs(study)[1].values() for path in by_seed.values()]
    return []


class WatchedRun:
    """One run, followed: its latest step, and the losses of all steps that were logged."""

    def __init__(self, key: str, path: Path) -> None:
        self.key, self.path = key, path
        self.added = AddedLines(path / METRICS)
        self.line: RunLine | None = None
        self.version: tuple[Version, ...] = ()
        self.n_lines = 0
        self.latest: dict[str, Any] = {}
        self.losses: Values = []
        self.evaluated: Values = []

    def look(self) -> RunLine:
        """Return the line of the run. A finished run is read again only when its files have changed."""
        version = tuple(version_of(self.path / name) for name in FILES)
        if self.line is None or self.line.state not in ENDED or version != self.version:
            self.line, self.version = self._line(), version
        return self.line

    def _line(self) -> RunLine:
        name = legible(self.path.name)
        try:
            return self._look()
        except Exception as error:  # any content may stand in a damaged file
            unforeseen = "" if isinstance(error, InputError) else f"it cannot be read: {type(error).__name__}: "
            return RunLine(self.key, name, DAMAGED, remark=f"{unforeseen}{error}")

    def _look(self) -> RunLine:
        run = RunFolder.open(self.path)
        summary = run.summary() or {}
        self._follow(run)
        state = run.state
        step, n_steps = summary.get("steps", self.latest.get("step", 0)), run.config.get("n_steps")
        unit = stored_loss_unit(summary, run.config)
        speed = summary.get("tokens_per_second", self.latest.get("tokens_per_second"))
        finite = [loss for _, loss in self.evaluated if loss is not None]
        numbers = {
            "step": f"{step:,}" + (f" of {n_steps:,}" if n_steps else ""),
            "loss": _loss(self.losses[-1][1]) if self.losses else "",
            "best validation": f"{_loss(min(finite))} {unit}" if finite else "",
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
            small_line([loss for _, loss in self.losses], f"loss of {label} by step"),
        )

    def _follow(self, run: RunFolder) -> None:
        """Read the lines that were added to the metrics, or all of them where a resumed run wrote them anew."""
        lines = self.added.read()
        if self.added.rewritten:
            self.n_lines, self.latest, self.losses, self.evaluated = 0, {}, [], []
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
            for name, values in (("loss", self.losses), ("valid_loss", self.evaluated)):
                if name in record:
                    values.append((record["step"], record[name]))

    def _time_left(self, run: RunFolder, n_steps: int | None, speed: float | None) -> str:
        """Return the time for the tokens that are left, at the speed so far, without evaluations and checkpoints."""
        step, tokens = self.latest.get("step"), self.latest.get("tokens")
        if not (n_steps and speed and step and tokens):
            return ""
        return in_time((n_steps - step) * tokens / step / speed) if step < n_steps else "ending"


def _loss(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3f}"


def render_list(folder: Path, lines: list[RunLine], new: list[RunLine], n_looks: int, live: Mapping[str, Any]) -> str:
    """Return the page of the list, with the new lines alone: the page that a browser shows has the others."""
    counts = {state: sum(line.state == state for line in lines) for state in ORDER}
    return fill(
        "live_list.html.j2",
        folder=legible(folder),
        counts={state: count for state, count in counts.items() if count},
        studies=[
            ("Single runs" if key is None else legible(key or folder.name), list(of_study))
            for key, of_study in groupby(new, attrgetter("study"))
        ],
        is_part=len(new) < len(lines),
        n_looks=n_looks,
        headings=("step", "loss", "best validation", "speed", "time left"),
        **live,
    )


def render_overlay(runs: Mapping[str, WatchedRun], n_chosen: int, live: Mapping[str, Any]) -> str:
    """Return the page that draws the losses of runs, by label, over each other: of the first that were chosen."""
    kinds = {"training loss": attrgetter("losses"), "validation loss": attrgetter("evaluated")}
    curves = {kind: {label: values_of(run) for label, run in runs.items()} for kind, values_of in kinds.items()}
    drawn = [as_svg(overlaid(of_runs, "step", kind), kind.replace(" ", "-"), kind) for kind, of_runs in curves.items()]
    title = f"{len(runs)} run{'s' * (len(runs) != 1)}" + f" of {n_chosen}" * (n_chosen > len(runs))
    remark = "" if runs else "Tick runs in the list of all runs."
    return render_page("Overlay", title, remark, drawn if runs else (), live)


def render_page(kicker: str, title: str, remark: str, drawings: Iterable[str], live: Mapping[str, Any]) -> str:
    """Return a page with a remark and drawings."""
    figures = list(map(Markup, drawings))
    return fill("live_page.html.j2", kicker=kicker, title=title, remark=remark, figures=figures, **live)
