"""`attractor study run` turns a study's file into finished runs, their measures, and a report.

    plan      makes a configuration of every cell and seed; its hash is the key of a run in the pool
    run       lets a launcher carry out what is not finished; a failed run is reported and stops no other
    probe     measures the finished runs, where the study asks for it
    report    reads the record from the folders alone

The pool is shared: studies that need the same run have it once. Runs are split over machines by `part`, and brought
together by copying folders into one pool. A study of fine-tuning carries out the runs of another study first. Where it
is split, a machine fine-tunes what it has pretrained.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from attractor.errors import InputError, require, unknown
from attractor.files import remove_leftovers, set_aside, write_bytes, write_json
from attractor.runs.configuration import config_hash
from attractor.runs.study_record import (
    POOL,
    SPEEDS,
    STUDY_FILE,
    Design,
    Keys,
    StudyRecord,
    pool_of,
    read_study,
    refuse_foreign_folder,
    study_as_dict,
)
from attractor.seals import checksum_of, read_sealed, write_sealed
from attractor.study.budget import balanced
from attractor.study.costs import carry_out_costs
from attractor.study.launch import Job, share_machine
from attractor.study.probe import losses_elsewhere, probe_named, probe_runs
from attractor.study.recorded_runs import take_over
from attractor.study.stacked import MAX_STACK, prefer_stacked, serves
from attractor.study.study import Study, require_seeds
from attractor.study.watch import LiveView
from attractor.train.calibrate import CalibrationError, calibrate
from attractor.train.config import Runtime, TrainConfig
from attractor.train.console import print_line
from attractor.train.fit import Room, refuse_side_by_side
from attractor.train.hardware import resolve_device, slow_precision
from attractor.train.memory import ProcessLayout

EARLIER = "earlier"  # the folder with a study's plans from before it was edited
LAUNCHERS = {
    "local": "attractor.study.launch",
    "stacked": "attractor.study.stacked",
    "ray": "attractor.study.on_ray",
    "torchrun": "attractor.study.torchrun",  # one run at a time, on as many processes as there are workers
}
Launch = Callable[[Sequence[Job], int | None, Runtime, Callable[[Sequence[Job], Sequence[Job]], None]], dict[str, str]]


@dataclass(frozen=True)
class Conduct:
    """How a study is carried out. Nothing here changes what a run computes."""

    scale: str = "smoke"
    root: Path = Path("runs")  # the folder of the pool of runs
    folder: Path | None = None  # the folder of the study and its report; by default NAME-SCALE in root
    launcher: str = "auto"  # "auto" stacks seeds in one process where that is faster
    workers: int | None = None
    seeds: tuple[int, ...] | None = None  # replace the seeds of the scale
    rows: tuple[str, ...] | None = None  # carry out the runs of these rows alone
    columns: tuple[str, ...] | None = None  # carry out the runs of these columns alone
    part: str = "1/1"  # the share of the runs that this machine carries out
    command: str = ""
    from_record: StudyRecord | None = None  # a stored record of the study, whose runs are not run again
    gpus_per_run: float | None = None  # on a Ray cluster; may be a fraction; None: one where runs use GPUs

    def __post_init__(self) -> None:
        if self.launcher not in ("auto", *LAUNCHERS):
            raise unknown("launcher", self.launcher, ("auto", *LAUNCHERS))
        share_of(self.part)
        require(self.workers is None or self.workers >= 1, "workers", "at least 1", self.workers)
        if self.seeds is not None:
            require_seeds(self.seeds)

    def folder_of(self, study: Study) -> Path:
        return self.folder or self.root / f"{study.name}-{self.scale}"


def share_of(part: str) -> tuple[int, int]:
    """Parse a share: `2/3`, the second of three, becomes the index 1 and the number 3."""
    index, _, number = part.partition("/")
    good = index.isdecimal() and number.isdecimal() and 1 <= int(index) <= int(number)
    require(good, "part", "a share as 2/3", part)
    return int(index) - 1, int(number)


@dataclass(frozen=True)
class Planned:
    """A study on one scale: all its runs, and the cells that they belong to."""

    design: Design
    folder: Path
    jobs: tuple[Job, ...]  # without repetition, although several cells may share a run
    keys: Keys
    before: "Planned | None" = None  # the plan of the study from whose runs these start
    waiting: tuple[tuple[str, TrainConfig], ...] = ()  # by name, runs without a key: they start from an unfinished run

    def chosen(self, conduct: Conduct) -> tuple[Job, ...]:
        """Return the runs of the chosen rows and columns, and of these a share."""
        if self.before is not None:
            starts = {str(job.path) for job in self.starts(conduct)}
            return tuple(job for job in self._of_chosen_cells(conduct) if job.config.start in starts)
        index, number = share_of(conduct.part)
        return self._of_chosen_cells(conduct)[index::number]

    def starts(self, conduct: Conduct) -> tuple[Job, ...]:
        """Return the runs from which the chosen runs start."""
        rows = conduct.rows or self.design.rows
        return () if self.before is None else self.before.chosen(replace(conduct, rows=rows, columns=None))

    def run_of(self, row: str, seed: int) -> Job:
        """Return the run of a row and seed, in the first column."""
        if row not in self.design.rows:
            raise unknown(f"row of {self.design.name}, from whose runs this study starts", row, self.design.rows)
        key = self.keys[row, self.design.columns[0]][seed]
        return next(job for job in self.jobs if job.path.name == key)

    def _of_chosen_cells(self, conduct: Conduct) -> tuple[Job, ...]:
        rows, columns = conduct.rows or self.design.rows, conduct.columns or self.design.columns
        chosen = {
            key
            for (row, column), runs in self.keys.items()
            if row in rows and column in columns
            for key in runs.values()
        }
        return tuple(job for job in self.jobs if job.path.name in chosen)


def plan_study(study: Study, conduct: Conduct, runtime: Runtime) -> Planned:
    """Plan all runs of the study, one seed after the other, so that pairs are complete as early as possible."""
    seeds = conduct.seeds or study.on(conduct.scale).seeds
    design = study.design(conduct.scale, seeds, conduct.command)
    folder = conduct.folder_of(study)
    before = None
    if study.pretrained is not None:
        before = plan_study(study.pretrained, replace(conduct, seeds=seeds, columns=None, folder=None), runtime)
    jobs: dict[str, Job] = {}
    keys: Keys = {}
    waiting = []
    for seed in seeds:
        for column in design.columns:
            try:
                configs = study.column(conduct.scale, seed, column)
            except InputError:
                if conduct.columns is None or column in conduct.columns:
                    raise
                continue  # where other columns are carried out, the data of this one need not be here
            if before is not None:
                configs = {row: started_from(before.run_of(row, seed), config) for row, config in configs.items()}
            speed = speeds(folder, configs, conduct.part, runtime)
            planned = balanced(configs, design.baseline, design.budget, speed, study.resize, study.sized_by)
            if study.kind == "training":
                design.refuse_unequal_tokens(
                    (row, config.n_steps * config.tokens_per_step) for row, config in planned.items()
                )
            for row, config in planned.items():
                label = " · ".join(filter(None, (row, column)))
                if before is not None and not has_weights(before.run_of(row, seed)):
                    waiting.append((Job(config, folder, label).name, config))
                    continue
                key = key_of(config, study.kind)
                jobs.setdefault(key, Job(config, conduct.root / POOL / key, label))
                keys.setdefault((row, column), {})[seed] = key
    return Planned(design, folder, tuple(jobs.values()), keys, before, tuple(waiting))


def key_of(config: TrainConfig, kind: str = "training") -> str:
    """Return a hash of all that determines the run.

    The weights that a run starts from count, and not the folder that holds them. Studies of costs have no data.
    """
    identity = identity_of(config, kind)
    return config_hash({name: value for name, value in identity.items() if kind != "training" or name != "start"})


def identity_of(config: TrainConfig, kind: str) -> dict[str, Any]:
    """Return what the folder of a run keeps as its configuration."""
    return config.identity(_task_of(config)) if kind == "training" else config.to_dict() | {"kind": kind}


def has_weights(pretrained: Job) -> bool:
    """Return whether a run can start from this one."""
    return pretrained.finished and pretrained.has_checkpoint


def started_from(pretrained: Job, config: TrainConfig) -> TrainConfig:
    """Let a run start from a pretrained one, with that run's model."""
    demands = config.task.build(config.seq_len, config.seed).demands
    fitting = {name: value for name, value in demands.items() if name != "vocab_size"}
    return config.replace(model=pretrained.config.model.replace(**fitting), start=str(pretrained.path))


