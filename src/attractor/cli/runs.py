"""Commands about runs: train, plan, compare, generate."""

import errno
import os
import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from rich.console import Console
from tyro.conf import Positional

from attractor.attention import Whole
from attractor.attention.named import mechanism
from attractor.cli.console import answer, command_line, say
from attractor.cli.options import Common, OfTrainedModel, runtime_of
from attractor.cli.parsing import refuse_given
from attractor.cli.study import report_study
from attractor.cli.study_code import define_mechanisms
from attractor.console import print_line
from attractor.errors import InputError, RankLostError, RunStopped, not_installed, require
from attractor.files.code import code_option
from attractor.runs.configuration import config_hash
from attractor.runs.run_folder import DIVERGED, RunFolder
from attractor.train.compiled import SAID
from attractor.train.config import Runtime, TrainConfig, data_of
from attractor.train.distributed import World
from attractor.train.fit import FreeMemory, said_of_auto
from attractor.train.from_recipe import AUTO
from attractor.train.hardware import resolve_device, slow_precision, time_of_a_gpu
from attractor.train.memory import ProcessLayout

if TYPE_CHECKING:
    from attractor.corpus.tokenizer_settings import TokenizerSettings

TEMPERATURE = 0.8


@dataclass(frozen=True)
class TrainArguments(Common):
    resume: Path | None = None
    """run folder to continue as it was configured"""
    code: str | None = None
    """with --resume or --config: FILE.py or module that defines the run's own mechanism; it is executed"""
    parallel: str = Runtime.parallel
    collective_timeout: float = Runtime.collective_timeout


@dataclass(frozen=True)
class PlanArguments(TrainArguments):
    mechanisms: Positional[tuple[str, ...]] = ()
    """names to set side by side; by default the recipe's"""
    devices: int = 1
    """processes that torchrun would start"""
    calibrate: bool = True
    """measure about two seconds, to estimate time and memory"""

    def processes(self) -> ProcessLayout:
        return ProcessLayout(self.devices, self.parallel)


@dataclass(frozen=True)
class CompareArguments(Common):
    without: ClassVar[Sequence[str]] = ("attention", "seed")
    several: ClassVar[Sequence[str]] = ("lr",)

    mechanisms: Positional[tuple[str, ...]] = ()
    """names, or runs; by default standard coupled-euler differential gated"""
    seeds: tuple[int, ...] | None = None
    """seeds, also as 0-7; by default 0 1 2 3, more with --within"""
    within: str | None = None
    """time, as 30m: each mechanism stops once decided"""
    workers: int | None = None
    """runs at the same time; by default one per core, one on a GPU"""
    margin: float | None = None
    """smallest difference that matters (text: nats/byte)"""
    thorough: bool = False
    """also loss a second, higher rates and another size"""
    recall: bool = False
    """with --thorough: associative recall, too"""
    match: str = "tokens"
    """what is equal: tokens, parameters, flops or seconds"""

    def given(self) -> dict[str, Any]:
        """A single learning rate is that of all rows."""
        given = super().given()
        rates = given.pop("lr", ())
        return given | ({"lr": rates[0]} if len(rates) == 1 else {})

    @property
    def rates(self) -> tuple[float, ...] | None:
        """Several learning rates, of which a pilot chooses one for each row."""
        rates = getattr(self, "lr", None)
        return rates if rates is not None and len(rates) > 1 else None


@dataclass(frozen=True)
class GenerateArguments(OfTrainedModel):
    run: Positional[Path]
    """run folder"""
    prompt: str = ""
    """text to continue; by default a new document"""
    max_new_tokens: int = 200
    """tokens to generate"""
    chat: bool = False
    """take the prompt as a message, in the chat template of an imported model"""
    temperature: float | None = None
    """sampling temperature; 0 takes the likeliest token; by default as an imported model says, else 0.8"""
    top_k: int | None = None
    """sample from the k likeliest tokens; by default as an imported model says, else all"""
    top_p: float | None = None
    """sample from the likeliest tokens of this total probability; by default as for top_k"""
    seed: int = 0
    """seed of the sampling"""


def starting_point(args: TrainArguments, console: Console) -> tuple[TrainConfig, Path]:
    """Return the configuration of the run, and its folder."""
    if args.resume is None:
        is_new = args.config is None
        require(not is_new or args.code is None, "code", "left out here", args.code, "give --attention FILE.py:NAME")
        define_mechanisms(args.code, console)
        config = args.configured(*getattr(args, "mechanisms", ())[:1])
        return config, folder_of(args, config)
    names = ("config", "recipe", "size", "epochs", "out", *args.given())
    refuse_given(args, names, "with --resume, which keeps the run's own")
    folder = RunFolder.open(args.resume)
    define_mechanisms(args.code, console)
    return TrainConfig.from_dict(folder.config), folder.path


def folder_of(args: TrainArguments, config: TrainConfig) -> Path:
    return args.out or Path("runs") / f"{config.label}-{config_hash(config.to_dict())[:8]}"


