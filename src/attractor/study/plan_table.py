"""The table of a study's plan: its runs, what they cost, and what is left to do."""

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from attractor.console import console_table, with_prefix
from attractor.study.budget import flops_per_step, n_parameters
from attractor.study.launch import Job
from attractor.train.config import TrainConfig
from attractor.train.hardware import time_of_a_gpu


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