@lru_cache(maxsize=64)
def _task_of(config: TrainConfig) -> Any:
    return config.build_task()


def speeds(folder: Path, configs: Mapping[str, TrainConfig], part: str, runtime: Runtime) -> Callable[[str], float]:
    """Return a function that gives a row's seconds per step, measured once and then read from a file.

    Speeds of two devices cannot be compared, and shares of a study must plan the same runs. So a file has the speeds of
    one device, and a share of a study takes them from the file alone.
    """
    device = str(resolve_device(runtime.device))

    def seconds(row: str) -> float:
        path = folder / SPEEDS
        known = read_sealed(path) or {"device": device}
        if known.get("device") != device:
            raise InputError(
                f"device must be that of the speeds in '{path}', {known.get('device', 'which they do not name')}, and "
                f"is {device}; move that file away to measure anew"
            )
        name = config_hash(configs[row].replace(seed=0).to_dict())
        if name not in known:
            if part != "1/1":
                raise InputError(
                    f"part must be 1/1 until the speeds of all rows are measured, and is {part}: each machine would "
                    "plan other runs; run 'attractor study plan' once, and copy its speeds.json into the study's "
                    f"folder on every machine, here '{folder}'"
                )
            try:
                known[name] = calibrate(configs[row], runtime).step_seconds
            except CalibrationError as failed:
                raise InputError(
                    f"row '{row}' must be timed for budget 'wall', and its first steps failed: {failed}; mend the row, "
                    "or choose another budget"
                ) from failed
            folder.mkdir(parents=True, exist_ok=True)
            write_sealed(path, known)
        return float(known[name])

    return seconds


