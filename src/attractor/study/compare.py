"""`attractor compare` is a study of one column of attention mechanisms, in settings of the user's choice."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from attractor.attention import Whole
from attractor.attention.named import Mechanism, label_of, mechanism
from attractor.console import print_line, seconds_of
from attractor.errors import InputError, require, require_known
from attractor.runs.configuration import config_hash
from attractor.runs.quantity import Quantity
from attractor.runs.study_record import RATES, StudyRecord, further_name
from attractor.study.budget import costs_in_words
from attractor.study.plan import Conduct, plan_study
from attractor.study.run import run_study
from attractor.study.study import CONTROL, Axis, Scale, Study, axis, require_seeds
from attractor.study.thorough import beside, further_studies, run_with_legs, say_costs
from attractor.study.within import stored_plan, with_planned_looks
from attractor.tasks import Task
from attractor.train.compiled import SAID
from attractor.train.config import Runtime, TrainConfig, data_of
from attractor.train.fit import FreeMemory

DEFAULT_PRESETS = ("standard", "coupled-euler", "differential", "gated")
# What may be equal between rows, and what a record calls that budget.
MATCHES = {"tokens": "tokens", "parameters": "parameters", "flops": "flops", "seconds": "wall"}
SCALE = "own"
PILOT_SEED = 1000  # decides the rate of each row, and judges none
SEEDS, MOST_SEEDS = 4, 8  # of a row, by default: without looks, and with them
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
    if study.on(SCALE).base.compile:
        print_line(console, SAID)
    for config in configs.values():
        if isinstance(whole := config.model.mechanisms[0], Whole):
            print_line(console, f"{whole.lacks}; all rows have positions {config.model.positions}")


@dataclass(frozen=True)
class Asked:
    """What a comparison asks: which mechanisms, over which seeds, with which smallest difference that matters."""

    presets: Sequence[Any]
    seeds: Sequence[int] | None = None
    margin: float | None = None
    thorough: bool = False  # with further studies, so that one rate and one size alone give no verdict
    recall: bool = False  # a thorough one: on associative recall, too
    within: str | None = None  # a time, after which it ends
    rates: Sequence[float] | None = None  # learning rates, of which a pilot chooses one for each row
    match: str = "tokens"

    def __post_init__(self) -> None:
        require_seeds(self.chosen_seeds)
        require_known("match", self.match, MATCHES)
        at_equal_tokens = self.match in ("tokens", "parameters")
        rule, why = "tokens or parameters with --thorough", "a lead is measured at equal tokens and at equal seconds"
        require(not self.thorough or at_equal_tokens, "match", rule, self.match, why)
        require(self.thorough or not self.recall, "recall", "left out without --thorough", True, "give both")
        if self.rates is not None:
            few, lowest = len(set(self.rates)), min(self.rates, default=0)
            require(few > 2, "lr", "one, or at least three different ones", few, "the best must lie between two others")
            require(lowest > 0, "lr", "positive", lowest)
            require(self.within is None, "lr", "one with --within", list(self.rates), "try several first")
        if self.within is not None:
            require(self.seconds > 0, "within", "a time above zero", self.within, "as 30m")
            n_seeds = len(self.chosen_seeds)
            require(n_seeds > 1, "seeds", "at least two with --within", n_seeds, "one pair has no interval")
            require(not self.thorough, "thorough", "left out with --within", True, "its further studies look once")

    @property
    def chosen_seeds(self) -> tuple[int, ...]:
        return tuple(range(SEEDS if self.within is None else MOST_SEEDS) if self.seeds is None else self.seeds)

    @property
    def seconds(self) -> float:
        return math.inf if self.within is None else seconds_of(self.within, "within")


def compare_mechanisms(
    asked: Asked,
    config_of: Callable[[str | Mechanism, int], TrainConfig],
    runtime: Runtime,
    console: Console,
    out: Path | None,
    workers: int | None,
    command: str,
) -> tuple[StudyRecord, dict[str, str], Path]:
    """Carry out the comparison; return its record, the failures by name, and its folder.

    `config_of` gives the configuration of a mechanism and a seed.
    """
    began, seeds = time.monotonic(), asked.chosen_seeds
    rows = labelled(asked.presets)
    # A layer that joined whole takes no rotations, so its positions are those of all rows.
    leading = next((chosen for chosen in rows.values() if isinstance(chosen, Whole)), next(iter(rows.values())))
    base = config_of(leading, seeds[0])
    further: dict[str, Any] = {}
    if asked.within is not None:
        further |= {"within": asked.within, "margin": asked.margin, "seeds": seeds}
    further |= {} if asked.match == "tokens" else {"match": MATCHES[asked.match]}
    further |= {} if asked.rates is None else {"rates": sorted(asked.rates)}
    default = default_folder(base, (*rows, "thorough") if asked.thorough else tuple(rows), **further)
    task, folder = data_of(base), out or default
    study = comparison(folder.name, tuple(rows.values()), seeds, base, task, asked.margin)
    study = replace(study, budget=MATCHES[asked.match])
    conduct = Conduct(
        scale=SCALE,
        root=out or folder.parent,
        folder=folder,
        workers=workers,
        command=command,
        until=began + asked.seconds,
    )
    print_costs(study, task, runtime, console)
    if asked.within is None:
        stored_plan(folder, study.design(SCALE, seeds, command), within=False)
    else:
        study = with_planned_looks(study, conduct, runtime, partial(print_line, console))
    legs = legs_of(study, asked)
    study, said_costs = replace(study, legs=tuple(legs)), not legs
    if asked.rates is not None:
        pilot = pilot_of_rates(study, sorted(set(asked.rates)))
        if not said_costs and not all(job.finished for job in plan_study(pilot, beside(conduct, pilot), runtime).jobs):
            said_costs = say_costs((study, pilot, *legs.values()), conduct, runtime, console)
        chosen = best_rates(pilot, beside(conduct, pilot), runtime, console)
        study = replace(study, scales={SCALE: replace(study.on(SCALE), rates=chosen)})
        legs = legs_of(study, asked)
    if not said_costs:
        say_costs((study, *legs.values()), conduct, runtime, console)
    failures = run_with_legs(study, tuple(legs.values()), conduct, runtime, console)
    return StudyRecord.read(folder), failures, folder


def legs_of(study: Study, asked: Asked) -> dict[str, Study]:
    """Return the further studies of a thorough comparison. The pilot has most of the runs at higher rates."""
    if not asked.thorough:
        return {}
    seed = asked.chosen_seeds[0] if asked.rates is None else PILOT_SEED
    return further_studies(study, SCALE, seed, asked.recall)


def pilot_of_rates(study: Study, rates: Sequence[float]) -> Study:
    """Return the pilot of a comparison, in which each row has each learning rate, with a seed that judges nothing."""
    return replace(
        study,
        name=further_name(study.name, RATES),
        title=f"{study.title}, a pilot of learning rates",
        question=f"Which learning rate is best for each row, of {', '.join(f'{rate:g}' for rate in rates)}?",
        columns=axis("lr", *rates),
        scales={SCALE: replace(study.on(SCALE), seeds=(PILOT_SEED,))},
        margin=None,
        legs=(),
    )


def best_rates(pilot: Study, conduct: Conduct, runtime: Runtime, console: Console) -> dict[str, float]:
    """Carry out the pilot, and return the learning rate of each row with the lowest loss.

    A row whose best rate is the lowest or the highest is refused, since a better one may lie beyond.
    """
    rates = [changes["lr"] for changes in pilot.axes(SCALE)[1].values.values()]
    record, failures = run_study(pilot, conduct, runtime, console)
    if failures:
        raise InputError(f"the pilot of learning rates must finish, and {len(failures)} of its runs failed, see above")
    losses = {(cell.row, cell.column): cell.losses.get(PILOT_SEED, math.inf) for cell in record.cells}
    finite = {place: loss if math.isfinite(loss) else math.inf for place, loss in losses.items()}
    best = {row: min(rates, key=lambda rate: finite[row, f"{rate}"]) for row in record.design.rows}
    print_line(console, f"best rates (pilot, seed {PILOT_SEED}): {', '.join(f'{r} {x:g}' for r, x in best.items())}")
    at_edge = [row for row, rate in best.items() if rate in (rates[0], rates[-1]) and row != CONTROL]
    if at_edge:
        further = [rates[0] / 2, *rates, 2 * rates[-1]]
        raise InputError(
            f"lr must reach beyond the best one of each row, and that of {' and '.join(at_edge)} is at the edge; "
            f"give --lr {' '.join(f'{rate:g}' for rate in further)}, which runs the new ones alone"
        )
    return best


def labelled(presets: Sequence[Any]) -> dict[str, str | Mechanism]:
    """Return the mechanisms by the names of their rows; the files that they name are executed."""
    named = [mechanism(preset) for preset in presets]
    labels = [label_of(chosen) for chosen in named]
    require(len(set(labels)) == len(labels), "mechanisms", "without repetition", " ".join(labels))
    return dict(zip(labels, named, strict=True))


def comparison(
    name: str,
    presets: Sequence[Any],
    seeds: tuple[int, ...],
    base: TrainConfig,
    task: Task,
    margin: float | None = None,
) -> Study:
    """Return the study of these mechanisms. The first is the baseline, and the control is always among the rows."""
    mechanisms = labelled(presets)
    require(len(mechanisms) >= 1, "mechanisms", "at least one name", "none")
    baseline = next(iter(mechanisms))
    require(baseline != CONTROL, "mechanisms", "led by the baseline, which the control cannot be", CONTROL)
    require(margin is None or margin > 0, "margin", "above 0", margin)
    # The base already has the fields that the task demands, such as a vocabulary, and may have larger values.
    demanded = {field: getattr(base.model, field) for field in task.demands}
    family = "" if base.model.family == "transformer" else f" in models of the family {base.model.family}"
    data = task.name.rpartition("/")[2].removeprefix("text:")
    rows = {row: {"attention": chosen} | demanded for row, chosen in mechanisms.items()}
    rows.setdefault(CONTROL, {"attention": CONTROL} | demanded)
    return Study(
        title=f"Attention mechanisms on {data}{family}",
        question=f"Which mechanism does best in {base.n_steps:,} steps of {base.tokens_per_step:,} tokens each?",
        source="attractor compare",
        rows=Axis("attention", rows),
        baseline=baseline,
        scales={SCALE: Scale(base, seeds)},
        quantities=(headline(task.metric), SPEED, MEMORY),
        margin=margin,
        name=name,
    )


def headline(metric: str) -> Quantity:
    """Return the metric of a task as a quantity: of all metrics, only perplexity is better where it is lower."""
    return Quantity(metric.replace("_", " "), "metric.value", "lower" if metric == "perplexity" else "higher")
