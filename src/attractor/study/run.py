"""`attractor study run` turns a study's file into finished runs, their measures, and a record.

plan      makes a configuration of every cell and seed (`plan.py`)
run       lets a launcher carry out what is not finished; a failed run is reported and stops no other
probe     measures the finished runs, where the study asks for it
read      reads the record from the folders alone, which the report then judges and shows
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module

import torch
from rich.console import Console

from attractor.bench.costs import counts, timings
from attractor.console import print_line
from attractor.errors import InputError, require_known
from attractor.runs.machine import environment
from attractor.runs.run_folder import ENVIRONMENT, RunFolder
from attractor.runs.study_record import POOL, StudyRecord, refuse_foreign_folder
from attractor.study.launch import Job, share_machine
from attractor.study.plan import LAUNCHERS, Conduct, Planned, identity_of, plan_study, write_plan
from attractor.study.probe import losses_elsewhere, probe_runs
from attractor.study.recorded_runs import take_over
from attractor.study.stacked import MAX_STACK, prefer_stacked, serves
from attractor.study.study import Probe, Study
from attractor.study.watch import LiveView
from attractor.study.within import UntilDecided
from attractor.train.config import Runtime
from attractor.train.fit import FreeMemory
from attractor.train.hardware import resolve_device, slow_precision
from attractor.train.memory import ProcessLayout


def run_study(study: Study, conduct: Conduct, runtime: Runtime, console: Console) -> tuple[StudyRecord, dict[str, str]]:
    """Carry out the runs that are not finished. Return the record of the study, and the failures by name."""
    say = partial(print_line, console)
    device = resolve_device(runtime.device)
    refuse_unsuited(study, conduct)
    planned = plan_study(study, conduct, runtime)
    failures: dict[str, str] = {}
    if planned.before is not None:
        starts = planned.before.chosen
        refuse_without_weights(starts)
        refuse_oversized(starts, conduct, runtime)
        say(f"first, the runs from which this study starts: {len(starts)} of {planned.before.design.name}")
        failures |= carry_out(planned.before, "training", conduct, runtime, console)
        failures |= {job.name: why for job in starts if (why := job.diverged)}
        planned = plan_study(study, conduct, runtime)
    jobs = planned.chosen
    if study.kind == "training":
        refuse_oversized(jobs, conduct, runtime)
    for line in write_plan(planned):
        say(line)
    if conduct.from_record is not None:
        identities = [identity_of(job.config, study.kind) for job in planned.jobs]
        n_recorded, n_begun = take_over(conduct.from_record, planned.jobs, identities, study.probes)
        begun = f"; {n_begun} others of it were begun here and go on: remove their folders to take them over"
        say(f"{n_recorded} runs are taken from the record and are not run again{begun if n_begun else ''}")
    of_all = "" if len(jobs) == len(planned.jobs) else f"{len(jobs)} of "
    say(f"{study.title}, scale {conduct.scale}: {of_all}{len(planned.jobs)} runs")
    if study.kind == "training" and conduct.launcher != "ray":  # the machines of a cluster are not this one
        warnings = {slow_precision(job.config.precision, device) for job in jobs if not job.finished}
        for warning in sorted(filter(None, warnings)):
            say(warning)
    failures |= carry_out(planned, study.kind, conduct, runtime, console)
    for probe in study.probes:
        probe_runs(jobs, probe, runtime, console)
    if elsewhere := study.on(conduct.scale).elsewhere:
        probe_runs(jobs, Probe("elsewhere", partial(losses_elsewhere, corpora=elsewhere)), runtime, console)
    if not any(job.finished for job in planned.jobs):
        remedy = "mend what the lines above name, then repeat the command"
        if planned.design.looks and not failures:
            remedy = "the time was over before; the same command goes on"
        raise InputError(f"no run finished, so there is nothing to report; {remedy}")
    return StudyRecord.read(planned.folder), failures


def refuse_unsuited(study: Study, conduct: Conduct) -> None:
    """Refuse a choice of runs, or a folder, that the study cannot have."""
    axes = study.axes(conduct.scale)
    for what, chosen, axis in zip(("row", "column"), (conduct.rows, conduct.columns), axes, strict=True):
        for name in chosen or ():
            require_known(what, name, axis.labels)
        if chosen is not None and study.kind == "timing":
            raise InputError(
                f"{what}s cannot be chosen in a study of times, because all cells are timed in turns; leave it out"
            )
    if conduct.part != "1/1" and study.kind == "timing":
        raise InputError(
            f"part must be 1/1 in a study of times, and is {conduct.part}: times of two machines cannot be compared"
        )
    refuse_foreign_folder(conduct.folder_of(study))


def refuse_without_weights(starts: Sequence[Job]) -> None:
    """Refuse finished runs without weights, where other runs are to start from them."""
    for job in starts:
        if job.finished and not job.has_checkpoint:
            raise InputError(
                f"the run in '{job.path}' must have weights, since others start from it, and it was taken over from a "
                "record without them; remove that folder, then repeat the command, which trains it"
            )


def launcher_of(conduct: Conduct, runtime: Runtime) -> tuple[str, int | None]:
    """Return the name of the launcher and its number of workers. With None, the launcher chooses."""
    name = conduct.launcher
    if name == "auto":  # stacked seeds run together, and so none of them is spared
        stacked = conduct.until == math.inf and serves(runtime) and prefer_stacked(runtime.device)
        name = "stacked" if stacked else "local"
    if name == "torchrun":
        return name, conduct.workers or max(1, torch.cuda.device_count())
    return name, conduct.workers


def refuse_oversized(jobs: Sequence[Job], conduct: Conduct, runtime: Runtime) -> None:
    """Refuse runs that cannot fit into the memory of this machine, alone or side by side."""
    name, workers = launcher_of(conduct, runtime)
    if name == "ray":  # the machines of a cluster are not this one
        return
    processes = ProcessLayout(workers or 1, runtime.parallel) if name == "torchrun" else None
    free_memory, (n_at_once, _) = FreeMemory.of(runtime, processes), share_machine(len(jobs), workers, runtime)
    memories = free_memory.refuse_any([job.config for job in jobs if not job.finished], n_at_once * MAX_STACK)
    if name == "local":
        free_memory.refuse_side_by_side(memories, n_at_once)
    elif processes is not None and free_memory.device.type == "cpu":  # the processes of one run share the machine
        largest = sorted(memories, key=lambda memory: memory.total)[-1:]
        free_memory.refuse_side_by_side(largest * processes.size, processes.size)


def carry_out(planned: Planned, kind: str, conduct: Conduct, runtime: Runtime, console: Console) -> dict[str, str]:
    """Carry out the chosen runs that are not finished, and return the failures by name."""
    jobs, say = planned.chosen, partial(print_line, console)
    if kind != "training":
        carry_out_costs(kind, jobs, runtime, console)
        return {}
    for job in jobs if runtime.on_divergence == "rollback" else ():
        if job.diverged is not None:
            RunFolder.open(job.path).reopen()
    n_before = sum(job.finished for job in jobs)
    if n_before:
        say(f"{n_before} of {len(jobs)} runs were finished before")
    if n_before == len(jobs):
        return {}
    name, workers = launcher_of(conduct, runtime)
    n_workers, of_a_run = share_machine(len(jobs), workers, runtime)
    module = import_module(LAUNCHERS[name])
    launch: Callable[..., dict[str, str]] = module.launch
    at_once = f"{n_workers} at once"
    if name == "ray":  # its machines are not this one
        of_a_run = replace(runtime, threads=runtime.threads or 1)
        launch = partial(launch, cluster=module.Cluster(gpus_per_run=conduct.gpus_per_run))
        at_once = "as many at once as the cluster holds" if workers is None else at_once
    say(f"launcher '{name}', {at_once}, in {conduct.root / POOL}")
    decisions = UntilDecided(planned, conduct.until, say) if planned.design.looks else None
    if decisions is not None:
        launch = partial(launch, choose=decisions.choose)
    with LiveView(console, jobs) as view:

        def watch(running: Sequence[Job], ended: Sequence[Job]) -> None:
            view(running, ended)
            if decisions is not None:
                decisions.watch(running, ended)

        failures = launch(jobs, workers if name == "ray" else n_workers, of_a_run, watch)
    for name, why in failures.items():
        say(f"failed: {name}: {why.strip()}")
    return failures


def carry_out_costs(kind: str, jobs: Sequence[Job], runtime: Runtime, console: Console) -> None:
    """Count or time the jobs, which write the same kind of folder as runs. If one is unfinished or of another device,
    all are timed again, so that they are compared under equal load."""
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
