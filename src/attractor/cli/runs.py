"""Commands about runs: train, plan, compare, generate, list."""

import errno
import json
import os
import shlex
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from tyro.conf import Positional, arg

from attractor.attention.presets import preset
from attractor.cli.ending import end_with
from attractor.cli.options import Common, command_class
from attractor.cli.waiting import data_of
from attractor.errors import InputError, RunStopped
from attractor.evidence.run import RunFolder, config_hash
from attractor.tasks.text import Text
from attractor.train.config import Runtime, TrainConfig


@dataclass(frozen=True)
class TrainBase(Common):
    resume: Annotated[Path | None, arg(help="a run folder to continue, whose own configuration is used")] = None


@dataclass(frozen=True)
class PlanBase(TrainBase):
    presets: Annotated[Positional[tuple[str, ...]], arg(help="mechanisms side by side; by default the recipe's")] = ()
    calibrate: Annotated[bool, arg(help="measure about two seconds of each, for estimates of time and memory")] = True
    json: Annotated[bool, arg(help="print one JSON object, for programs")] = False


@dataclass(frozen=True)
class CompareBase(Common):
    presets: Annotated[
        Positional[tuple[str, ...]], arg(help="mechanisms, or run folders that exist; the first is the baseline")
    ] = ()
    seeds: Annotated[tuple[int, ...], arg(help="each mechanism runs once with each")] = (0, 1, 2, 3)
    workers: Annotated[int | None, arg(help="runs side by side; by default one for each core, or one on a GPU")] = None
    margin: Annotated[float | None, arg(help="the smallest difference that matters: nats, or units of accuracy")] = None


@dataclass(frozen=True)
class Generate:
    """Continue a prompt with the model of a run."""

    run: Annotated[Positional[Path], arg(help="a run folder")]
    prompt: Annotated[str, arg(help="text to continue; empty starts a new document")] = ""
    max_new_tokens: int = 200
    temperature: Annotated[float, arg(help="0 is greedy")] = 0.8
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    checkpoint: Annotated[str, arg(help="best or last")] = "best"
    device: str = Runtime.device


@dataclass(frozen=True)
class List:
    """Show what there is by name: mechanisms, sizes, recipes, tasks and corpora."""


Train = command_class("Train", TrainBase, "Train one model; Ctrl-C saves, and the same command or --resume continues.")
Plan = command_class(
    "Plan", PlanBase, "Show what a run amounts to before it runs: parameters, FLOPs, tokens, time and memory."
)
Compare = command_class(
    "Compare",
    CompareBase,
    "Train mechanisms x seeds under one budget, paired by seed; ends with a table, a verdict and a page.",
    without="attention",
)


def starting_point(args: Any) -> tuple[TrainConfig, Path]:
    """The run that is asked for, and its folder."""
    if args.resume is None:
        config = args.config(*getattr(args, "presets", ())[:1])
        return config, folder_of(args, config)
    others = ("recipe", "size", "epochs", "out")
    for name in [*args.given(), *(name for name in others if getattr(args, name) != getattr(Common, name))]:
        raise InputError(f"{name} must be left out with --resume, which keeps the run's own; or start another run")
    folder = RunFolder.open(args.resume)
    return TrainConfig.from_dict(folder.config), folder.path


def folder_of(args: Any, config: TrainConfig) -> Path:
    return args.out or Path("runs") / f"{config.label}-{config_hash(config.to_dict())[:8]}"


def train(args: Any, console: Console) -> None:
    from attractor.evidence.quantity import stored_loss_unit
    from attractor.train.console import LiveConsole, print_line, shown
    from attractor.train.hardware import resolve_device
    from attractor.train.loop import train as carry_out
    from attractor.train.plan import plan_run

    config, path = starting_point(args)
    runtime = args.runtime()
    resolve_device(runtime.device)
    task = data_of(config)
    if not RunFolder.create(path, config.identity(task)).finished:
        print_line(console, plan_run(config, task).in_short)
    try:
        summary = carry_out(config, path, runtime, LiveConsole(console))
    except RunStopped:
        write_page(path, console)
        raise
    metric = summary["metric"]
    loss = summary["valid_loss"]
    console.print(
        f"{metric['name']} {shown(metric['value'])}, loss {shown(loss)} {stored_loss_unit(summary)}", highlight=False
    )
    write_page(path, console, runtime.device)
    if isinstance(config.task, Text):
        console.print(f"generate: attractor generate {shlex.quote(str(path))}", markup=False, soft_wrap=True)
    console.print(str(path), markup=False, highlight=False, soft_wrap=True)


def write_page(path: Path, console: Console, device: str | None = None) -> None:
    """Write the page of a run and name it; given a device, let a finished run on text keep samples first.

    The run is saved before, so that whatever goes wrong here is said in one line and does not fail the run.
    """
    from attractor.report.run_page import write_run_page
    from attractor.train.console import print_line
    from attractor.train.distributed import World
    from attractor.train.hardware import resolve_device
    from attractor.train.samples import keep_samples

    if not World.from_environment().is_first:
        return
    try:
        if device is not None:
            keep_samples(RunFolder.open(path), resolve_device(device))
    except Exception as error:
        print_line(console, f"no samples: {error}")
    try:
        page = write_run_page(path)
    except Exception as error:
        print_line(console, f"no page: {error}")
    else:
        print_line(console, f"page: {page}")


