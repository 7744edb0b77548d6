"""Launch runs that differ by their seed alone in one process, with their weights stacked.

Jobs are grouped by everything but the seed, and by the step of their newest checkpoint. Each group is a fresh process
(`train/stacked_loop.py`). The ordinary launcher carries out all other jobs, such as runs that were killed at different
steps. A run ends with the same results under both, up to rounding.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from attractor.errors import InputError
from attractor.runs.run_folder import RunFolder
from attractor.study import launch as one_by_one
from attractor.study.launch import IN_USE, NOTES, Job, Notes, ProcessPool, WatchJobs, carry_out
from attractor.train import checkpoint
from attractor.train.config import Runtime
from attractor.train.damage import is_intact
from attractor.train.display import Display
from attractor.train.formulas import save_code
from attractor.train.hardware import resolve_device
from attractor.train.process import fresh_processes
from attractor.train.saved_tokenizer import save_tokenizer
from attractor.train.stacked_loop import StackedRun, stackable, train_stack

MAX_STACK = 8  # runs in one process


def prefer_stacked(device: str) -> bool:
    """Say whether stacked seeds are faster than separate runs: on a GPU, where launching kernels takes most time."""
    # On two x86 cores (torch 2.13, processor seconds of one thread), four stacked seeds of the laptop recipe in batches
    # of 8 are 1.11 (standard) and 1.12 (coupled-euler) times as fast as separate ones, and 0.95 times at d_model=128,
    # n_layers=4. That gain is less than the loss from threads in place of processes. On a GPU, work around the
    # arithmetic bounds small models. Stacking five seeds reduces that work by a factor of 3.8 to 4.5 with a trace, and
    # of 1.8 to 2.5 without.
    return resolve_device(device).type == "cuda"


def serves(runtime: Runtime) -> bool:
    """Return whether the settings allow stacking. Stacked runs share one process and stay at the same step."""
    return runtime.on_divergence == "stop" and not runtime.cuda_graphs


def refuse_unserved(runtime: Runtime) -> None:
    if not serves(runtime):
        raise InputError(
            f"on_divergence must be stop, with cuda_graphs off, for stacked runs, got {runtime.on_divergence} and "
            f"{runtime.cuda_graphs}; choose launcher local"
        )


def groups(jobs: Sequence[Job]) -> list[list[Job]]:
    """Group the jobs that can be trained together: alike but for the seed, with the same data, at the same step."""
    alike: dict[Any, list[Job]] = {}
    for job in jobs:
        key = job.config.replace(seed=0), job.config.build_task().fingerprint, _step_of(job)
        alike.setdefault(key, []).append(job)
    return [group[i : i + MAX_STACK] for group in alike.values() for i in range(0, len(group), MAX_STACK)]


def _step_of(job: Job) -> int | Path:
    """Return the step of the newest checkpoint, or the path of a run with damaged files or checkpoints."""
    try:
        if (job.path / "config.json").exists() and not is_intact(RunFolder.open(job.path)):
            return job.path
        newest = checkpoint.newest_intact(job.path / "checkpoints", lambda damage: None)
    except InputError:  # the ordinary loop sets the damage aside
        return job.path
    return 0 if newest is None else int(newest.name.removeprefix("step-"))


def train_stacked(
    jobs: Sequence[Job],
    runtime: Runtime | None = None,
    display: Callable[[Job], Display] = lambda job: Display(),
    traced: bool | None = None,
) -> None:
    """Carry out jobs that differ by their seed alone in this process.

    `traced` says whether steps are replayed from a trace; the default is yes on a GPU.
    """
    runtime = runtime or Runtime()
    refuse_unserved(runtime)
    waiting = [job for job in jobs if not job.finished]
    if not waiting:
        return
    config = waiting[0].config
    if {job.config.replace(seed=0) for job in waiting} != {config.replace(seed=0)}:
        raise InputError("stacked runs must differ by their seed alone, got other differences; use groups(jobs)")
    if why_not := stackable(config):
        raise InputError(f"stacked runs must be such as torch can vmap, but {why_not}; train them one by one")
    with ExitStack() as locks:
        runs = []
        for job in waiting:
            task = job.config.build_task()
            folder = RunFolder.create(job.path, job.config.identity(task))
            locks.enter_context(folder.hold())
            save_tokenizer(folder, task, job.config.start_folder)
            save_code(folder, job.config)
            shown = display(job)
            shown.start()
            runs.append(StackedRun(job.config, folder, task, runtime, shown))
        train_stack(runs, traced)


def launch(
    jobs: Sequence[Job],
    n_workers: int,
    runtime: Runtime,
    watch: WatchJobs,
    say: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
) -> dict[str, str]:
    """Carry out all jobs, stacked where possible, and return the failures by name; `say` prints why others are not."""
    refuse_unserved(runtime)
    stacks, single = _plan([job for job in jobs if not job.finished], say)
    n_side_by_side = max(1, min(n_workers, len(stacks)))
    of_a_stack = replace(runtime, threads=(runtime.threads or 1) * n_workers // n_side_by_side)

    def process_of(stack: Sequence[Job]) -> BaseProcess:
        return fresh_processes().Process(target=carry_out, args=(stack, of_a_stack, _train_stack))

    def in_use(stack: Sequence[Job], exit_code: int | None) -> bool:
        if exit_code == IN_USE:
            say(f"not stacked: another process carries out one of {_named(stack)}")
            single.extend(stack)
        return exit_code == IN_USE

    failures = ProcessPool(n_side_by_side, process_of, in_use).carry_out(jobs, watch, stacks)
    if single:
        before = [job for job in jobs if job not in single]
        failures |= one_by_one.launch(single, n_workers, runtime, lambda now, done: watch(now, [*before, *done]))
    return failures


def _train_stack(stack: Sequence[Job], runtime: Runtime) -> None:
    train_stacked(stack, runtime, lambda job: Notes(job.path / NOTES))


def _plan(jobs: Sequence[Job], say: Callable[[str], None]) -> tuple[list[list[Job]], list[Job]]:
    """Return the stacks, and the jobs that are trained one by one."""
    stacks: list[list[Job]] = []
    single: list[Job] = []
    for group in groups(jobs):
        why_not = "no other run has the same configuration and step" if len(group) == 1 else None
        why_not = why_not or stackable(group[0].config)
        if why_not is None:
            stacks.append(group)
        else:
            say(f"not stacked: {_named(group)}: {why_not}")
            single += group
    return stacks, single


def _named(group: Sequence[Job]) -> str:
    seeds = " ".join(str(job.config.seed) for job in group)
    return f"{group[0].config.label} seed{'s' if len(group) > 1 else ''} {seeds}"
