"""The command that measures any causal model: measure."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from tyro.conf import Positional

from attractor.cli.console import answer, command_line, say
from attractor.cli.options import MEASURED, OfTrainedModel, dtype_of
from attractor.cli.study_code import define_mechanisms
from attractor.console import StartProgress, progress, waiting
from attractor.errors import InputError, RunInterrupted, require
from attractor.runs.machine import environment
from attractor.train.hardware import resolve_device

if TYPE_CHECKING:
    from attractor.evaluate.measures import Plan


LEGEND = """
entropy: of attention in nats without row 0; / log n: as a share of its largest; rank: effective rank of attention maps
sink: attention on position 0; logit sd, largest: of the scaled logits; |J|: norm of a layer's Jacobian
|h|: length of the stream after position 0; ±: half of the 95% interval over passages"""
LENGTH = 128  # of a passage, unless the model was trained on shorter ones


@dataclass(frozen=True)
class MeasureArguments(OfTrainedModel):
    models: Positional[tuple[Path, ...]]
    """run folders or Hugging Face folders"""
    on: str
    """text file, table of texts or named corpus"""
    column: str | None = None
    """column of a table that holds the text; by default 'text' or the only one"""
    n_samples: int = 8
    """passages of the text to average over"""
    length: int | None = None
    """tokens per passage; by default as in training, or 128 where training had more"""
    layers: tuple[int, ...] = ()
    """layers to measure, counted from 0; by default all"""
    k: int = 4
    """number of largest Lyapunov exponents; 0 measures none"""
    jacobians: bool = True
    """measure Jacobian norms and exponents, which take most of the time"""
    memory: float = 4.0
    """most GB to use beside the model"""
    precision: str = "fp32"
    """fp32, fp64, bf16 or fp16; Jacobians need one of the first two"""
    seed: int = 0
    """seed of the choice of passages"""
    out: Path | None = None
    """folder for measures.json, figures and a page"""


def measure(args: MeasureArguments, console: Console) -> None:
    """Look inside any causal model as it reads a text: attention, layers, and Lyapunov exponents over depth.

    attractor measure runs/one --on stdlib-docs --out measures
    """
    from attractor.evaluate.causal import described, length_of_training
    from attractor.evaluate.measures import Plan, text_of
    from attractor.evaluate.measures.page import write_page, write_record

    define_mechanisms(args.code, console)
    require(len(args.models) > 0, "models", "at least one folder", args.models, "give a run or a Hugging Face folder")
    dtype_of(args.precision, MEASURED)  # refused before a text is read, as are folders without a model
    for path in args.models:
        described(path.expanduser())
    k = args.k if args.jacobians else 0
    trained = [length for path in args.models if (length := length_of_training(path.expanduser())) is not None]
    length = min((LENGTH, *trained)) if args.length is None else args.length
    plan = Plan(args.n_samples, length, args.layers, k, args.jacobians, args.memory, args.seed)
    with waiting(f"reading {args.on}"):
        text = text_of(args.on, args.column)
    if not text.strip():
        raise InputError(f"on must hold text, and '{args.on}' has none; give a file with text")
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
    contents = {"command": command_line(), "environment": environment()}
    records: list[dict[str, Any]] = []

    def keep(record: dict[str, Any]) -> None:
        if args.out is not None:
            write_record(args.out, contents | {"models": [*records, record]})

    finished = True
    try:
        for path in args.models:
            with progress(console) as start_progress:
                model_record, finished = _measured(args, path, plan, text, start_progress, keep)
            if model_record is not None:
                records.append(model_record)
                answer(console, models=records)
                _show(model_record, console)
            if not finished:
                break
    finally:  # a model that cannot be measured does not take the page of those before it along
        if records:
            say(console, LEGEND)
        if args.out is not None and records:
            say(console, str(write_page(args.out, contents | {"models": records})))
    if not records:
        raise RunInterrupted("interrupted before the first passage was done; nothing is kept", signal.SIGINT)
    if not finished:
        raise RunInterrupted("interrupted; the tables show what was measured until then", signal.SIGINT)


def _measured(
    args: MeasureArguments,
    path: Path,
    plan: "Plan",
    text: str,
    start_progress: "StartProgress",
    keep: Callable[[dict[str, Any]], None],
) -> tuple[dict[str, Any] | None, bool]:
    """Return the record of a model, and whether it has all passages: after Ctrl-C it has those that were finished."""
    from attractor.evaluate.causal import load_causal
    from attractor.evaluate.measures.records import records

    model_record: dict[str, Any] | None = None
    try:
        causal = load_causal(path, resolve_device(args.device), dtype_of(args.precision, MEASURED), args.checkpoint)
        is_unique = [model.resolve().name for model in args.models].count(causal.name) == 1
        name = causal.name if is_unique else str(path)
        for model_record in records(causal, name, plan, text, start_progress, text=args.on, dtype=args.precision):
            keep(model_record)
    except KeyboardInterrupt:
        return model_record, False
    return model_record, True


def _show(record: dict[str, Any], console: Console) -> None:
    from attractor.evaluate.measures.table import exponents_line, table_of

    console.print(record["model"], style="bold", markup=False, highlight=False)
    console.print(table_of(record))
    if record["exponents"]["by_rank"]:
        console.print(exponents_line(record), markup=False, highlight=False)
    for note in record["notes"]:
        say(console, note)
