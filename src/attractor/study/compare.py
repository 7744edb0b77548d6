"""`attractor compare` is a study of one column of attention mechanisms, in settings of the user's choice."""

from pathlib import Path
from typing import Any

from rich.console import Console

from attractor.console import print_line
from attractor.errors import require
from attractor.runs.configuration import config_hash
from attractor.runs.quantity import LOSS_OF_VALIDATION, Quantity
from attractor.runs.study_record import StudyRecord
from attractor.study.budget import costs_in_words
from attractor.study.study import CONTROL, Axis, Scale, Study, longer
from attractor.tasks import Task
from attractor.train.config import Runtime, TrainConfig
from attractor.train.fit import FreeMemory
from attractor.verdict.speedup import Speedup, effective_speedup

DEFAULT_PRESETS = ("standard", "coupled-euler", "differential", "gated")
SCALE = "own"
SEEDS, MOST_SEEDS = 4, 8  # of a row, by default: without looks, and with them
BUDGETS_OF_LADDER = (0.5, 2.0)  # steps of the further runs of the baseline, in units of the comparison's
SPEED = Quantity("tok/s", "tokens_per_second")
MEMORY = Quantity("memory", "peak_memory_bytes")


def default_folder(base: TrainConfig, presets: tuple[str, ...], **further: Any) -> Path:
    """Return the folder of a comparison, which is the same with more seeds, so that these continue it. Each plan of
    looks has a folder of its own, by the `further` settings that it rests on."""
    what = base.to_dict() | {"presets": presets, "seed": None} | further
    return Path("runs") / f"compare-{config_hash(what)[:8]}"


def print_costs(study: Study, task: Task, runtime: Runtime, console: Console) -> None:
    """Show the data and what each row costs; refuse rows that cannot fit into the memory before anything is shown."""
    configs = {row: config for (row, _), config in study.configs(SCALE, study.on(SCALE).base.seed)}
    FreeMemory.of(runtime).refuse_any(list(configs.values()))
    print_line(console, task.describe())
    for row, config in configs.items():
        print_line(console, f"{row:<{max(map(len, configs))}}  {costs_in_words(config)}")


def comparison(
    name: str,
    presets: tuple[str, ...],
    seeds: tuple[int, ...],
    base: TrainConfig,
    task: Task,
    margin: float | None = None,
    thorough: bool = False,
) -> Study:
    """Return the study of these mechanisms. The first is the baseline, and the control is always among the rows.

    A thorough one also has the baseline at half and at twice the steps, with complete schedules: a ladder that tells
    how much time a lead is worth.
    """
    require(len(presets) >= 1, "presets", "at least one name", presets)
    require(presets[0] != CONTROL, "presets", "led by the baseline, which the control cannot be", CONTROL)
    require(margin is None or margin > 0, "margin", "above 0", margin)
    require(len(set(presets)) == len(presets), "presets", "without repetition", " ".join(presets))
    # The base already has the fields that the task demands, such as a vocabulary, and may have larger values.
    demanded = {field: getattr(base.model, field) for field in task.demands}
    family = "" if base.model.family == "transformer" else f" in models of the family {base.model.family}"
    data = task.name.rpartition("/")[2].removeprefix("text:")
    rows = {row: {"attention": row} | demanded for row in dict.fromkeys((*presets, CONTROL))}
    ladder = {name_on_ladder(presets[0], by): rows[presets[0]] | longer(base, by) for by in BUDGETS_OF_LADDER}
    return Study(
        title=f"Attention mechanisms on {data}{family}",
        question=f"Which mechanism does best in {base.n_steps:,} steps of {base.tokens_per_step:,} tokens each?",
        source="attractor compare",
        rows=Axis("attention", rows | ladder if thorough else rows),
        baseline=presets[0],
        budget="free" if thorough else "tokens",
        scales={SCALE: Scale(base, seeds)},
        quantities=(headline(task.metric), SPEED, MEMORY),
        margin=margin,
        name=name,
    )


def name_on_ladder(baseline: str, factor: float) -> str:
    return f"{baseline}, {factor:g}x the steps"


def speedups(record: StudyRecord) -> dict[str, Speedup]:
    """Return the effective speedup of each row of a thorough comparison for which there are runs."""
    baseline = record.design.baseline
    losses = {cell.row: cell.by_seed(LOSS_OF_VALIDATION) for cell in record.cells}
    speeds = {cell.row: cell.by_seed(SPEED) for cell in record.cells}
    places = {factor: name_on_ladder(baseline, factor) for factor in BUDGETS_OF_LADDER} | {1.0: baseline}
    if not all(losses.get(row) for row in places.values()):
        return {}
    ladder = {factor: losses[row] for factor, row in places.items()}
    measured = {}
    for row in losses.keys() - {*places.values(), record.design.control}:
        common = speeds[row].keys() & speeds[baseline].keys()
        ratios = [speeds[row][seed] / speeds[baseline][seed] for seed in sorted(common)]
        if losses[row]:
            measured[row] = effective_speedup(ladder, losses[row], ratios or 1.0)
    return {row: measured[row] for row in record.design.rows if row in measured}


def headline(metric: str) -> Quantity:
    """Return the metric of a task as a quantity: of all metrics, only perplexity is better where it is lower."""
    return Quantity(metric.replace("_", " "), "metric.value", "lower" if metric == "perplexity" else "higher")
