"""Plan the runs of a study: a configuration for every cell and seed, and the key of its run in the pool.

The pool is shared: studies that need the same run have it once. Runs are split over machines by `part`, and brought
together by copying folders into one pool. A study of fine-tuning plans the runs of another study first. Where it is
split, a machine fine-tunes what it has pretrained.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from attractor.console import console_table, waiting, with_prefix
from attractor.errors import InputError, require, require_known
from attractor.files import remove_leftovers, set_aside, write_bytes, write_json
from attractor.files.seals import checksum_of, read_sealed, write_sealed
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
    study_as_dict,
)
from attractor.study.budget import balanced, flops_per_step, n_parameters
from attractor.study.launch import Job
from attractor.study.study import Study, require_seeds
from attractor.train.calibrate import CalibrationError, RunCosts, calibrate
from attractor.train.config import Runtime, TrainConfig
from attractor.train.hardware import resolve_device, time_of_a_gpu

EARLIER = "earlier"  # the folder with a study's plans from before it was edited
LAUNCHERS = {
    "local": "attractor.study.launch",
    "stacked": "attractor.study.stacked",
    "ray": "attractor.study.on_ray",
    "torchrun": "attractor.study.torchrun",  # one run at a time, on as many processes as there are workers
}


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
    until: float = math.inf  # the moment of `time.monotonic` at which runs are saved and end

    def __post_init__(self) -> None:
        require_known("launcher", self.launcher, ("auto", *LAUNCHERS))
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
    chosen: tuple[Job, ...]  # those of the chosen rows and columns, and of these the share of this machine
    before: "Planned | None" = None  # the plan of the study from whose runs these start
    waiting: tuple[tuple[str, TrainConfig], ...] = ()  # by name, runs without a key: they start from an unfinished run

    def run_of(self, row: str, seed: int) -> Job:
        """Return the run of a row and seed, in the first column."""
        require_known(f"row of {self.design.name}, from whose runs this study starts", row, self.design.rows)
        key = self.keys[row, self.design.columns[0]][seed]
        return next(job for job in self.jobs if job.path.name == key)


def plan_study(study: Study, conduct: Conduct, runtime: Runtime) -> Planned:
    """Plan all runs of the study, one seed after the other, so that pairs are complete as early as possible."""
    seeds = conduct.seeds or study.on(conduct.scale).seeds
    design = study.design(conduct.scale, seeds, conduct.command)
    folder = conduct.folder_of(study)
    rows, columns = conduct.rows or design.rows, conduct.columns or design.columns
    before = None
    if study.pretrained is not None:
        of_starts = replace(conduct, seeds=seeds, rows=rows, columns=None, folder=None)
        before = plan_study(study.pretrained, of_starts, runtime)
    jobs: dict[str, Job] = {}
    keys: Keys = {}
    waiting = []
    for seed in seeds:
        for column in design.columns:
            try:
                configs = study.column(conduct.scale, seed, column)
            except InputError:
                if column in columns:
                    raise
                continue  # where other columns are carried out, the data of this one need not be here
            if before is not None:
                configs = {row: started_from(before.run_of(row, seed), config) for row, config in configs.items()}
            speed = partial(seconds_of_step, configs, folder, conduct.part, runtime)
            planned = balanced(configs, design.baseline, design.budget, speed, study.resize, study.sized_by)
            if study.kind == "training":
                design.refuse_unequal_tokens(
                    (row, config.n_steps * config.tokens_per_step) for row, config in planned.items()
                )
            for row, config in planned.items():
                label = " · ".join(filter(None, (row, column)))
                start = None if before is None else before.run_of(row, seed)
                if start is not None and not (start.finished and start.has_checkpoint and start.diverged is None):
                    waiting.append((Job(config, folder, label).name, config))
                    continue
                key = key_of(config, study.kind)
                jobs.setdefault(key, Job(config, conduct.root / POOL / key, label))
                keys.setdefault((row, column), {})[seed] = key
    of_cells = [runs.values() for (row, column), runs in keys.items() if row in rows and column in columns]
    chosen = [job for key, job in jobs.items() if any(key in of_cell for of_cell in of_cells)]
    if before is None:
        index, number = share_of(conduct.part)
        chosen = chosen[index::number]
    else:  # a machine goes on from the runs that it carries out
        starts = {str(job.path) for job in before.chosen}
        chosen = [job for job in chosen if job.config.start in starts]
    return Planned(design, folder, tuple(jobs.values()), keys, tuple(chosen), before, tuple(waiting))


def key_of(config: TrainConfig, kind: str = "training") -> str:
    """Return a hash of all that determines the run.

    The weights that a run starts from count, and not the folder that holds them. Studies of costs have no data.
    """
    identity = identity_of(config, kind)
    return config_hash({name: value for name, value in identity.items() if kind != "training" or name != "start"})


def identity_of(config: TrainConfig, kind: str) -> dict[str, Any]:
    """Return what the folder of a run keeps as its configuration."""
    return config.identity(_task_of(config)) if kind == "training" else config.to_dict() | {"kind": kind}


def started_from(pretrained: Job, config: TrainConfig) -> TrainConfig:
    """Let a run start from a pretrained one, with that run's model."""
    demands = config.task.build(config.seq_len, config.seed).demands
    fitting = {name: value for name, value in demands.items() if name != "vocab_size"}
    return config.replace(model=pretrained.config.model.replace(**fitting), start=str(pretrained.path))


