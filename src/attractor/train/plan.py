"""The plan of a run, made before the run starts: parameters, FLOPs, tokens, optimizer groups, measured estimates.

In each step of a run on N processes, each process sends (and receives) these numbers in fp32, by ring collectives:

    ddp     the sum of the gradients, once a step            2 (N - 1) / N gradients                        (1)
    fsdp    for every micro-batch, each layer twice (gathered for the forward and for the backward pass), the
            parameters outside layers once (FSDP2 keeps them between the passes), and the sums of the gradients
            (N - 1) / N (2 layers + rest + gradients)                                                       (2)
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from rich.console import Console
from rich.text import Text

from attractor.console import console_table, in_bytes, in_time, with_prefix
from attractor.errors import require
from attractor.models import SIZES
from attractor.models.config import ModelConfig
from attractor.models.language_model import LanguageModel
from attractor.runs.configuration import config_differences
from attractor.tasks import Task
from attractor.tasks.text import TextTask
from attractor.train.calibrate import RunCosts
from attractor.train.config import TrainConfig
from attractor.train.distributed import World
from attractor.train.memory import PlannedMemory, ProcessLayout, layer_bytes, planned_memory
from attractor.train.muon import refuse_sharding
from attractor.train.optimizer import optimizer_groups
from attractor.train.parts import (
    BY_PARAMETERS,
    PARTS,
    counted_by_parameters,
    parameters_by_part,
    training_flops,
    without_data,
)

NAME_WIDTH = 27
LARGE_VALIDATION = 0.5  # from this share of the training tokens on, a plan mentions validation


@dataclass(frozen=True)
class PlannedGroup:
    """A group of the optimizer. A name such as `blocks.*.mlp.up.weight` stands for one tensor in each block."""

    name: str
    weight_decay: float
    n_parameters: int
    tensors: tuple[str, ...]


@dataclass(frozen=True)
class DistributedPlan:
    """What one of several processes computes and sends in a step, and the memory that it needs."""

    devices: int
    parallel: str
    sequences_per_step: int  # of this process, over all micro-batches
    sequences_per_micro_batch: int
    memory: PlannedMemory
    bytes_sent_per_step: int


@dataclass(frozen=True)
class RunPlan:
    label: str
    config: dict[str, Any]  # the mechanism is spelled out
    parameters: dict[str, int]  # by part
    forward_flops: dict[str, float]  # per token, by part
    backward_flops: dict[str, float]
    n_steps: int
    tokens_per_step: int
    epochs: float | None  # None: the task draws data without end
    groups: tuple[PlannedGroup, ...]
    layer_equivalents: float  # cost of what grows with the square of the length, in layers over all positions
    n_evaluations: int = 0
    validated_tokens: int | None = None  # per evaluation; None: the task is not text
    estimate: RunCosts | None = None
    failure: str | None = None  # why an estimate could not be measured
    memory: PlannedMemory | None = None
    distributed: DistributedPlan | None = None  # None: a run on one process
    vocabulary: str | None = None  # why the model has other parameters than the size of its shape
    gpu_time: str | None = None  # of a GPU that is not here
    counted_by_parameters: bool = False  # what torch cannot count

    @property
    def n_parameters(self) -> int:
        return sum(self.parameters.values())

    @property
    def flops_per_token(self) -> float:
        return sum(self.forward_flops.values()) + sum(self.backward_flops.values())

    @property
    def tokens(self) -> int:
        return self.n_steps * self.tokens_per_step

    @property
    def in_short(self) -> str:
        """The plan in one line, for the console."""
        epochs = "" if self.epochs is None else f", {self.epochs:.2g} epochs"
        memory = "" if self.memory is None else f"; at least {in_bytes(self.memory.total)}"
        validated = self.n_evaluations * (self.validated_tokens or 0)
        evaluations = ""
        if validated > LARGE_VALIDATION * self.tokens:
            evaluations = (
                f"; {self.n_evaluations:,} evaluation{'s' * (self.n_evaluations > 1)} of "
                f"{with_prefix(self.validated_tokens or 0)} tokens, "
                f"{validated / self.tokens:.0%} of the training tokens (--eval-batches, --eval-every)"
            )
        costs = f"{self.n_parameters:,} parameters, {with_prefix(self.flops_per_token)} FLOPs a token"
        steps = f"{self.n_steps:,} steps of {self.tokens_per_step:,} tokens"
        return f"plan: {costs}; {steps}{epochs}{evaluations}{memory}"

    def to_dict(self) -> dict[str, Any]:
        totals = {"n_parameters": self.n_parameters, "flops_per_token": self.flops_per_token, "tokens": self.tokens}
        return asdict(self) | totals


def plan_run(config: TrainConfig, task: Task) -> RunPlan:
    """Return the plan of a run without its memory and estimates, which take time to find."""
    model = without_data(config.model)
    forward, backward = training_flops(config.model, config.seq_len)
    stored = config.to_dict()
    del stored["label"]
    groups = [
        PlannedGroup(
            name=group["name"],
            weight_decay=group["weight_decay"],
            n_parameters=sum(parameter.numel() for _, parameter in group["params"]),
            tensors=tuple(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name, _ in group["params"])),
        )
        for group in optimizer_groups(model, config)
    ]
    stays = config.model.steps_of_batch
    validated = None
    if isinstance(task, TextTask):
        validated = task.n_validated(config.micro_batch_size, config.eval_batches)
    return RunPlan(
        label=config.label,
        config=stored | {"model": stored["model"] | {"attention": config.model.attention_config.to_dict()}},
        parameters=parameters_by_part(model),
        forward_flops=forward,
        backward_flops=backward,
        n_steps=config.n_steps,
        tokens_per_step=config.tokens_per_step,
        epochs=None if task.n_tokens is None else config.n_steps * config.tokens_per_step / (stays * task.n_tokens),
        groups=tuple(groups),
        layer_equivalents=config.model.layer_equivalents,
        n_evaluations=-(-config.n_steps // config.eval_every),
        validated_tokens=validated,
        vocabulary=other_vocabulary(config.model),
        counted_by_parameters=counted_by_parameters(config.model, config.seq_len),
    )


def other_vocabulary(model: ModelConfig[LanguageModel]) -> str | None:
    """Say how many parameters a named size of this shape has with its own vocabulary, where that is another one."""
    shape = [f.name for f in fields(model) if f.type is int and f.name not in ("vocab_size", "max_seq_len")]
    for name, size in SIZES.items():
        if type(size) is type(model) and all(getattr(size, field) == getattr(model, field) for field in shape):
            if size.vocab_size == model.vocab_size:
                return None
            here, there = (
                with_prefix(sum(parameters_by_part(without_data(of)).values()))
                for of in (model, model.replace(vocab_size=size.vocab_size))
            )
            return (
                f"{here} parameters, not the {there} of size {name}, whose vocabulary has {size.vocab_size:,} tokens: "
                f"that of these data has {model.vocab_size:,}"
            )
    return None


def plan_processes(config: TrainConfig, devices: int, parallel: str, device_type: str) -> DistributedPlan:
    """Return the plan of one of several processes. Refuses what the run would refuse, in the same words."""
    require(devices >= 1, "devices", "at least 1", devices)
    World(size=devices).refuse_uneven(config.batch_size, config.accumulation)
    processes = ProcessLayout(devices, parallel)
    if processes.sharded and config.optimizer == "muon":
        refuse_sharding()
    layers, rest = layer_bytes(config)
    whole = sum(layers) + rest
    moved = 2 * whole  # (1)
    if processes.sharded:
        moved = config.accumulation * (2 * sum(layers) + rest + whole)  # (2)
    return DistributedPlan(
        devices=devices,
        parallel=parallel,
        sequences_per_step=config.batch_size // devices,
        sequences_per_micro_batch=config.micro_batch_size // devices,
        memory=planned_memory(config, processes, device_type),
        bytes_sent_per_step=moved * (devices - 1) // devices,
    )


def differences(plans: Sequence[RunPlan]) -> dict[str, dict[str, Any]]:
    return config_differences({plan.label: plan.config for plan in plans})


def print_plans(console: Console, plans: Sequence[RunPlan]) -> None:
    """Print a column for each plan, as many side by side as the console is wide, then the groups and differences."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False)

    width = max(13, *(len(plan.label) + 2 for plan in plans))
    n_fitting = max(1, (console.width - NAME_WIDTH) // width)
    for first in range(0, len(plans), n_fitting):
        _print_costs(console, plans[first : first + n_fitting])
    keys = "(seq_len + 1) / 2 keys on average" if plans[0].config["model"]["causal"] else "seq_len keys"
    if any(plan.config["model"]["attention"].get("score", {}).get("window") is not None for plan in plans):
        keys += ", at most `window` in a layer with a window"
    say(f"A backward pass costs two forward passes; a token attends to {keys}.")
    for plan in plans:
        if plan.vocabulary is not None:
            say(f"{plan.label}: {plan.vocabulary}")
        if plan.counted_by_parameters:
            say(f"{plan.label}: {BY_PARAMETERS}")
        if plan.gpu_time is not None:
            counted = "no GPU is here to measure on, so memory is counted as on a CPU"
            say(f"{plan.label}: {plan.gpu_time}, by its FLOPs; {counted}")
        if plan.failure is not None:
            say(f"{plan.label}: no estimate, since its first steps failed: {plan.failure}")
    labels_of_group: dict[PlannedGroup, list[str]] = {}
    for plan in plans:
        for group in plan.groups:
            labels_of_group.setdefault(group, []).append(plan.label)
    for group, labels in labels_of_group.items():
        of = "" if len(plans) == 1 else f" ({', '.join(labels)})"
        tensors = ", ".join(group.tensors)
        say(f"{group.name}{of}: weight decay {group.weight_decay:g}, {group.n_parameters:,} in {tensors}")
    differing = differences(plans)
    if differing:
        say("What differs:")
    for field, values in differing.items():
        labels_of_value: dict[str, list[str]] = {}
        for label, value in values.items():
            labels_of_value.setdefault(str(value), []).append(label)
        listed = ", ".join(f"{value} ({', '.join(labels)})" for value, labels in labels_of_value.items())
        say(f"  {field.removeprefix('model.attention.')}: {listed}")


def _print_costs(console: Console, plans: Sequence[RunPlan]) -> None:
    table = console_table(["", *(plan.label for plan in plans)], padding=(0, 2, 0, 0), no_wrap=True)

    def row(name: str, cell: Callable[[RunPlan], str | None]) -> None:
        cells = [cell(plan) for plan in plans]
        if any(cells):
            table.add_row(Text(name), *(Text(text or "·") for text in cells))

    def by_part(title: str, numbers: Callable[[RunPlan], dict[str, Any]], shown: Callable[[Any], str]) -> None:
        row(title, lambda plan: shown(sum(numbers(plan).values())))
        for part in PARTS:
            row(f"  {part}", lambda plan, part=part: shown(n) if (n := numbers(plan).get(part, 0)) else None)  # type: ignore[misc]
        table.add_section()

    def distributed(name: str, cell: Callable[[DistributedPlan], str]) -> None:
        row(name, lambda plan: cell(plan.distributed) if plan.distributed else None)

    def estimated(name: str, cell: Callable[[RunCosts], str]) -> None:
        row(name, lambda plan: cell(plan.estimate) if plan.estimate else None)

    by_part("parameters", lambda plan: plan.parameters, lambda n: f"{n:,}")
    by_part("FLOPs a token, forward", lambda plan: plan.forward_flops, with_prefix)
    by_part("FLOPs a token, backward", lambda plan: plan.backward_flops, with_prefix)
    row("layers over all positions", lambda plan: f"{plan.layer_equivalents:g}")
    table.add_section()
    row("steps", lambda plan: f"{plan.n_steps:,}")
    row("tokens a step", lambda plan: f"{plan.tokens_per_step:,}")
    row("tokens", lambda plan: f"{plan.tokens:,}")
    row("tokens of an evaluation", lambda plan: f"{plan.validated_tokens:,}" if plan.validated_tokens else None)
    row("epochs", lambda plan: "endless data" if plan.epochs is None else f"{plan.epochs:.3g}")
    table.add_section()
    distributed("processes", lambda d: f"{d.devices} ({d.parallel})")
    distributed("  sequences of each, a step", lambda d: f"{d.sequences_per_step:,}")
    distributed("  in a micro-batch", lambda d: f"{d.sequences_per_micro_batch:,}")
    distributed("  sends a step", lambda d: in_bytes(d.bytes_sent_per_step))
    of_each = " of each" if any(plan.distributed for plan in plans) else ""
    for number in ("total", "parameters", "gradients", "optimizer", "average", "gathered", "activations"):
        name = {"total": f"memory{of_each}, at least", "gathered": "  gathered layer"}.get(number, f"  {number}")
        row(name, lambda plan, number=number: in_bytes(n) if (n := getattr(plan.memory, number, 0)) else None)  # type: ignore[misc]
    table.add_section()
    estimated("estimated time", lambda e: in_time(e.total_seconds))
    estimated("  a step", lambda e: in_time(e.step_seconds))
    estimated("  an evaluation", lambda e: in_time(e.evaluation_seconds))
    estimated("  a checkpoint", lambda e: in_time(e.save_seconds))
    estimated("estimated memory", lambda e: in_bytes(e.peak_memory_bytes))
    estimated("  on", lambda e: f"{e.device}, {e.threads} thread{'s' * (e.threads > 1)}")
    console.print(table)
    console.print()
