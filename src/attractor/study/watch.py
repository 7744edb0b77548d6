"""The live view of many runs reads their folders, and shows a bar for all and a bar for each running run."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from attractor.console import now_and_then, print_line, run_progress
from attractor.runs.appended_lines import AddedLines
from attractor.runs.run_folder import DIVERGED, RunFolder
from attractor.study.launch import Job
from attractor.train.display import in_numbers, shown, time_left


class LiveView:
    """Shows progress bars on a terminal, or prints a line now and then, and prints the outcome of each ended run."""

    def __init__(self, console: Console, jobs: Sequence[Job]) -> None:
        self.console, self.jobs = console, jobs
        self.progress = run_progress(console)
        self.overall = self.progress.add_task("all steps", total=sum(job.config.n_steps for job in jobs), numbers="")
        self.bars = {
            job: self.progress.add_task(job.name, total=job.config.n_steps, visible=False, numbers="") for job in jobs
        }
        self.steps = {job: LatestStep(job.path / "metrics.jsonl") for job in jobs}
        self.announced = {job for job in jobs if job.finished}
        self.due = now_and_then()

    def __enter__(self) -> "LiveView":
        if self.console.is_terminal:
            self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def __call__(self, running: Sequence[Job], ended: Sequence[Job]) -> None:
        steps = sum(job.config.n_steps for job in ended)
        for job in running:
            latest = self.steps[job].read()
            steps += latest.get("step", 0)
            self.progress.update(
                self.bars[job],
                completed=latest.get("step", 0),
                visible=True,
                numbers=in_numbers(latest) if latest else "starting",
            )
        for job in ended:
            self.progress.update(self.bars[job], visible=False)
            if job not in self.announced:
                self.announced.add(job)
                self._announce(job)
        self.progress.update(self.overall, completed=steps, numbers=f"{len(ended)} of {len(self.jobs)} runs")
        if not self.console.is_terminal and self.due():
            print_line(self.console, self._in_one_line(running, ended))

    def _in_one_line(self, running: Sequence[Job], ended: Sequence[Job]) -> str:
        """Say where the runs stand, for a log."""
        under_way = []
        for job in running:
            latest = self.steps[job].record
            numbers = f"  {in_numbers(latest)}" if latest else ""
            under_way.append(f"{job.name} step {latest.get('step', 0):,} of {job.config.n_steps:,}{numbers}")
        all_runs = f"{len(ended)} of {len(self.jobs)} runs ended{time_left(self.progress, self.overall)}"
        return "; ".join([all_runs, *under_way])

    def _announce(self, job: Job) -> None:
        summary = RunFolder.open(job.path).summary() if job.finished else None
        outcome = "failed"
        if summary is not None:
            metric = f"{summary['metric']['name']} {shown(summary['metric']['value'])}"
            outcome = summary.get(DIVERGED, metric)
        for note in job.notes():
            print_line(self.console, f"{job.name}: {note}")
        n_all = len(self.jobs)
        print_line(self.console, f"[{len(self.announced):>{len(str(n_all))}}/{n_all}] {job.name}: {outcome}")


class LatestStep:
    """Reads the newest training step from a growing file of metrics.

    Only added lines are read, since a study reads every running run several times a second.
    """

    def __init__(self, path: Path) -> None:
        self.added = AddedLines(path)
        self.record: dict[str, Any] = {}

    def read(self) -> dict[str, Any]:
        """Return the record of the newest step, or an empty one where there is none yet."""
        lines = self.added.read()
        if self.added.rewritten:
            self.record = {}
        for line in reversed(lines):
            with suppress(ValueError):
                record = json.loads(line)
                if "loss" in record:
                    self.record = record
                    break
        return self.record
