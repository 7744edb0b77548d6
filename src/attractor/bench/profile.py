"""Profile a training step: a table of the time by part, and a trace that Chrome or Perfetto shows.

    step = sum over parts of (forward + backward) + idle                                                    (1)

A part is what its modules compute, without the modules inside them that are another part. `couple` is everything
between projection and score: coupling, norms of queries and keys, position. `loss` includes the readout. `gradients` is
their accumulation. `slow path` is all of FastSlow's slow path, its pooled blocks included, but for `injection`, the way
back. `rest` belongs to no part: residual sums, masks, the loop itself. A backward operation belongs to
the part of its forward operation, since autograd gives both the same number. Recomputation counts as backward.

On a CPU the times are those of the processor's work, and nothing is idle. On a GPU they are the times of kernels, and
`idle` is the rest of the step. Profiling costs time, most of all where operations are small, so the table also shows
the time of a step without the profiler. Hooks mark the parts and are removed afterwards. A compiled model is one part,
since hooks would be compiled into it.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.table import Table
from torch import nn
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from attractor.attention import Attention
from attractor.console import console_table
from attractor.errors import require
from attractor.models.fast_slow import FastSlow
from attractor.models.mlp import GatedMLP, PlainMLP
from attractor.train.config import Runtime, TrainConfig
from attractor.train.parts import OF_TWO_TIMESCALES
from attractor.train.trainer import Trainer

COMPILED, REST, GRADIENTS = "compiled model", "rest", "gradients"
SLOW_PATH, INJECTION = OF_TWO_TIMESCALES
OF_MODEL = ("embedding", "norms", "project", "couple", "score", "output", "mlp", SLOW_PATH, INJECTION, "loss", COMPILED)
PARTS = ("data", *OF_MODEL, GRADIENTS, "clip", "optimizer", REST)
MARK = "part of a step: "  # prefix of the names of ranges
STEP = f"{MARK}step"
BACKWARD = "autograd::engine::evaluate_function: "
WARM_UP = 3  # steps in which kernels are chosen and memory is allocated


@dataclass(frozen=True)
class PartSeconds:
    """The seconds that one part takes in a step."""

    forward: float
    backward: float

    @property
    def both(self) -> float:
        return self.forward + self.backward


@dataclass(frozen=True)
class Profile:
    label: str
    device: str
    n_steps: int
    parts: dict[str, PartSeconds]
    step_seconds: float  # under the profiler
    unwatched_seconds: float  # without it
    idle_seconds: float | None  # None on a CPU
    trace: Path

    @property
    def accounted_seconds(self) -> float:
        """The right-hand side of (1)."""
        return sum(part.both for part in self.parts.values()) + (self.idle_seconds or 0.0)


def profile_step(config: TrainConfig, device: torch.device, out: Path, n_steps: int = 5) -> Profile:
    """Take steps of a run, profile the last `n_steps` of them, and write the trace to `out`."""
    require(n_steps >= 1, "n_steps", "at least 1", n_steps)
    require(out.name.endswith(".json.gz"), "out", "a file that ends in .json.gz", str(out))
    out.parent.mkdir(parents=True, exist_ok=True)
    run = Trainer(config, config.build_task(), Runtime(device=str(device)))
    run.model.train()
    for _ in range(WARM_UP):
        seconds_of_step(run)
    unwatched = median(seconds_of_step(run) for _ in range(n_steps))
    activities = [ProfilerActivity.CPU]
    if run.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with marked(run), profile(activities=activities, acc_events=True) as watched:
        seconds_of_step(run)  # the first step pays for the start of the profiler
        started = time.perf_counter()
        for _ in range(n_steps):
            with record_function(STEP):
                seconds_of_step(run)
        step = (time.perf_counter() - started) / n_steps
    watched.export_chrome_trace(str(out))
    on_gpu = run.device.type == "cuda"
    parts = seconds_by_part(watched.events() or [], n_steps, on_gpu)
    busy = sum(part.both for part in parts.values())
    return Profile(
        label=config.label,
        device=torch.cuda.get_device_name(run.device) if on_gpu else str(run.device),
        n_steps=n_steps,
        parts=parts,
        step_seconds=step,
        unwatched_seconds=unwatched,
        idle_seconds=max(step - busy, 0.0) if on_gpu else None,
        trace=out,
    )


def seconds_of_step(run: Trainer) -> float:
    """Time one step until the device has finished."""
    started = time.perf_counter()
    run.take_step()
    if run.device.type == "cuda":
        torch.cuda.synchronize(run.device)
    return time.perf_counter() - started


@contextmanager
def marked(run: Trainer) -> Iterator[None]:
    """Mark every part of a step with a profiler range of its name; all marks are removed at the end."""
    with ExitStack() as marks:
        whole = COMPILED if run.config.compile else "loss"
        for owner, name, part in (
            (run.task, "train_batch", "data"),
            (run, "loss", whole),
            (run, "clip_gradients", "clip"),
            (run, "move", "optimizer"),
        ):
            marks.enter_context(marked_method(owner, name, part))
        if not run.config.compile:
            marks.enter_context(marked_method(run.model, "hidden", REST))
            if isinstance(run.model, FastSlow):
                marks.enter_context(marked_method(run.model, "injected", SLOW_PATH))
            for module, part in parts_of(run.model):
                marks.enter_context(marked_module(module, part))
        yield


def parts_of(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield each module that is marked, with the name of its part."""
    inside = {id(child) for layer in model.modules() if isinstance(layer, Attention) for child in layer.modules()}
    for name, module in model.named_modules():
        if isinstance(model, FastSlow) and name.startswith(("slow.", "injection")):
            if name == "injection":
                yield module, INJECTION
        elif isinstance(module, Attention):
            yield module, "couple"
            for stage in ("project", "score", "output"):
                yield getattr(module, stage), stage
        elif isinstance(module, GatedMLP | PlainMLP):
            yield module, "mlp"
        elif isinstance(module, nn.RMSNorm) and id(module) not in inside:
            yield module, "norms"
        elif name in ("embedding", "positions"):
            yield module, "embedding"