def write_plan(planned: Planned) -> list[str]:
    """Write study.json, and return lines to print. An earlier plan with other runs is kept beside it."""
    path = planned.folder / STUDY_FILE
    now = study_as_dict(planned.design, planned.keys)
    lines = []
    try:
        before = read_study(planned.folder)[1] if path.exists() else {}
    except InputError as error:
        before = {}
        lines.append(f"{error}; the damaged file is kept as '{set_aside(path)}'")
    gone = {key for runs in before.values() for key in runs.values()} - {
        key for runs in planned.keys.values() for key in runs.values()
    }
    if gone:
        kept = planned.folder / EARLIER / f"{checksum_of(path)[:12]}.json"
        kept.parent.mkdir(exist_ok=True)
        write_bytes(kept, path.read_bytes())
        lines.append(
            f"the study has other runs than when it was last run, by its file or by --seeds: {len(gone)} of its "
            f"earlier runs are not part of it now; they are kept, and its earlier plan is in '{kept}'"
        )
    planned.folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(planned.folder, pool_of(planned.folder))
    write_json(path, now)
    return lines


def run_study(study: Study, conduct: Conduct, runtime: Runtime, console: Console) -> tuple[StudyRecord, dict[str, str]]:
    """Carry out the runs that are not finished. Return the record of the study, and the failures by name."""
    device = resolve_device(runtime.device)
    refuse_unsuited(study, conduct)
    planned = plan_study(study, conduct, runtime)
    failures: dict[str, str] = {}
    if planned.before is not None:
        starts = planned.starts(conduct)
        what = f"{len(starts)} of {planned.before.design.name}"
        print_line(console, f"first, the runs from which this study starts: {what}")
        failures |= pretrain(starts, conduct, runtime, console)
        planned = plan_study(study, conduct, runtime)
    jobs = planned.chosen(conduct)
    if study.kind == "training":
        refuse_oversized(jobs, conduct, runtime)
    for line in write_plan(planned):
        print_line(console, line)
    if conduct.from_record is not None:
        n_recorded, n_begun = take_over(
            conduct.from_record, planned.jobs, [identity_of(job.config, study.kind) for job in planned.jobs]
        )
        begun = f"; {n_begun} others of it were begun here and go on: remove their folders to take them over"
        print_line(
            console, f"{n_recorded} runs are taken from the record and are not run again{begun if n_begun else ''}"
        )
    of_all = "" if len(jobs) == len(planned.jobs) else f"{len(jobs)} of "
    print_line(console, f"{study.title}, scale {conduct.scale}: {of_all}{len(planned.jobs)} runs")
    if study.kind == "training" and conduct.launcher != "ray":  # the machines of a cluster are not this one
        waiting = {slow_precision(job.config.precision, device) for job in jobs if not job.finished}
        for warning in sorted(filter(None, waiting)):
            print_line(console, warning)
    failures |= carry_out(jobs, study.kind, conduct, runtime, console)
    for name in study.probes:
        probe_runs(jobs, name, probe_named(name), runtime, console)
    elsewhere = study.on(conduct.scale).elsewhere
    if elsewhere:
        probe_runs(jobs, "elsewhere", partial(losses_elsewhere, corpora=elsewhere), runtime, console)
    if not any(job.finished for job in planned.jobs):
        raise InputError(
            "no run finished, so there is nothing to report; mend what the lines above name, then repeat the command"
        )
    return StudyRecord.read(planned.folder), failures


