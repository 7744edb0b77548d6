"""`compare`: mechanisms x seeds under one budget, paired by seed, from configs to table, verdict and page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from attractor.attention.stage import require
from attractor.errors import InputError
from attractor.evidence.run import RunFolder
from attractor.report.comparison import Comparison
from attractor.report.page import write_page
from attractor.report.record import write_record
from attractor.report.table import caption, rich_table
from attractor.study.launch import Job, launch, share_machine
from attractor.study.watch import Watch
from attractor.train.config import Runtime, TrainConfig
from attractor.train.console import print_line
from attractor.train.hardware import resolve_device
from attractor.train.plan import plan_run

CONTROL = "uniform"
DEFAULT_PRESETS = ("standard", "coupled-euler", "differential", "gated")


@dataclass(frozen=True)
class Plan:
    """Which runs make up the comparison: the first preset is the baseline, and the control is always among them."""

    base: TrainConfig
    presets: tuple[str, ...]
    seeds: tuple[int, ...]
    root: Path

    def __post_init__(self) -> None:
        require(len(self.presets) >= 1, "presets", "at least one name", self.presets)
        require(self.presets[0] != CONTROL, "presets", "led by the baseline, which the control cannot be", CONTROL)
        for field, values in (("presets", self.presets), ("seeds", self.seeds)):
            require(len(set(values)) == len(values), field, "without repetition", " ".join(map(str, values)))
        require(len(self.seeds) >= 1, "seeds", "at least one", self.seeds)

    @property
    def labels(self) -> tuple[str, ...]:
        return self.presets if CONTROL in self.presets else (*self.presets, CONTROL)

    def called(self, preset: str) -> str:
        """What a run of it calls itself: of a family other than the Transformer, that family, too."""
        return self.base.replace(attention=preset).label

    def jobs(self) -> list[Job]:
        """All mechanisms of one seed before the next seed, so that whole pairs are there as early as possible."""
        return [
            Job(self.base.replace(attention=label, seed=seed), self.root / f"{label}-seed{seed}")
            for seed in self.seeds
            for label in self.labels
        ]


def compare(
    plan: Plan, workers: int | None, runtime: Runtime, console: Console, command: str
) -> tuple[Path, dict[str, str]]:
    """Run what is not finished, print table and verdict; returns the path of the page, and what failed."""
    jobs = plan.jobs()
    resolve_device(runtime.device)
    n_workers, runtime = share_machine(len(jobs), workers, runtime)
    task = plan.base.build_task()
    identities = [job.config.identity(task) for job in jobs]
    for job, identity in zip(jobs, identities, strict=True):
        RunFolder.create(job.path, identity)  # another configuration in any of the folders is refused before all runs
    plans = [plan_run(plan.base.replace(attention=label), task) for label in plan.labels]

    def say(text: str) -> None:
        print_line(console, text)

    say(f"{len(plan.labels)} mechanisms x {len(plan.seeds)} seeds, {plans[0].tokens:,} tokens each, in {plan.root}")
    say(task.describe())
    width = max(len(each.label) for each in plans)
    for each in plans:
        say(f"{each.label:<{width}}  {each.costs}")
    say(f"{n_workers} runs side by side, {runtime.threads} threads each")
    n_before = sum(job.finished for job in jobs)
    if n_before:
        say(f"{n_before} of {len(jobs)} runs were finished before; remove '{plan.root}' to run them anew")
    with Watch(console, jobs) as watch:
        failures = launch(jobs, n_workers, runtime, watch)
    for name, why in failures.items():
        say(f"failed: {name}: {why.strip()}")
    runs = [RunFolder.open(job.path) for job in _by_label(plan, jobs)]
    if not any(run.finished for run in runs):
        raise InputError("no run finished, so there is nothing to compare; mend what the lines above name")
    comparison = Comparison.read(runs, plan.called(plan.presets[0]), control=plan.called(CONTROL))
    page = plan.root / "report.html"
    write_page(comparison, page, command)
    write_record(comparison, plan.root / "comparison.json", command)
    console.print()
    console.print(rich_table(comparison))
    for line in caption(comparison):
        say(line)
    console.print()
    for line in comparison.verdict():
        say(line)
    console.print()
    return page, failures


def _by_label(plan: Plan, jobs: Sequence[Job]) -> list[Job]:
    """In the order asked for, not the order of running."""
    return [job for preset in plan.labels for job in jobs if job.config.label == plan.called(preset)]