def plan(args: Any, console: Console) -> None:
    from attractor.train.calibrate import CalibrationError, calibrate
    from attractor.train.hardware import resolve_device
    from attractor.train.plan import RunPlan, differences, plan_run, print_plans

    config, path = starting_point(args)
    configs = [config]
    if args.presets:
        for name in ("attention", "resume"):
            if getattr(args, name) is not None:
                raise InputError(f"{name} must be left out where mechanisms are named; give one or the other")
        if len(set(args.presets)) < len(args.presets):
            raise InputError(f"presets must be without repetition, got '{' '.join(args.presets)}'; name each once")
        for name in args.presets:
            preset(name)
        configs = [config.replace(attention=name) for name in args.presets]
        path = folder_of(args, configs[0])
    runtime = args.runtime()
    resolve_device(runtime.device)
    task = data_of(config)
    if len(configs) == 1:
        refuse_place(path, configs[0].identity(task))

    def planned(config: TrainConfig) -> RunPlan:
        if not args.calibrate:
            return plan_run(config, task)
        try:
            return plan_run(config, task, estimate=calibrate(config, runtime))
        except CalibrationError as failed:
            return plan_run(config, task, failure=str(failed))

    watched = console.is_terminal and args.calibrate and not args.json
    with console.status("taking the first steps, to measure time and memory") if watched else nullcontext():
        plans = [planned(config) for config in configs]
    if args.json:
        print(json.dumps({"plans": [each.to_dict() for each in plans], "differences": differences(plans)}, indent=2))
    else:
        print_plans(console, plans)


def refuse_place(path: Path, config: dict[str, Any]) -> None:
    """Refuse what a run in this place would be refused for, without starting one there."""
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        RunFolder.create(path, config)
    nearest = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    if not nearest.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    if not os.access(nearest, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def compare(args: Any, console: Console) -> None:
    from attractor.study.compare import DEFAULT_PRESETS, SCALE, comparison
    from attractor.study.run import Conduct, run_study
    from attractor.train.console import print_line
    from attractor.train.plan import plan_run

    if any(Path(name, "config.json").exists() for name in args.presets):
        return compare_stored(args, console)
    presets = args.presets or DEFAULT_PRESETS
    for name in presets:
        preset(name)
    base = args.config(presets[0], *args.seeds[:1])
    what = base.to_dict() | {"presets": presets, "seed": None}  # more seeds continue the same comparison
    folder = args.out or Path("runs") / f"compare-{config_hash(what)[:8]}"
    task = data_of(base)
    study = comparison(folder.name, presets, args.seeds, base, task, args.margin)
    command = shlex.join(["attractor", *sys.argv[1:]])
    conduct = Conduct(scale=SCALE, root=args.out or folder.parent, folder=folder, workers=args.workers, command=command)
    plans = {row: plan_run(config, task) for (row, _), config in study.configs(SCALE, base.seed)}
    print_line(console, task.describe())
    for row, planned in plans.items():
        print_line(console, f"{row:<{max(map(len, plans))}}  {planned.costs}")
    record, failures = run_study(study, conduct, args.runtime(), console)
    end_with(record, folder, failures, console)


def compare_stored(args: Any, console: Console) -> None:
    from attractor.study.stored_runs import compare_runs

    defaults = (name for name in ("recipe", "size", "epochs", "workers", "margin", "seeds"))
    for name in [*args.given(), *(name for name in defaults if getattr(args, name) != getattr(CompareBase, name))]:
        raise InputError(f"{name} must be left out where run folders are compared, which are as they are; leave it out")
    command = shlex.join(["attractor", *sys.argv[1:]])
    record, folder = compare_runs([Path(name) for name in args.presets], args.out, command)
    end_with(record, folder, {}, console)


def generate(args: Generate, console: Console) -> None:
    from attractor.train.finished import finished_run
    from attractor.train.hardware import resolve_device
    from attractor.train.samples import continuation
    from attractor.train.spelling import tokenizer_of_run

    tokenizer = tokenizer_of_run(RunFolder.open(args.run))
    model = finished_run(args.run, resolve_device(args.device), args.checkpoint).model
    written = continuation(
        model, tokenizer, args.prompt, args.max_new_tokens, args.temperature, args.seed, args.top_k, args.top_p
    )
    console.print(args.prompt + written, markup=False, highlight=False, soft_wrap=True)


def show_list(args: List, console: Console) -> None:
    from attractor.catalogue import print_catalogue

    print_catalogue(console)


COMMANDS: dict[str, tuple[type, Callable[[Any, Console], None]]] = {
    "compare": (Compare, compare),
    "train": (Train, train),
    "plan": (Plan, plan),
    "generate": (Generate, generate),
    "list": (List, show_list),
}
