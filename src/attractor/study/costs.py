"""Studies of costs: their "runs" are counted or timed instead of trained, and write the same kind of folder."""

from collections.abc import Sequence

from rich.console import Console

from attractor.bench.costs import counts, timings
from attractor.console import print_line
from attractor.runs.machine import environment
from attractor.runs.run_folder import ENVIRONMENT, RunFolder
from attractor.study.launch import Job
from attractor.train.config import Runtime
from attractor.train.hardware import resolve_device


def carry_out_costs(kind: str, jobs: Sequence[Job], runtime: Runtime, console: Console) -> None:
    """Count or time the jobs. If one is unfinished or of another device, all are timed again, so that they are compared
    under equal load."""
    device = str(resolve_device(runtime.device))
    finished = [RunFolder.open(job.path).summary() or {} for job in jobs if job.finished]
    elsewhere = sorted({str(summary.get("device", device)) for summary in finished} - {device})
    if len(finished) == len(jobs) and (kind == "counts" or not elsewhere):
        print_line(console, f"{len(jobs)} of {len(jobs)} runs were finished before")
        return
    cases = {str(job.path): job.config for job in jobs}
    if kind == "counts":
        summaries = {path: counts(config) for path, config in cases.items()}
    else:
        before = f"; the times of {' and '.join(elsewhere)} are replaced" if elsewhere else ""
        print_line(console, f"{len(jobs)} cases in turns, on {device}{before}")
        summaries = {path: times | {"device": device} for path, times in timings(cases, runtime).items()}
    for job in jobs:
        run = RunFolder.create(job.path, job.config.to_dict() | {"kind": kind})
        run.write(ENVIRONMENT, environment())  # an earlier timing may be of another machine
        run.write_summary(summaries[str(job.path)])