def train(args: TrainArguments, console: Console) -> None:
    """Train one model. Ctrl-C saves it, and the same command or --resume continues.

    attractor train --attention coupled-euler --out runs/one
    attractor train --size fast-slow --slow-attention decay --epochs 2
    """
    from attractor.runs.study_record import stored_loss_unit
    from attractor.train.display import LiveConsole, shown
    from attractor.train.loop import train as train_run
    from attractor.train.plan import plan_run

    config, path = starting_point(args, console)
    runtime = runtime_of(args)
    device = resolve_device(runtime.device)
    if args.given().get("batch_size") == AUTO:
        print_line(console, said_of_auto(config, args.processes(), FreeMemory.of(runtime).on_device))
    memory = None if RunFolder(path, {}).finished else FreeMemory.of(runtime).refuse_oversized(config)
    task = data_of(config)
    if not RunFolder.create(path, config.identity(task)).finished:
        print_line(console, replace(plan_run(config, task), memory=memory).in_short)
        if config.compile:
            print_line(console, SAID)
        if isinstance(whole := config.model.mechanisms[0], Whole):
            print_line(console, f"{whole.lacks}; it has positions {config.model.positions}")
        if warning := slow_precision(config.precision, device):
            print_line(console, warning)
    try:
        summary = train_run(config, path, runtime, LiveConsole(console))
        if DIVERGED in summary:
            raise RunStopped(summary[DIVERGED])
    except RankLostError:  # torchrun ends this process soon, so its line must come first
        raise
    except RunStopped:
        write_page(path, console)
        raise
    metric = summary["metric"]
    loss = summary["valid_loss"]
    unit = stored_loss_unit(summary, config.to_dict())
    console.print(f"{metric['name']} {shown(metric['value'])}, loss {shown(loss)} {unit}", highlight=False)
    if (best := summary.get("best_step")) is not None and best < config.n_steps:
        best_loss = shown(summary["best_loss"])
        print_line(console, f"best {best_loss} at step {best:,} of {config.n_steps:,}; later steps did worse")
    if skipped := summary.get("skipped_steps"):
        why = "since their loss or gradient was not finite; lower --lr"
        print_line(console, f"{skipped:,} of {config.n_steps:,} steps were skipped, {why}")
    write_page(path, console, runtime.device)
    next_command = {"text": "generate: attractor generate {}", "sudoku": "solve: attractor solve PUZZLE --run {}"}
    if config.task.kind in next_command:
        code = code_option(config.model.own_code)
        say(console, next_command[config.task.kind].format(shlex.quote(str(path))) + code)
    say(console, str(path))
    answer(console, run=str(path), **summary)


def write_page(path: Path, console: Console, device: str | None = None) -> None:
    """Write the page of a run and print its path. Given a device, a finished run on text stores samples first.

    The run is saved by then, so an error here is printed in one line and does not fail the run.
    """
    from attractor.report.run_page import write_run_page
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


def plan(args: PlanArguments, console: Console) -> None:
    """Show what a run takes before it runs: parameters, FLOPs, tokens, time and memory.

    attractor plan standard mla --size small
    attractor plan --recipe 1b --no-calibrate
    """
    from attractor.train.calibrate import CalibrationError, calibrate
    from attractor.train.plan import RunPlan, differences, plan_processes, plan_run, print_plans

    config, path = starting_point(args, console)
    configs = [config]
    if args.mechanisms:
        for name in ("attention", "resume"):
            if getattr(args, name) is not None:
                raise InputError(f"{name} must be left out where mechanisms are named; give one or the other")
        is_repeated = len(set(args.mechanisms)) < len(args.mechanisms)
        require(not is_repeated, "mechanisms", "without repetition", " ".join(args.mechanisms), "name each once")
        configs = [config.replace(attention=mechanism(name)) for name in args.mechanisms]
        path = folder_of(args, configs[0])
    runtime = runtime_of(args)
    absent = runtime.device == "cuda" and not torch.cuda.is_available()
    free_memory = FreeMemory.of_absent_gpu(args.processes()) if absent else FreeMemory.of(runtime)
    task = data_of(config)
    if len(configs) == 1:
        refuse_place(path, configs[0].identity(task))

    measured = args.calibrate and args.devices == 1 and not absent
    plan_memory = free_memory.refuse_oversized if measured else free_memory.plan
    memories = {config: plan_memory(config) for config in configs if args.devices == 1}

    def planned(config: TrainConfig) -> RunPlan:
        run_plan = plan_run(config, task)
        if absent:
            run_plan = replace(run_plan, gpu_time=time_of_a_gpu(run_plan.flops_per_token * run_plan.tokens))
        if args.devices != 1:
            shared = plan_processes(config, args.devices, args.parallel, free_memory.device.type)
            return replace(run_plan, memory=shared.memory, distributed=shared)
        run_plan = replace(run_plan, memory=memories[config])
        if not measured:
            return run_plan
        try:
            return replace(run_plan, estimate=calibrate(config, runtime))
        except CalibrationError as failed:
            return replace(run_plan, failure=str(failed))

    show_status = console.is_terminal and measured
    with console.status("taking the first steps, to measure time and memory") if show_status else nullcontext():
        plans = [planned(config) for config in configs]
    if args.given().get("batch_size") == AUTO:
        print_line(console, said_of_auto(configs[0], args.processes(), free_memory.on_device))
    if configs[0].compile:
        print_line(console, SAID)
    answer(console, plans=[run_plan.to_dict() for run_plan in plans], differences=differences(plans))
    print_plans(console, plans)