def refuse_unsuited(study: Study, conduct: Conduct) -> None:
    """Refuse a choice of runs, or a folder, that the study cannot have."""
    design = study.design(conduct.scale, (), conduct.command)
    for what, names, known in (("row", conduct.rows, design.rows), ("column", conduct.columns, design.columns)):
        for name in names or ():
            if name not in known:
                raise unknown(what, name, known)
    if study.kind == "timing":
        if conduct.part != "1/1":
            raise InputError(
                f"part must be 1/1 in a study of times, and is {conduct.part}: times of two machines cannot be compared"
            )
        for what in ("rows", "columns"):
            if getattr(conduct, what) is not None:
                raise InputError(
                    f"{what} cannot be chosen in a study of times, because all cells are timed in turns; leave it out"
                )
    refuse_foreign_folder(conduct.folder_of(study))


def pretrain(starts: Sequence[Job], conduct: Conduct, runtime: Runtime, console: Console) -> dict[str, str]:
    """Carry out the runs from which others start, and return the failures by name."""
    for job in starts:
        if job.finished and not job.has_checkpoint:
            raise InputError(
                f"the run in '{job.path}' must have weights, since others start from it, and it was taken over from a "
                "record without them; remove that folder, then repeat the command, which trains it"
            )
    refuse_oversized(starts, conduct, runtime)
    return carry_out(starts, "training", conduct, runtime, console)


def launcher_of(conduct: Conduct, runtime: Runtime) -> tuple[str, int | None]:
    """Return the name of the launcher and its number of workers. With None, the launcher chooses."""
    name = conduct.launcher
    if name == "auto":
        name = "stacked" if serves(runtime) and prefer_stacked(runtime.device) else "local"
    if name == "torchrun":
        return name, conduct.workers or max(1, torch.cuda.device_count())
    return name, conduct.workers


def refuse_oversized(jobs: Sequence[Job], conduct: Conduct, runtime: Runtime) -> None:
    """Refuse runs that cannot fit into the memory of this machine, alone or side by side."""
    name, workers = launcher_of(conduct, runtime)
    waiting = [job.config for job in jobs if not job.finished]
    processes = ProcessLayout(workers or 1, runtime.parallel) if name == "torchrun" else None
    room, (n_at_once, _) = Room.of(runtime, processes), share_machine(len(jobs), workers, runtime)
    if name == "ray" or room.is_plenty(waiting, n_at_once * MAX_STACK):  # the machines of a cluster are not this one
        return
    memories = [room.refuse_oversized(config) for config in waiting]
    if name == "local":
        refuse_side_by_side(memories, n_at_once, room.free)
    elif processes is not None and room.device.type == "cpu":  # the processes of one run share the machine
        largest = max(memories, key=lambda memory: memory.total)
        refuse_side_by_side([largest] * processes.size, processes.size, room.free)


def carry_out(jobs: Sequence[Job], kind: str, conduct: Conduct, runtime: Runtime, console: Console) -> dict[str, str]:
    """Carry out those of these runs that are not finished, and return the failures by name."""
    if kind != "training":
        carry_out_costs(kind, jobs, runtime, console)
        return {}
    n_before = sum(job.finished for job in jobs)
    if n_before:
        print_line(console, f"{n_before} of {len(jobs)} runs were finished before")
    if n_before == len(jobs):
        return {}
    name, workers = launcher_of(conduct, runtime)
    asked = runtime.threads
    n_workers, runtime = share_machine(len(jobs), workers, runtime)
    module = import_module(LAUNCHERS[name])
    launch: Launch = module.launch
    at_once = f"{n_workers} at once"
    if name == "ray":  # its machines are not this one
        runtime = replace(runtime, threads=asked or 1)
        launch = partial(module.launch, cluster=module.Cluster(gpus_per_run=conduct.gpus_per_run))
        at_once = "as many at once as the cluster holds" if workers is None else at_once
    print_line(console, f"launcher '{name}', {at_once}, in {conduct.root / POOL}")
    with LiveView(console, jobs) as watch:
        failures = launch(jobs, workers if name == "ray" else n_workers, runtime, watch)
    for name, why in failures.items():
        print_line(console, f"failed: {name}: {why.strip()}")
    return failures
