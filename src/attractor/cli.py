"""The command line: one thin function per command.

Every option is a field of a config and is checked there; what a person gave wrongly ends in one line and exit code 2.
"""

import errno
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass, field, fields, make_dataclass, replace
from io import StringIO
from itertools import dropwhile, pairwise, takewhile
from pathlib import Path
from typing import Annotated, Any, cast, get_type_hints

import tyro
from rich.console import Console
from tyro.conf import Positional, arg

from attractor.attention.presets import PRESETS, preset
from attractor.attention.stage import require
from attractor.corpus.located import located
from attractor.corpus.shards import is_prepared
from attractor.errors import InputError, RunStopped, unknown
from attractor.evidence.run import RunFolder, config_hash, environment
from attractor.models import SIZES, TransformerConfig
from attractor.tasks import TASKS, TaskConfig
from attractor.tasks.text import Text
from attractor.train.config import RECIPES, Runtime, TrainConfig

WIDTH_OF_A_LOG = 120


def settings(without: str) -> list[tuple[str, Any, Any]]:
    """Every field of a model, its training and its task, but one, as an option that leaves the recipe alone unless
    given. What several tasks have is one option."""
    options: dict[str, tuple[str, Any, Any]] = {}
    for config in (TransformerConfig, TrainConfig, *TASKS.values()):
        hints = get_type_hints(config)
        for f in fields(config):
            if f.name not in ("model", without):
                kind = str if f.name in ("attention", "task") else hints[f.name]
                options[f.name] = (f.name, kind | None, field(default=None))
    return list(options.values())