def refuse_place(path: Path, config: dict[str, Any]) -> None:
    """Refuse a folder in which a run could not start, without starting one."""
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        RunFolder.create(path, config)
    nearest = next(place for place in (path, *path.absolute().parents) if os.path.lexists(place))
    if not nearest.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    if not os.access(nearest, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def compare(args: CompareArguments, console: Console) -> None:
    """Train several mechanisms with several seeds each, or take finished runs, and compare them. Ends with a table, a
    verdict and a page.

        attractor compare standard gated --corpus notes.txt
        attractor compare standard gated --lr 1e-3 2e-3 4e-3
        attractor compare runs/one runs/another
    """
    from attractor.study.compare import DEFAULT_PRESETS, Asked, compare_mechanisms

    if any(Path(name, "config.json").exists() for name in args.mechanisms):
        return compare_stored(args, console)
    for name in args.mechanisms:
        if "/" in name and ".py" not in name:
            raise InputError(
                f"mechanisms must be names or folders of finished runs, and '{name}' is neither; "
                "'attractor runs list' shows runs, and 'attractor list mechanisms' names mechanisms"
            )
    if args.given().get("batch_size") == AUTO:
        advice = "'attractor plan --batch-size auto' says which accumulation fits"
        raise InputError(f"batch_size must be a number in a comparison, got auto; {advice}")
    if args.seeds is not None and len(args.seeds) == 1 and (seed := args.seeds[0]) > 1:
        say(console, f"seed {seed} alone is trained; --seeds 0-{seed - 1} trains {seed} seeds")
    question = Asked(
        args.mechanisms or DEFAULT_PRESETS,
        args.seeds,
        args.margin,
        args.thorough,
        args.recall,
        args.within,
        args.rates,
        args.match,
    )
    record, failures, folder = compare_mechanisms(
        question, args.configured, runtime_of(args), console, args.out, args.workers, command_line()
    )
    report_study(record, folder, failures, console)


def compare_stored(args: CompareArguments, console: Console) -> None:
    from attractor.study.stored_runs import compare_runs

    names = [field.name for field in fields(args) if field.name not in ("mechanisms", "out", "json")]
    refuse_given(args, names, "where run folders are compared, which are as they are")
    record, folder = compare_runs([Path(name) for name in args.mechanisms], args.out, command_line())
    report_study(record, folder, {}, console)


def generate(args: GenerateArguments, console: Console) -> None:
    """Continue a prompt with the model of a run.

    attractor generate runs/one --prompt 'def '
    """
    from attractor.train.finished import finished_run
    from attractor.train.samples import continuation
    from attractor.train.saved_tokenizer import saved_settings, tokenizer_of_run

    define_mechanisms(args.code, console)
    tokenizer = tokenizer_of_run(RunFolder.open(args.run))
    settings = saved_settings(args.run)
    sampling = {"temperature": TEMPERATURE} | ({} if settings is None else settings.sampling)
    given = {name: getattr(args, name) for name in ("temperature", "top_k", "top_p")}
    sampling |= {name: value for name, value in given.items() if value is not None}
    prompt = chat_prompt(args, settings) if args.chat else args.prompt
    if settings is not None:
        say(console, settings.describe_generation())
    model = finished_run(args.run, resolve_device(args.device), args.checkpoint).model
    written = continuation(model, tokenizer, prompt, args.max_new_tokens, seed=args.seed, settings=settings, **sampling)
    say(console, written if args.chat else args.prompt + written)
    answer(console, prompt=args.prompt, continuation=written)


def chat_prompt(args: GenerateArguments, settings: "TokenizerSettings | None") -> list[int]:
    """Return the tokens of a chat in which the prompt is the first message, rendered by transformers' sandbox."""
    if settings is None or not settings.has_chat_template:
        raise InputError(f"chat must be left out, since '{args.run}' has no chat template, got True; leave --chat out")
    try:
        from attractor.hf.tokenizers import original_tokenizer, render_chat
    except ImportError as error:
        raise not_installed("transformers", "hf", f"--chat ({error})") from error
    messages = [{"role": "user", "content": args.prompt}]
    text = render_chat(original_tokenizer(settings), messages, add_generation_prompt=True)
    return settings.spell(text, specials=False)
