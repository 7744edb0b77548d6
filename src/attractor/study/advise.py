"""`attractor advise` runs the smallest pilot that decides which attention to use on the user's own text.

    choose    takes the largest rung of the ladder on which all pairs of seeds fit into the budget
    run       trains baseline, control and rivals, one seed after the other, and closes each arm that is decided
    advise    prints the advice, and writes it to advice.json and advice.md beside the runs

Everything lies in one folder, so repeating the command continues the pilot, and prints the same advice once all runs
are done. The plan is written before the first run, and no result changes it: the error rate rests on that.
"""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from attractor.attention.presets import preset
from attractor.claims.pilot import CONTROL_SEEDS, Finding, Judgement, Pilot
from attractor.console import print_line
from attractor.errors import InputError
from attractor.files import write_json
from attractor.report.advice import Advice, Cost, PilotSetting, unit_of_losses, write_advice
from attractor.report.judged_study import with_pairs
from attractor.runs.configuration import config_differences, config_hash
from attractor.runs.run_folder import RunFolder
from attractor.study.ladder import FEWEST_PAIRS, LADDER, Rung, RunTimes, choose
from attractor.study.launch import Job, WatchJobs, launch, share_machine
from attractor.study.study import fitted
from attractor.study.watch import LiveView
from attractor.tasks import Task
from attractor.tasks.text import Text
from attractor.train.config import Runtime, TrainConfig
from attractor.train.hardware import resolve_device

DEFAULT_RIVALS = ("coupled-euler", "differential")
PILOT_FILE = "pilot.json"
MAX_EPOCHS = 4.0  # of training: with more epochs, a pilot measures how well mechanisms memorise

Launch = Callable[[Sequence[Job], WatchJobs], dict[str, str]]
Say = Callable[[str], None]


@dataclass(frozen=True)
class PilotRequest:
    """The settings of a pilot. `budget` is wall-clock time on this machine, in seconds, timing included."""

    corpus: str
    budget: float = 600.0
    margin: float = 0.01
    alpha: float = 0.05
    max_seeds: int = 8
    rivals: tuple[str, ...] = DEFAULT_RIVALS
    workers: int | None = None
    out: Path | None = None
    ladder: tuple[Rung, ...] = LADDER
    command: str = "attractor advise"
    column: str | None = None  # the column with the text, where the corpus is a table

    def __post_init__(self) -> None:
        if not 0 < self.budget < math.inf:
            raise InputError(f"budget must be a time above zero, got {self.budget:g} s; give 90s, 10m or 2h")
        if self.max_seeds < FEWEST_PAIRS:
            raise InputError(f"max_seeds must be at least {FEWEST_PAIRS}, got {self.max_seeds}; one has no interval")
        for name in self.rivals:
            preset(name)
        self.pilot(self.max_seeds)  # refuses wrong settings before anything is timed

    def pilot(self, n_max: int) -> Pilot:
        return Pilot(self.rivals, n_max, self.margin, self.alpha)

    @property
    def text(self) -> Text:
        return Text(self.corpus, self.column)

    def question(self, task: Task) -> dict[str, Any]:
        """Return the settings that identify a pilot. The budget is one of them, as it decides the rung."""
        ladder = {rung.name: rung.config.to_dict() for rung in self.ladder}
        names = ("corpus", "budget", "margin", "alpha", "max_seeds")
        return {name: getattr(self, name) for name in names} | {
            "rivals": sorted(self.rivals),
            "data": task.fingerprint,
            "ladder": config_hash(ladder),
        }


def advise(options: PilotRequest, runtime: Runtime, console: Console) -> Advice:
    """Carry out the pilot, or the rest of it. Print the advice and, alone on the last line, the path of its file."""
    began = time.monotonic()

    def say(text: str) -> None:
        print_line(console, text)

    resolve_device(runtime.device)
    task = options.text.build(options.ladder[0].config.seq_len, 0)
    say(task.describe())
    question = options.question(task)
    folder = options.out or Path("runs") / f"advise-{config_hash(question)[:8]}"
    n_workers, runtime = share_machine(options.max_seeds * (2 + len(options.rivals)), options.workers, runtime)
    plan = stored_plan(folder, question)
    if plan is None:
        say(f"timing the first steps on this machine, for a pilot within {options.budget:.0f} s")
        plan = {"question": question} | new_plan(options, task, runtime, n_workers, began)
    clock = Clock(folder, plan, options.budget, began)
    rung = next(rung for rung in options.ladder if rung.name == plan["rung"])
    pilot = options.pilot(plan["n_max"])
    trial = PilotRuns(folder, pilot, {label: config_on(rung, options.text, label) for label in pilot.arms})
    if not clock.spent_before:
        folder.mkdir(parents=True, exist_ok=True)
        clock.save()
    say(
        f"pilot: {rung.name}: {rung.config.n_steps:,} steps of {rung.config.tokens_per_step:,} tokens, at most "
        f"{pilot.n_max} pairs of seeds of {', '.join(pilot.arms)} (the control: {CONTROL_SEEDS})"
    )
    say(f"{n_workers} runs side by side, {runtime.threads} thread{'s' * (runtime.threads != 1)} each, in {folder}")
    say(
        f"at most about {plan['estimated_seconds']:.0f} s, less where the answer is clear early; "
        f"{plan['spent_seconds']:.0f} s of {options.budget:.0f} s are spent"
    )

    def in_processes(jobs: Sequence[Job], look: WatchJobs) -> dict[str, str]:
        with LiveView(console, jobs) as watch:

            def both(running: Sequence[Job], ended: Sequence[Job]) -> None:
                watch(running, ended)
                look(running, ended)

            return launch(jobs, n_workers, runtime, both)

    judgement = conduct(
        announcing(trial.judge, say, unit_of_losses(trial.config.model.vocab_size)),
        lambda judgement: clock.left > 0 and trial.carry_out(judgement, clock, in_processes),
    )
    if judgement.wanted and clock.left <= 0:
        say(f"the budget of {options.budget:.0f} s is spent: the answer is what is known by now")
    advice = advice_of(options, trial, judgement, task, plan)
    write_advice(advice, folder)
    console.print()
    for line in advice.words():
        say(line)
    console.print()
    say(f"to read again: {folder / 'advice.md'}")
    console.print(str(advice.path), markup=False, highlight=False, soft_wrap=True)
    return advice


