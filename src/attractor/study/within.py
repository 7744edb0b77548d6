"""Plan the seeds of a comparison that fit into a time, and stop each row as soon as it is decided.

    seconds of the plan = ALLOWANCE (sum of all runs / workers + longest run (1 - 1 / workers))             (1)

The first steps of each row on this machine give its time. The seeds and the looks are written into study.json before
the first run, and no result changes them: the error rate rests on that. `verdict/sequential_rows.py` decides the rows.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attractor.console import in_time
from attractor.errors import InputError
from attractor.runs.study_record import STUDY_FILE, Design, StudyRecord, read_study
from attractor.study.launch import Job, share_machine
from attractor.study.plan import Conduct, Planned, plan_study, timed
from attractor.study.study import Study
from attractor.train.calibrate import SECONDS
from attractor.train.config import Runtime, TrainConfig
from attractor.verdict.sequential_rows import ALPHA, CONTROL_PAIRS

FEWEST_SEEDS = 2  # one pair has no interval
ALLOWANCE = 1.3  # runs side by side are slower than a timed run alone


def stored_plan(folder: Path, asked: Design, within: bool) -> Design | None:
    """Return the design that the folder of a comparison holds, or None. Where looks are planned, another design is
    refused: a plan that follows the results has no error rate."""
    try:
        stored = read_study(folder)[0] if (folder / STUDY_FILE).exists() else None
    except InputError:  # a damaged plan is set aside and written anew
        return None
    if stored is None or not (stored.looks or within):
        return stored
    values: dict[str, tuple[Any, Any]] = {"within": (bool(stored.looks), within)}
    values |= {name: (getattr(stored, name), getattr(asked, name)) for name in ("rows", "margin", "question")}
    values |= {"seeds": (stored.seeds, asked.seeds[: len(stored.seeds)])}
    for name, (there, here) in values.items():
        if there != here:
            raise InputError(
                f"{name} must be as in the plan of '{folder}', which has {there}, got {here}; repeat the command of "
                "the plan, or choose another --out"
            )
    return stored


def with_planned_looks(study: Study, conduct: Conduct, runtime: Runtime, say: Callable[[str], None]) -> Study:
    """Return the study with the seeds that fit into its time, or with those of the plan that its folder holds, and
    with a look after every pair. Say what is planned."""
    planned = plan_study(study, conduct, runtime)
    design = planned.design
    stored = stored_plan(planned.folder, design, within=True)
    if stored is None:
        say("timing the first steps of each row, to plan how many seeds fit into the time")
        n_workers, of_one = share_machine(len(planned.jobs), conduct.workers, runtime)
        runs = [(row, planned.run_of(row, seed)) for row in design.rows for seed in design.seeds]
        of_a_run = seconds_of_runs({row: run.config for row, run in runs if not run.finished}, of_one)
        left = conduct.until - time.monotonic()
        seeds = seeds_that_fit(planned, of_a_run, n_workers, left)
        seconds = seconds_of_plan(planned, len(seeds), of_a_run, n_workers)
        how_long = f"at most about {in_time(seconds)} of the {in_time(left)} that are left, less where rows are decided"
    else:
        seeds, how_long = stored.seeds, f"as planned in '{planned.folder / STUDY_FILE}'"
    looks = tuple(range(FEWEST_SEEDS, len(seeds) + 1))
    first = f"the control first, with {CONTROL_PAIRS} seeds; " if design.control else ""
    say(f"plan: {first}at most {len(seeds)} seeds of each row, with a look after each pair from the second; {how_long}")
    if study.margin is None:
        say("without --margin, a row that makes no difference runs all its seeds, and is undecided at the end")
    scale = replace(study.on(conduct.scale), seeds=seeds)
    return replace(study, looks=looks, scales={**study.scales, conduct.scale: scale})


def seconds_of_runs(configs: Mapping[str, TrainConfig], runtime: Runtime) -> dict[str, float]:
    """Return how long one run of each row takes here, with its start."""
    seconds = {}
    for row, config in configs.items():
        began = time.monotonic()
        of_steps = timed(row, config, runtime).total_seconds
        starting = time.monotonic() - began - SECONDS  # Python, PyTorch and the corpus
        seconds[row] = of_steps + max(0.0, starting)
    return seconds


def seconds_of_plan(planned: Planned, n_seeds: int, of_a_run: Mapping[str, float], n_workers: int) -> float:
    """Return the time (1) of the unfinished runs of the first seeds. The control needs few seeds."""
    design, unfinished = planned.design, {job.path.name for job in planned.jobs if not job.finished}
    runs = [
        of_a_run[row]
        for (row, _), keys in planned.keys.items()
        for seed in design.seeds[: min(n_seeds, CONTROL_PAIRS) if row == design.control else n_seeds]
        if keys[seed] in unfinished  # whose rows were timed
    ]
    return seconds_side_by_side(runs, n_workers)


def seconds_side_by_side(runs: Sequence[float], n_workers: int) -> float:
    """Return (1) for runs of these times."""
    return ALLOWANCE * (sum(runs) / n_workers + max(runs, default=0.0) * (1 - 1 / n_workers))


def seeds_that_fit(planned: Planned, of_a_run: Mapping[str, float], n_workers: int, left: float) -> tuple[int, ...]:
    """Return the most seeds, the first ones, whose runs fit into the time that is left."""
    seeds = planned.design.seeds
    seconds = {n: seconds_of_plan(planned, n, of_a_run, n_workers) for n in range(FEWEST_SEEDS, len(seeds) + 1)}
    fitting = [n for n, of_plan in seconds.items() if of_plan <= left]
    if not fitting:
        needed = math.ceil(seconds[FEWEST_SEEDS])
        raise InputError(
            f"within must hold {FEWEST_SEEDS} seeds of every row, which take about {needed} s here, and "
            f"{max(0, math.floor(left))} s are left after timing; give --within {needed // 60 + 2}m, or fewer --n-steps"
        )
    return seeds[: fitting[-1]]


class UntilDecided:
    """Chooses the runs of a plan that undecided rows still need, while there is time for them."""

    def __init__(self, planned: Planned, until: float, say: Callable[[str], None]) -> None:
        self.planned, self.until, self.say = planned, until, say
        self.runs: dict[str, list[tuple[str, int]]] = {}  # rows and seeds by the key of their run
        for (row, _), keys in planned.keys.items():
            for seed, key in keys.items():
                self.runs.setdefault(key, []).append((row, seed))
        self.began: dict[Job, float] = {}
        self.longest = 0.0  # seconds of the longest run so far
        self.n_ended = -1
        self.told: set[str] = set()
        self.watch((), ())

    def watch(self, running: Sequence[Job], ended: Sequence[Job]) -> None:
        """Look at the rows whenever a run has ended."""
        now = time.monotonic()
        for job in running:
            self.began.setdefault(job, now)
        for job in ended:
            if job in self.began:
                self.longest = max(self.longest, now - self.began.pop(job))
        if len(ended) == self.n_ended:
            return
        self.n_ended = len(ended)
        rows = StudyRecord.read(self.planned.folder).sequential_rows()
        for job in ended:
            for run in self.runs[job.path.name] if not job.finished else ():
                rows.observe(*run, None, "failed")
        self.wanted = {run: place for place, run in enumerate(rows.wanted())}
        sensitive = self.planned.design.control is None or rows.gap.sensitive
        for row in rows.decisions if sensitive else ():
            if row not in self.told:
                self.told.add(row)
                verdict = rows.verdict(row, ALPHA)
                self.say(f"{row}: {verdict.outcome}. {verdict.reason}")

    def choose(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs that undecided rows need and that are expected to end in time, the most urgent first."""
        left = self.until - time.monotonic()
        urgency = {
            job: min((self.wanted[run] for run in self.runs[job.path.name] if run in self.wanted), default=math.inf)
            for job in jobs
            if left > (0.0 if job in self.began else self.longest)
        }
        return sorted((job for job, place in urgency.items() if place < math.inf), key=lambda job: urgency[job])
