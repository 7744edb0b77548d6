"""The further studies of `attractor compare --thorough`, since a loss at one rate and one size is no verdict.

    ladder       the baseline at half and at twice the steps, which tells how much time a lead is worth
    stability    each row at 2 and 4 times its learning rate
    size         each row at half the width, with half the heads; at twice where a row cannot be halved
    recall       each row on associative recall, where it is asked for

Each is a study with a folder of its own beside that of the comparison, and one pool holds the runs of all. So no row of
theirs counts among the ideas that the comparison tries. `report/legs.py` reads their results.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rich.console import Console

from attractor.console import in_time, print_line
from attractor.errors import InputError
from attractor.runs.quantity import ACCURACY
from attractor.runs.study_record import (
    HIGHER_RATES,
    LADDER,
    OTHER_SIZE,
    RECALL,
    RUNGS,
    further_name,
    refuse_foreign_folder,
)
from attractor.study.budget import flops_per_step
from attractor.study.launch import share_machine
from attractor.study.plan import Conduct, plan_study, write_plan
from attractor.study.run import run_study
from attractor.study.study import CONTROL, Axis, Study, longer
from attractor.study.within import seconds_of_runs, seconds_side_by_side
from attractor.tasks.recall import Recall
from attractor.train.config import Runtime, TrainConfig

FACTORS = (1, 2, 4)  # of a row's learning rate; its run at the rate itself is there already
SIZES = ("d_model", "d_ff", "n_heads", "n_kv_heads")


def further_studies(study: Study, scale: str, seed_of_rates: int, recall: bool) -> dict[str, Study]:
    """Return the further studies of a comparison by their leg. The runs at higher rates have one seed."""
    base, rates, rows = study.on(scale).base, study.on(scale).rates, study.rows.values
    rate_of = {row: rates.get(row, base.lr) for row in rows}
    rivals = Axis(study.rows.name, {row: of_row for row, of_row in rows.items() if row != CONTROL})

    studies: dict[str, Study] = {}

    def add(leg: str, about: str, of_scale: dict[str, Any], **changes: Any) -> None:
        changes |= {"name": further_name(study.name, leg), "title": f"{study.title}, {about}", "legs": ()}
        studies[leg] = replace(study, scales={scale: replace(study.on(scale), **of_scale)}, **changes)

    of_baseline = {"lr": rate_of[study.baseline]} | dict(rows[study.baseline])
    rungs = Axis("steps", {name: of_baseline | longer(base, by) for name, by in RUNGS.items()})
    alone: dict[str, Any] = {"control": False, "margin": None}
    of_ladder = alone | {"rows": rungs, "baseline": next(iter(RUNGS)), "budget": "free"}
    add(LADDER, "the baseline at half and at twice the steps", {"rates": {}}, **of_ladder)

    higher = {(row, f"{by}x"): {"lr": by * rate_of[row]} for row in rivals.labels for by in FACTORS}
    of_rates = alone | {"rows": rivals, "columns": Axis("rate", {f"{by}x": {} for by in FACTORS})}
    add(HIGHER_RATES, "at 2 and 4 times the learning rate", {"tuned": higher, "seeds": (seed_of_rates,)}, **of_rates)

    sized = of_other_size(study, scale)
    times = "half" if sized.model.d_model < base.model.d_model else "twice"
    add(OTHER_SIZE, f"at {times} the width", {"base": sized})
    if recall:
        of_recall = Axis(study.rows.name, {row: {"attention": of_row["attention"]} for row, of_row in rows.items()})
        of_task = {"base": base.replace(task=Recall(), seq_len=Recall().seq_len)}
        add(RECALL, "on associative recall", of_task, rows=of_recall, quantities=(ACCURACY,), margin=None)
    return studies


def of_other_size(study: Study, scale: str) -> TrainConfig:
    """Return the base at half the width, or at twice the width where a size is odd or some row refuses half of it."""
    of_scale = study.on(scale)
    sizes = {name: size for name in SIZES if (size := getattr(of_scale.base.model, name)) is not None}

    def scaled(factor: float) -> TrainConfig:
        base = of_scale.base.replace(**{name: round(factor * size) for name, size in sizes.items()})
        list(replace(study, scales={scale: replace(of_scale, base=base)}).configs(scale, 0))  # refuses what cannot be
        return base

    try:
        return scaled(2 if any(size % 2 for size in sizes.values()) else 0.5)
    except InputError:
        return scaled(2)


def say_costs(studies: Sequence[Study], conduct: Conduct, runtime: Runtime, console: Console) -> bool:
    """Say how long the unfinished runs of a comparison, the first, and of its further studies take here, if there are
    such runs.

    The first steps of each row are timed. Runs of other sizes and lengths take as much longer as they have more FLOPs.
    """
    say = partial(print_line, console)
    plans = [
        plan_study(study, conduct if study is studies[0] else beside(conduct, study), runtime) for study in studies
    ]
    unfinished = {job.path.name: job.config for plan in plans for job in plan.jobs if not job.finished}
    if not unfinished:
        return False
    say("timing the first steps of each row, to say how long all runs take")
    n_runs, design = len(unfinished), plans[0].design
    n_workers, of_one = share_machine(n_runs, conduct.workers, runtime)
    whole = {row: plans[0].run_of(row, design.seeds[0]).config for row in design.rows}
    seconds_of = {row: seconds / flops_of(whole[row]) for row, seconds in seconds_of_runs(whole, of_one).items()}
    seconds = {
        plan.design.title: [
            seconds_of.get(row, seconds_of[design.baseline]) * flops_of(config)  # rungs are runs of the baseline
            for (row, _), keys in plan.keys.items()
            for key in keys.values()
            if (config := unfinished.pop(key, None)) is not None  # a run of several studies counts once
        ]
        for plan in plans
    }
    at_most = seconds_side_by_side([x for of_plan in seconds.values() for x in of_plan], n_workers)
    say(f"plan: {n_runs} runs, {n_workers} at once, take at most about {in_time(at_most)} here")
    for title, of_plan in seconds.items():
        if of_plan:
            say(f"  {len(of_plan)} runs, {in_time(seconds_side_by_side(of_plan, n_workers))}: {title}")
    return True


def run_with_legs(
    study: Study, legs: Sequence[Study], conduct: Conduct, runtime: Runtime, console: Console
) -> dict[str, str]:
    """Carry out a comparison and its further studies, and return the failures by name.

    All plans are written before the first run, so that the report never shows those of an earlier comparison.
    """
    refuse_foreign_folder(conduct.folder_of(study))
    for leg in legs:
        for line in write_plan(plan_study(leg, beside(conduct, leg), runtime)):
            print_line(console, line)
    failures = run_study(study, conduct, runtime, console)[1]
    for leg in legs:
        failed = run_study(leg, beside(conduct, leg), runtime, console)[1]
        failures |= {f"{name}, {leg.name}": why for name, why in failed.items()}
    return failures


def beside(conduct: Conduct, study: Study) -> Conduct:
    """Return how a further study of a comparison is carried out: in a folder beside the comparison's."""
    return replace(conduct, folder=conduct.root / study.name)


def flops_of(config: TrainConfig) -> float:
    return config.n_steps * flops_per_step(config)