@dataclass(frozen=True)
class Common:
    """Where a run starts from, and how it is carried out; every further option changes one field of the recipe."""

    recipe: Annotated[str, arg(help="named settings, of which other options change single fields")] = "laptop"
    size: Annotated[str | None, arg(help="a named model in place of the recipe's")] = None
    epochs: Annotated[float | None, arg(help="passes over the training data, in place of n_steps")] = None
    out: Annotated[Path | None, arg(help="the folder to write; by default one under runs/")] = None
    device: Annotated[str, arg(help="cpu, cuda or auto")] = Runtime.device
    threads: Annotated[int | None, arg(help="CPU threads of each run")] = None
    save_every: Annotated[int, arg(help="steps between checkpoints")] = Runtime.save_every
    log_every: Annotated[int, arg(help="steps between lines of metrics")] = Runtime.log_every
    telemetry_every: Annotated[int | None, arg(help="steps between bounds on the logits")] = Runtime.telemetry_every
    tensorboard: Annotated[bool, arg(help="write TensorBoard's files into the run's folder, too")] = False

    def config(self, attention: str | None = None, seed: int | None = None) -> TrainConfig:
        """The recipe with the given options in place, and one mechanism and seed where several are named. What the task
        demands of the model is given unless it is said otherwise, and refused then. A run that starts from another
        has the model of that one."""
        if self.recipe not in RECIPES:
            raise unknown("recipe", self.recipe, RECIPES, see="'attractor list' shows all")
        if self.size is not None and self.size not in SIZES:
            raise unknown("size", self.size, SIZES, see="'attractor list' shows all")
        one_of_several = {"attention": attention, "seed": seed}
        given = self.given() | {name: value for name, value in one_of_several.items() if value is not None}
        if "attention" in given:
            preset(given["attention"])
        recipe = RECIPES[self.recipe]
        if self.size is not None:
            recipe = recipe.replace(model=SIZES[self.size])
        if "start" in given:
            recipe = self.continued(recipe, given)
        of_the_task = self.task_settings(given, recipe)
        if (length := of_the_task.seq_len) is not None:
            given.setdefault("seq_len", length)
        steps = ("n_steps", "warmup_steps")
        config = recipe.replace(task=of_the_task, **{name: given[name] for name in given if name not in steps})
        task = config.task.build(config.seq_len, config.seed)
        n_steps = given.get("n_steps", recipe.n_steps)
        if self.epochs is not None:
            if "n_steps" in given or task.n_tokens is None:
                why = "beside n_steps" if "n_steps" in given else "with data drawn without end"
                raise InputError(f"epochs must be left out {why}, got {self.epochs:g}; give n_steps alone")
            require(0 < self.epochs < math.inf, "epochs", "positive and finite", self.epochs)
            n_steps = max(1, round(self.epochs * task.n_tokens / config.tokens_per_step))
        # A run of another length keeps its share of warm-up.
        warmup_steps = given.get("warmup_steps", recipe.warmup_steps * n_steps // recipe.n_steps)
        # A vocabulary that is started from may be larger than the task's.
        kept = {*given, "vocab_size"} if "start" in given else given
        demands = {name: value for name, value in task.demands.items() if name not in kept}
        return config.replace(n_steps=n_steps, warmup_steps=warmup_steps, **demands)

    def continued(self, recipe: TrainConfig, given: dict[str, Any]) -> TrainConfig:
        """The recipe with the model of the run that it starts from, and for GLUE that run's tokenizer."""
        if self.size is not None:
            raise InputError("size must be left out with start, which brings the model of its run; leave it out")
        names = ("start", "attention", "seed")
        folder = recipe.replace(**{name: given[name] for name in names if name in given}).start_folder
        assert folder is not None
        source = TrainConfig.from_dict(RunFolder.open(folder).config)
        glue = given.get("task", recipe.task.kind) == "glue"
        if glue and isinstance(source.task, Text) and is_prepared(located(source.task.corpus)):
            given.setdefault("glue_tokenizer", source.task.corpus)
        lengths = {name: given[name] for name in ("seq_len",) if name in given}  # positions may end before the recipe's
        return recipe.replace(model=source.model, **lengths)

    def task_settings(self, given: dict[str, Any], recipe: TrainConfig) -> TaskConfig:
        """The task, with the options that are its own; they are taken out of `given`."""
        kind = given.pop("task", recipe.task.kind)
        if kind not in TASKS:
            raise unknown("task", kind, TASKS, see="'attractor list' shows all")
        own = {f.name for f in fields(TASKS[kind])}
        for other in TASKS.values():
            for name in {f.name for f in fields(other)} - own:
                if name in given:
                    raise InputError(
                        f"{name} must be left out with task '{kind}', since it is an option of task '{other.kind}'; "
                        f"leave it out or give --task {other.kind}"
                    )
        base = recipe.task if recipe.task.kind == kind else TASKS[kind]()
        return replace(base, **{name: given.pop(name) for name in own if name in given})

    def given(self) -> dict[str, Any]:
        """The fields of the configuration that a person named."""
        names = {name for name, _, _ in settings(without="")}
        return {name: value for name, value in vars(self).items() if name in names and value is not None}

    def runtime(self) -> Runtime:
        return Runtime(
            self.device,
            self.threads,
            self.log_every,
            self.save_every,
            telemetry_every=self.telemetry_every,
            tensorboard=self.tensorboard,
        )


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
    presets: Annotated[Positional[tuple[str, ...]], arg(help="mechanisms; the first is the baseline")] = ()
    seeds: Annotated[tuple[int, ...], arg(help="each mechanism runs once with each")] = (0, 1, 2, 3)
    workers: Annotated[int | None, arg(help="runs side by side; by default one for each core, or one on a GPU")] = None


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
class Bench:
    """Time training steps and decoding, alternating in one process, as ratios with their spread."""

    presets: Annotated[Positional[tuple[str, ...]], arg(help="mechanisms to time against 'standard'; none: all")] = ()
    precision: Annotated[tuple[str, ...], arg(help="fp32, bf16 or both")] = ("fp32", "bf16")
    rounds: Annotated[int, arg(help="measured steps of each case")] = 15
    decode: Annotated[int, arg(help="tokens of the decoding benchmark; 0 leaves it out")] = 256
    device: str = Runtime.device
    out: Annotated[Path | None, arg(help="a JSON file for every measured second")] = None


@dataclass(frozen=True)
class List:
    """Show what there is by name: mechanisms, sizes, recipes, tasks and corpora."""


@dataclass(frozen=True)
class Data:
    """Corpora on disk: `attractor data prepare`, `verify`, `describe` and `bench`."""


@dataclass(frozen=True)
class DataPrepare:
    """Turn text into token shards; interrupted at any moment, the same command continues."""

    source: Annotated[
        Positional[str], arg(help="a file, folder, pattern, saved data set, or owner/name:config:column of the Hub")
    ]
    out: Annotated[Path, arg(help="the folder to write")]
    tokenizer: Annotated[str, arg(help="bytes, gpt2, bpe:8192 (trained on the corpus), or a path")] = "bytes"
    column: Annotated[str, arg(help="what holds the text in tables; several as title,abstract")] = "text"
    split: Annotated[str, arg(help="of a data set that has several")] = "train"
    articles: Annotated[bool, arg(help="rows are lines as in WikiText, where ' = Title = ' begins a document")] = False
    max_tokens: Annotated[str | None, arg(help="training tokens at most, as 250k, 100M or 1.5G")] = None
    valid_share: Annotated[float, arg(help="the share of documents held out")] = 0.1
    drop_duplicates: Annotated[bool, arg(help="leave out training documents that validation has, too")] = False
    max_bad: Annotated[float, arg(help="the share of malformed records that is put up with")] = 0.01
    workers: Annotated[int | None, arg(help="threads; by default one for each core")] = None


@dataclass(frozen=True)
class DataDescribe:
    """Measure what makes a corpus coherent, on equal samples of each: a table, a figure and the numbers."""

    sources: Annotated[Positional[tuple[str, ...]], arg(help="files, folders, patterns or names as for prepare")]
    out: Annotated[Path, arg(help="the folder for describe.json and describe.svg")]
    column: Annotated[str, arg(help="what holds the text in tables; several as title,abstract")] = "text"
    split: Annotated[str, arg(help="of a data set that has several")] = "train"
    max_words: Annotated[str, arg(help="words drawn from each, as 250k or 1M")] = "1M"
    piece_words: Annotated[int, arg(help="words drawn from a document")] = 125
    order: Annotated[int, arg(help="of the n-gram model")] = 3
    max_documents: Annotated[int | None, arg(help="read no further, as for a stream without end")] = None


@dataclass(frozen=True)
class DataBench:
    """Time preparing against the tokenizers library alone, loading, drawing sequences and boards, and solving."""

    text: Annotated[str, arg(help="what is prepared")] = "stdlib-docs"
    tokenizer: Annotated[str, arg(help="as for prepare, but for bytes")] = "bpe:4096"
    puzzles: Annotated[str | None, arg(help="a file of boards to solve; by default boards drawn here")] = None
    rounds: Annotated[int, arg(help="repetitions of each")] = 5


@dataclass(frozen=True)
class DataVerify:
    """Read all of a prepared corpus: checksums, and ids within the vocabulary."""

    folder: Annotated[Positional[Path], arg(help="a folder that `attractor data prepare` wrote")]


def command_class(name: str, base: type, doc: str, without: str = "") -> type:
    made = make_dataclass(name, settings(without), bases=(base,), frozen=True)
    made.__doc__ = doc
    return made


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
    from attractor.train.console import LiveConsole, print_line, shown
    from attractor.train.hardware import resolve_device
    from attractor.train.loop import train as carry_out
    from attractor.train.plan import plan_run

    config, path = starting_point(args)
    runtime = args.runtime()
    resolve_device(runtime.device)
    task = config.build_task()
    if not RunFolder.create(path, config.identity(task)).finished:
        print_line(console, plan_run(config, task).in_short)
    summary = carry_out(config, path, runtime, LiveConsole(console))
    metric = summary["metric"]
    loss = summary["valid_loss"]
    console.print(f"{metric['name']} {shown(metric['value'])}, loss {shown(loss)} nats", highlight=False)
    if isinstance(config.task, Text):
        console.print(f"generate: attractor generate {shlex.quote(str(path))}", markup=False, soft_wrap=True)
    console.print(str(path), markup=False, highlight=False, soft_wrap=True)


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
    task = config.build_task()
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
    from attractor.study.compare import DEFAULT_PRESETS, Plan
    from attractor.study.compare import compare as carry_out

    presets = args.presets or DEFAULT_PRESETS
    for name in presets:
        preset(name)
    base = args.config(presets[0], *args.seeds[:1])
    what = base.to_dict() | {"presets": presets, "seeds": args.seeds}
    plan = Plan(base, presets, args.seeds, args.out or Path("runs") / f"compare-{config_hash(what)[:8]}")
    command = shlex.join(["attractor", *sys.argv[1:]])
    page = carry_out(plan, args.workers, args.runtime(), console, command)
    console.print(str(page), markup=False, highlight=False, soft_wrap=True)


def generate(args: Generate, console: Console) -> None:
    import torch

    from attractor.tasks.text import Text, tokenizer_of
    from attractor.train import checkpoint
    from attractor.train.hardware import resolve_device

    folder = RunFolder.open(args.run)
    config = TrainConfig.from_dict(folder.config)
    if not isinstance(config.task, Text):
        raise InputError(f"run must be of task 'text' to continue a prompt, got '{config.task.kind}'; give another run")
    if args.checkpoint not in ("best", "last"):
        raise unknown("checkpoint", args.checkpoint, ("best", "last"))
    found = checkpoint.best_checkpoint(folder.checkpoints) if args.checkpoint == "best" else None
    path = found or checkpoint.newest_intact(folder.checkpoints, lambda text: print(text, file=sys.stderr))
    if path is None:
        raise InputError(f"run must have a checkpoint, and '{args.run}' has none yet; train it first")
    device = resolve_device(args.device)
    model = config.model.build(config.seed)
    checkpoint.load_weights(path, model)
    tokenizer = tokenizer_of(config.task.corpus)
    prompt = tokenizer.encode(args.prompt).astype("int64")
    tokens = (
        model.to(device)
        .generate(
            [torch.from_numpy(prompt) if len(prompt) else [tokenizer.end_of_text]],
            args.max_new_tokens,
            args.temperature,
            args.top_k,
            args.top_p,
            stop_token=tokenizer.end_of_text,
            pad_token=tokenizer.pad,
            generator=torch.Generator(device).manual_seed(args.seed),
        )[0]
        .cpu()
    )
    continuation = tokens[max(len(prompt), 1) :].numpy()
    # A model hardly trained also draws ids that mean nothing.
    continuation = continuation[(continuation < tokenizer.n_spelled) & (continuation != tokenizer.pad)]
    console.print(args.prompt + tokenizer.decode(continuation), markup=False, highlight=False, soft_wrap=True)


def bench(args: Bench, console: Console) -> None:
    from attractor.attention.stage import require
    from attractor.bench.cases import PRECISIONS
    from attractor.bench.run import bench_all
    from attractor.train.hardware import resolve_device

    for name in args.presets:
        preset(name)
    for precision in args.precision:
        if precision not in PRECISIONS:
            raise unknown("precision", precision, PRECISIONS)
    require(args.rounds >= 1, "rounds", "at least 1", args.rounds)
    require(args.decode >= 0, "decode", "at least 0", args.decode)
    device = resolve_device(args.device)
    bench_all(args.presets or tuple(PRESETS), args.precision, args.rounds, args.decode, device, console, args.out)


def show_list(args: List, console: Console) -> None:
    from attractor.catalogue import print_catalogue

    print_catalogue(console)


def data_prepare(args: DataPrepare, console: Console) -> None:
    from attractor.corpus.console import LivePreparation, print_corpus
    from attractor.corpus.prepare import Preparation, count_of, prepare

    given = {name: value for name, value in vars(args).items() if name not in ("column", "max_tokens")}
    columns = tuple(column.strip() for column in args.column.split(","))
    max_tokens = None if args.max_tokens is None else count_of(args.max_tokens)
    with LivePreparation(console) as live:
        corpus = prepare(Preparation(**given, columns=columns, max_tokens=max_tokens), live)
    print_corpus(console, corpus)
    console.print(str(args.out), markup=False, highlight=False, soft_wrap=True)


def data_describe(args: DataDescribe, console: Console) -> None:
    from attractor.corpus.describe import Settings
    from attractor.corpus.portrait import portray_sources
    from attractor.corpus.prepare import count_of

    require(len(args.sources) >= 1, "sources", "at least one", args.sources)
    settings = Settings(count_of(args.max_words, "max_words"), args.piece_words, args.order, args.max_documents)
    provenance = {"command": shlex.join(["attractor", *sys.argv[1:]]), "environment": environment()}
    columns = tuple(column.strip() for column in args.column.split(","))
    portray_sources(args.sources, args.out, settings, console, provenance, columns, args.split)
    console.print(str(args.out), markup=False, highlight=False, soft_wrap=True)


def data_bench(args: DataBench, console: Console) -> None:
    from attractor.bench.data import measure_data

    require(args.rounds >= 1, "rounds", "at least 1", args.rounds)
    require(args.tokenizer != "bytes", "tokenizer", "one that merges bytes", args.tokenizer, "give bpe:4096")
    for figure in measure_data(args.text, args.tokenizer, args.puzzles, args.rounds):
        console.print(f"{figure.what:<64} {figure.measured}", markup=False, highlight=False, soft_wrap=True)


def data_verify(args: DataVerify, console: Console) -> None:
    from attractor.corpus.shards import PreparedCorpus

    corpus = PreparedCorpus.open(args.folder)
    corpus.verify()
    console.print(f"{len(corpus.train) + len(corpus.valid):,} tokens are as they were written", highlight=False)


COMMANDS: dict[str, tuple[type, Callable[[Any, Console], None]]] = {
    "compare": (Compare, compare),
    "train": (Train, train),
    "plan": (Plan, plan),
    "generate": (Generate, generate),
    "bench": (Bench, bench),
    "list": (List, show_list),
}
DATA_COMMANDS: dict[str, tuple[type, Callable[[Any, Console], None]]] = {
    "prepare": (DataPrepare, data_prepare),
    "verify": (DataVerify, data_verify),
    "describe": (DataDescribe, data_describe),
    "bench": (DataBench, data_bench),
}


BAD_VALUE = r"Error parsing (\S+): no type matching (?:\{None\}\|)?(.+) could be .* \[(.*)\]"
KINDS = {"INT": "a whole number", "FLOAT": "a number", "{FLOAT FLOAT}": "two numbers", "{INT INT}": "two whole numbers"}


def parse(argv: Sequence[str]) -> Any:
    """The command's arguments."""
    if argv[0] == "data":
        return parse_among({name: made for name, (made, _) in DATA_COMMANDS.items()}, "attractor data", argv[1:])
    return parse_among({name: made for name, (made, _) in COMMANDS.items()} | {"data": Data}, "attractor", argv)


def parse_among(commands: dict[str, type], program: str, argv: Sequence[str]) -> Any:
    """The arguments of one of these commands; tyro's several lines about a mistake become one."""
    argv = list(argv) or ["--help"]
    if argv[0] not in commands and not argv[0].startswith("-"):
        raise unknown("command", argv[0], commands, see=f"'{program} --help' shows all")
    said = StringIO()
    try:
        with redirect_stderr(said):
            return tyro.extras.subcommand_cli_from_dict(cast(Any, commands), prog=program, args=argv)
    except SystemExit as stopped:
        if stopped.code:
            shown = f"{program} {argv[0]}" if argv[0] in commands else program
            raise InputError(_in_one_line(said.getvalue(), argv, shown)) from stopped
        raise


def is_rule(line: str) -> bool:
    return re.fullmatch("─+|-{3,}", line) is not None  # what tyro draws depends on the encoding of standard output


def _in_one_line(said: str, argv: Sequence[str], command: str) -> str:
    """What stands in tyro's box up to the first rule, and the nearest options that it offers below."""
    titled = [line.strip("│╭╰╮╯ ") for line in re.sub(r"\x1b\[[0-9;]*m", "", said).splitlines()]
    lines = list(dropwhile(is_rule, titled[1:]))
    complaint = " ".join(takewhile(lambda line: line and not is_rule(line), lines))
    if complaint.startswith("Unrecognized"):
        strays = re.findall(r"(\S+) \(applied to", complaint) or complaint.partition(": ")[2].split(", ")
        complaint = f"unknown option {', '.join([stray for stray in strays if stray.startswith('-')] or strays)}"
    elif wrong := re.match(BAD_VALUE, complaint):
        complaint = f"{wrong[1]} must be {KINDS.get(wrong[2], wrong[2])}, got {wrong[3]}"
    offered = [after.split()[0] for line, after in pairwise(lines) if line.startswith(("Perhaps", "Arguments similar"))]
    near = [name for name in offered if name not in argv]
    guess = f"; did you mean {', '.join(near)}?" if near else ""
    return f"{complaint}{guess} ('{command} --help' shows all)"


def main() -> None:
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH_OF_A_LOG)
    try:
        args = parse(sys.argv[1:] or ["--help"])
        run = next(run for made, run in [*COMMANDS.values(), *DATA_COMMANDS.values()] if type(args) is made)
        run(args, console)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except RunStopped as stopped:
        print(stopped, file=sys.stderr)
        sys.exit(stopped.exit_code)
    except KeyboardInterrupt:  # before the first step, or a second time
        print("interrupted; the same command goes on from what is saved", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe went away
        sys.exit(1)
    except OSError as error:  # a folder that cannot be written, a full disk
        place = f" '{error.filename}'" if error.filename else ""
        print(f"error: {error.strerror or error}:{place}; make room there or choose another place", file=sys.stderr)
        sys.exit(2)