# --- the plan ---------------------------------------------------------------------------------------------------------


def config_on(rung: Rung, text: Text, label: str) -> TrainConfig:
    return fitted(rung.config.replace(task=text, attention=label), {})


def stored_plan(folder: Path, question: dict[str, Any]) -> dict[str, Any] | None:
    """Return the plan that the folder holds, or None where the folder is empty. Refuse the plan of another pilot."""
    path = folder / PILOT_FILE
    if not path.exists():
        if folder.is_dir() and any(not child.name.startswith(".") for child in folder.iterdir()):
            raise InputError(f"out must be an empty folder or one of this command, and '{folder}' is neither")
        return None
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        there = dict(stored["question"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"'{path}' must hold the plan of a pilot, and is damaged; choose another --out") from error
    for name, values in config_differences({"there": there, "asked": question}).items():
        raise InputError(
            f"'{folder}' holds another pilot: {name} is {values.get('there')} there, {values.get('asked')} here; "
            "choose another --out, or change it back"
        )
    return stored


def new_plan(options: PilotRequest, task: Task, runtime: Runtime, n_workers: int, began: float) -> dict[str, Any]:
    """Decide what is fixed before the first run. Rungs that would read the corpus too often are left out."""
    assert task.n_tokens is not None
    ladder = [rung for rung in options.ladder if rung.tokens <= MAX_EPOCHS * task.n_tokens]
    if not ladder:
        needed = math.ceil(options.ladder[0].tokens / MAX_EPOCHS)
        raise InputError(
            f"corpus must hold at least {needed:,} training tokens, so that the shortest pilot reads it "
            f"{MAX_EPOCHS:g} times at most, and '{options.corpus}' holds {task.n_tokens:,}; give more text"
        )
    timing = RunTimes(runtime, lambda rung, label: config_on(rung, options.text, label))

    def left() -> float:
        return options.budget - (time.monotonic() - began)

    choice = choose(ladder, options.pilot(options.max_seeds), timing, n_workers, left)
    return {
        "rung": choice.rung.name,
        "next_rung": next((rung.name for rung in ladder[ladder.index(choice.rung) + 1 :]), ""),
        "n_max": choice.n_max,
        "estimated_seconds": choice.seconds,
        "pair_seconds": choice.pair_seconds,
        "spent_seconds": 0.0,
    }


class Clock:
    """The time that the pilot has taken. The plan keeps it, so that interrupted calls of the command count, too."""

    def __init__(self, folder: Path, plan: dict[str, Any], budget: float, began: float) -> None:
        self.path, self.plan, self.budget, self.began = folder / PILOT_FILE, plan, budget, began
        self.spent_before = float(plan["spent_seconds"])

    @property
    def left(self) -> float:
        return self.budget - self.spent_before - (time.monotonic() - self.began)

    def save(self) -> None:
        self.plan["spent_seconds"] = self.budget - self.left
        write_json(self.path, self.plan)


# --- carrying out -----------------------------------------------------------------------------------------------------


def conduct(judge: Callable[[], Judgement], carry_out: Callable[[Judgement], bool]) -> Judgement:
    """Carry out the wanted runs until none is wanted, or until `carry_out` returns False because the time is up."""
    judgement = judge()
    while judgement.wanted and carry_out(judgement):
        judgement = judge()
    return judge()


def announcing(judge: Callable[[], Judgement], say: Say, unit: str) -> Callable[[], Judgement]:
    """Return the same judge, which also prints each comparison as soon as it is decided.

    Nothing is said before the control shows that the setting can tell mechanisms apart.
    """
    known: set[tuple[str, str]] = set()

    def judge_and_announce() -> Judgement:
        judgement = judge()
        for finding in (*judgement.rivals, *judgement.duels) if judgement.sensitive else ():
            if not finding.open and (finding.of, finding.against) not in known:
                known.add((finding.of, finding.against))
                say(in_one_line(finding, unit))
        return judgement

    return judge_and_announce


def in_one_line(finding: Finding, unit: str) -> str:
    measured = "" if finding.interval is None else f": {with_pairs(finding.interval, unit)}"
    return f"closed: {finding.of} against {finding.against}: {finding.outcome}{measured}"


class _TurnOfEventsError(Exception):
    """Leave the launcher, since other runs than the running ones are wanted, or none. The running ones are saved."""


class PilotRuns:
    """The runs of a pilot, which carry out its plan and stop as soon as other runs are wanted."""

    def __init__(self, folder: Path, pilot: Pilot, configs: Mapping[str, TrainConfig]) -> None:
        self.folder, self.pilot = folder, pilot
        self.jobs = {
            (label, seed): Job(configs[label].replace(seed=seed), folder / f"{label}-seed{seed}")
            for seed in range(pilot.n_max)
            for label in pilot.arms
        }
        self.config = self.jobs[pilot.baseline, 0].config  # the mechanism is all in which the others differ
        self.run_of = {job: run for run, job in self.jobs.items()}
        self.failures: dict[str, str] = {}

    def summaries(self) -> dict[str, dict[int, dict[str, Any]]]:
        """Return the summaries of finished runs, by mechanism and seed."""
        by_label: dict[str, dict[int, dict[str, Any]]] = {}
        for (label, seed), job in self.jobs.items():
            summary = RunFolder.open(job.path).summary() if (job.path / "config.json").exists() else None
            if summary is not None:
                by_label.setdefault(label, {})[seed] = summary
        return by_label

    def losses(self) -> dict[str, dict[int, float]]:
        """Return the validation losses by mechanism and seed. A run that diverged wrote null, which becomes NaN."""
        return {
            label: {seed: math.nan if (loss := s["valid_loss"]) is None else loss for seed, s in by_seed.items()}
            for label, by_seed in self.summaries().items()
        }

    def judge(self) -> Judgement:
        return self.pilot.judge(self.losses(), frozenset(self.failures))

    def carry_out(self, judgement: Judgement, clock: Clock, launch: Launch) -> bool:
        """Carry out the wanted runs until they end or others are wanted. Return False once the time is up."""
        jobs = [self.jobs[run] for run in judgement.wanted]
        n_ended = 0

        def look(running: Sequence[Job], ended: Sequence[Job]) -> None:
            nonlocal n_ended
            if len(ended) > n_ended:
                n_ended = len(ended)
                clock.save()
                for job in ended:
                    if not job.finished:
                        self.failures.setdefault(self.run_of[job][0], job.failure(None).strip())
                under_way = {self.run_of[job] for job in jobs if job not in ended and not job.finished}
                if {*self.judge().wanted} != under_way:
                    raise _TurnOfEventsError
            if clock.left <= 0:
                raise _TurnOfEventsError

        try:
            failures = launch(jobs, look)
            self.failures |= {self.run_of[job][0]: failures[job.name].strip() for job in jobs if job.name in failures}
        except _TurnOfEventsError:
            pass
        finally:
            clock.save()
        return clock.left > 0


def advice_of(
    options: PilotRequest, trial: PilotRuns, judgement: Judgement, task: Task, plan: dict[str, Any]
) -> Advice:
    pilot, summaries = trial.pilot, trial.summaries()
    if pilot.baseline in trial.failures:
        why = trial.failures[pilot.baseline]
        raise InputError(f"the baseline '{pilot.baseline}' failed, so there is nothing to compare: {why}")
    if pilot.baseline not in summaries:
        raise InputError(f"budget must hold the first runs, and {options.budget:.0f} s did not; give a larger --budget")
    config = trial.config
    tokens = config.n_steps * config.tokens_per_step
    assert task.n_tokens is not None
    return Advice(
        pilot=pilot,
        judgement=judgement,
        losses=trial.losses(),
        costs={label: cost_of(list(by_seed.values())) for label, by_seed in summaries.items()},
        setting=PilotSetting(
            corpus=task.describe(),
            recipe=plan["rung"],
            next_recipe=plan["next_rung"],
            tokens=tokens,
            epochs=tokens / task.n_tokens,
            vocab_size=config.model.vocab_size,
            lr=config.lr,
            budget_seconds=options.budget,
            spent_seconds=plan["spent_seconds"],
            pair_seconds=plan["pair_seconds"],
        ),
        failures=trial.failures,
        command=options.command,
        path=trial.folder / "advice.json",
    )


def cost_of(summaries: Sequence[Mapping[str, Any]]) -> Cost:
    return Cost(
        n_parameters=summaries[0]["n_parameters"],
        tokens_per_second=median(s["tokens_per_second"] for s in summaries),
        peak_memory_bytes=max(s["peak_memory_bytes"] for s in summaries),
    )