@lru_cache(maxsize=64)
def _task_of(config: TrainConfig) -> Any:
    return config.build_task()


def seconds_of_step(configs: Mapping[str, TrainConfig], folder: Path, part: str, runtime: Runtime, row: str) -> float:
    """Return a row's seconds per step, measured once and then read from a file.

    Speeds of two devices cannot be compared, and shares of a study must plan the same runs. So a file has the speeds of
    one device, and a share of a study takes them from the file alone.
    """
    path, device = folder / SPEEDS, str(resolve_device(runtime.device))
    known = read_sealed(path) or {"device": device}
    if known.get("device") != device:
        raise InputError(
            f"device must be that of the speeds in '{path}', {known.get('device', 'which they do not name')}, and is "
            f"{device}; move that file away to measure anew"
        )
    name = config_hash(configs[row].replace(seed=0).to_dict())
    if name not in known:
        if part != "1/1":
            raise InputError(
                f"part must be 1/1 until the speeds of all rows are measured, and is {part}: each machine would plan "
                "other runs; run 'attractor study plan' once, and copy its speeds.json into the study's folder on "
                f"every machine, here '{folder}'"
            )
        known[name] = timed(row, configs[row], runtime).step_seconds
        folder.mkdir(parents=True, exist_ok=True)
        write_sealed(path, known)
    return float(known[name])


def timed(row: str, config: TrainConfig, runtime: Runtime) -> RunCosts:
    """Return what a run of the row takes here, by its first steps."""
    try:
        with waiting(f"timing the first steps of row '{row}'"):
            return calibrate(config, runtime)
    except CalibrationError as failed:
        raise InputError(f"row '{row}' must be timed, and its first steps failed: {failed}; mend the row") from failed


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
    earlier, current = ({key for runs in keys.values() for key in runs.values()} for keys in (before, planned.keys))
    gone = earlier - current
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


def print_runs(jobs: Sequence[Job], waiting: Sequence[tuple[str, TrainConfig]], budget: str, console: Console) -> None:
    """Show the runs of a plan, and what is left to do. Those that wait for others have no key yet."""
    headings = ("run", "parameters", "steps", "tokens", "FLOPs", "finished", "key")
    table = console_table(headings, left=("run", "key"), no_wrap=True)
    left = []
    runs = [(job.name, job.config, job.finished, job.path.name) for job in jobs]
    runs += [(name, config, False, "depends on its start") for name, config in waiting]
    for name, config, finished, key in runs:
        flops = config.n_steps * flops_per_step(config)
        left += [] if finished else [flops]
        table.add_row(
            Text(name),
            f"{n_parameters(config.model):,}",
            f"{config.n_steps:,}",
            with_prefix(config.n_steps * config.tokens_per_step),
            with_prefix(flops),
            "yes" if finished else "",
            key,
        )
    console.print(table)
    work = f" ({time_of_a_gpu(sum(left))})" if left else ""
    line = f"{len(runs)} runs, {len(left)} to do{work}; budget: {budget}"
    console.print(line, highlight=False, soft_wrap=True)