@contextmanager
def marked_method(owner: Any, name: str, part: str) -> Iterator[None]:
    method: Callable[..., Any] = getattr(owner, name)
    before = vars(owner).get(name)

    def ranged(*args: Any, **kwargs: Any) -> Any:
        with record_function(MARK + part):
            return method(*args, **kwargs)

    vars(owner)[name] = ranged
    try:
        yield
    finally:
        if before is None:
            del vars(owner)[name]
        else:
            vars(owner)[name] = before


@contextmanager
def marked_module(module: nn.Module, part: str) -> Iterator[None]:
    ranges: list[record_function] = []

    def enter(*_: Any) -> None:
        ranges.append(record_function(MARK + part))
        ranges[-1].__enter__()

    def leave(*_: Any) -> None:
        ranges.pop().__exit__(None, None, None)

    hooks = [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def seconds_by_part(events: Iterable[FunctionEvent], n_steps: int, on_gpu: bool) -> dict[str, PartSeconds]:
    """Return the terms of (1) from a profiler's events. Events of other threads belong to the backward pass."""
    of_host = [event for event in events if event.device_type == torch.autograd.DeviceType.CPU]
    steps = [event for event in of_host if event.name == STEP]
    assert len(steps) == n_steps
    began, ended = steps[0].time_range.start, steps[-1].time_range.end
    roots = [e for e in of_host if e.cpu_parent is None and began <= e.time_range.start <= ended]
    differentiated = parts_by_number(roots)
    spent: dict[tuple[str, bool], float] = defaultdict(float)

    def add(event: FunctionEvent, part: str, backward: bool) -> None:
        if event.name.startswith(BACKWARD):
            backward = True
            summing = "AccumulateGrad" in event.name
            part = GRADIENTS if summing else differentiated.get((event.fwd_thread, event.sequence_nr), REST)
        elif event.name.startswith(MARK) and event.name != STEP:
            part = event.name.removeprefix(MARK)
        of_kernels = sum(kernel.duration for kernel in event.kernels if kernel.name != event.name)  # not of a mark
        spent[part, backward] += of_kernels if on_gpu else event.self_cpu_time_total
        for child in event.cpu_children:
            add(child, part, backward)

    for root in roots:
        if on_gpu or root.name == STEP:
            add(root, REST, backward=False)
    seconds = {key: microseconds / 1e6 / n_steps for key, microseconds in spent.items()}
    return {
        part: PartSeconds(seconds.get((part, False), 0.0), seconds.get((part, True), 0.0))
        for part in PARTS
        if (part, False) in seconds or (part, True) in seconds
    }


def parts_by_number(roots: Iterable[FunctionEvent]) -> dict[tuple[int | None, int], str]:
    """Return the part of each forward operation, by its thread and autograd's number. An operation that leaves nothing
    to differentiate shares its number with the next operation, so the last one counts."""
    latest: dict[tuple[int | None, int], tuple[float, str]] = {}

    def look(event: FunctionEvent, part: str) -> None:
        if event.name.startswith(BACKWARD):
            return  # recomputed operations have numbers of their own
        if event.name.startswith(MARK) and event.name != STEP:
            part = event.name.removeprefix(MARK)
        key, start = (event.thread, event.sequence_nr), event.time_range.start
        if event.sequence_nr >= 0 and start >= latest.get(key, (start, ""))[0]:
            latest[key] = start, part
        for child in event.cpu_children:
            look(child, part)

    for root in roots:
        look(root, REST)
    return {key: part for key, (_, part) in latest.items()}


def profile_table(profile: Profile) -> Table:
    """Return a table with a row for each part, one for idle time on a GPU, and one for the step."""
    headings = (f"{profile.label} on {profile.device}", "forward ms", "backward ms", "ms a step", "share")
    table = console_table(headings, padding=(0, 2, 0, 0), no_wrap=True)
    whole = profile.accounted_seconds

    def row(name: str, *seconds: float) -> None:
        shown = [f"{1e3 * s:.3f}" if s else "·" for s in seconds]
        table.add_row(name, *[""] * (3 - len(shown)), *shown, f"{seconds[-1] / whole:.1%}")

    for name, part in profile.parts.items():
        row(name, part.forward, part.backward, part.both)
    if profile.idle_seconds is not None:
        row("idle", profile.idle_seconds)
    table.add_section()
    row("step", whole)
    table.add_row("  without the profiler", "", "", f"{1e3 * profile.unwatched_seconds:.3f}", "")
    return table
