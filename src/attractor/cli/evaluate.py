"""The command that evaluates a model on its validation sets, on texts, or on tasks of lm-eval: evaluate."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from tyro.conf import Positional

from attractor.cli.console import answer, command_line, say
from attractor.cli.options import OfTrainedModel, dtype_of
from attractor.cli.parsing import given, refuse_given
from attractor.cli.study_code import define_mechanisms
from attractor.console import progress, waiting
from attractor.errors import InputError, not_installed, require
from attractor.files import write_json, write_text
from attractor.runs.machine import environment
from attractor.runs.run_folder import RunFolder
from attractor.train.config import TrainConfig, data_of
from attractor.train.hardware import resolve_device

if TYPE_CHECKING:
    from attractor.evaluate.causal import Causal
    from attractor.evaluate.texts.documents import Texts
    from attractor.evaluate.texts.texts import TextScore

OF_RUNS = ("n_iterations", "votes", "seed", "puzzles", "max_batches")
OF_TEXTS = ("on", "column", "against", "stride")
OF_TASKS = ("tasks", "include_path", "n_shots", "limit", "apply_chat_template")
OF_SCORES = ("window", "precision")  # of texts and of tasks


@dataclass(frozen=True)
class EvaluateArguments(OfTrainedModel):
    model: Positional[Path]
    """run folder; with --on or --tasks also a Hugging Face folder"""
    on: str | None = None
    """texts to score: a file, a folder or a corpus; by default what the run held out"""
    column: str | None = None
    """column of a table that holds the text; by default 'text' or the only one"""
    against: Path | None = None
    """second model, compared with the first document by document"""
    window: int | None = None
    """tokens of context; by default as in training"""
    stride: int | None = None
    """tokens between two windows; by default half a window"""
    tasks: tuple[str, ...] = ()
    """names of lm-eval's tasks"""
    include_path: Path | None = None
    """folder with tasks of your own, whose code is executed"""
    n_shots: int | None = None
    """examples before each question; by default as the task says"""
    limit: int | None = None
    """questions per task, to try it out; by default all"""
    apply_chat_template: bool = False
    """ask in the model's chat template, with shots as its turns"""
    n_iterations: tuple[int, ...] = ()
    """iterations of an iterated model; several make a curve; by default as in training"""
    votes: int = 1
    """answers per board, of which the one of lowest energy counts"""
    seed: int = 0
    """seed of the starts of all votes but the first"""
    puzzles: Path | None = None
    """file of boards to solve; by default the validation sets"""
    batch_size: int | None = None
    """sequences per batch; by default as in training, or as memory allows"""
    max_batches: int | None = None
    """batches of each set; by default as in training, all of a file"""
    precision: str | None = None
    """fp32, bf16 or fp16; by default as in training or as stored"""
    out: Path | None = None
    """folder for evaluation.json and, of texts, documents.jsonl"""


def evaluate(args: EvaluateArguments, console: Console) -> None:
    """Measure how good a model is. A run is measured on its validation sets, any causal model on texts (--on) or on
    tasks of lm-eval (--tasks).

        attractor evaluate runs/one --on notes.txt --against runs/another
        attractor evaluate runs/one --tasks hellaswag --limit 100
    """
    if args.out is not None and args.out.is_file():
        raise InputError(f"out must be a folder, and '{args.out}' is a file; choose another name")
    define_mechanisms(args.code, console)
    if args.tasks:
        refuse_given(args, (*OF_RUNS, *OF_TEXTS), "with --tasks")
        _tasks(args, console)
        return
    refuse_given(args, OF_TASKS, "without --tasks")
    if given(args, OF_TEXTS) or not _has_validation_sets(args.model):
        refuse_given(args, OF_RUNS, "where texts are scored")
        _texts(args, console)
        return
    refuse_given(args, OF_SCORES, "where a run is measured on its validation sets (--on TEXT scores texts instead)")
    _validation_sets(args, console)


def _validation_sets(args: EvaluateArguments, console: Console) -> None:
    from attractor.evaluate.boards.evaluation import Question, evaluate_run
    from attractor.evaluate.boards.table import record, table_of
    from attractor.train.finished import finished_run

    question = Question(args.n_iterations, args.votes, args.seed, args.puzzles, args.batch_size, args.max_batches)
    run = finished_run(args.model, resolve_device(args.device), args.checkpoint)
    _make_out(args)
    if args.puzzles is None and data_of(run.config).fingerprint != RunFolder.open(args.model).config.get("data"):
        say(console, "the data differ from those of training, so examples held out now may have been trained on")
    with progress(console) as start_progress:
        rows = list(evaluate_run(run, question, start_progress))
    console.print(table_of(rows, question.votes))
    evaluation = record(run, question, rows)
    answer(console, **evaluation)
    _write_record(args, evaluation, console)


def _texts(args: EvaluateArguments, console: Console) -> None:
    from attractor.evaluate.texts.documents import texts_on, trained_text
    from attractor.evaluate.texts.paired_test import in_words, paired, require_enough
    from attractor.evaluate.texts.tables import lines_of_documents, record_of_texts, table_of_texts

    folders = [args.model, *([] if args.against is None else [args.against])]
    trained_on = [task for folder in folders if (task := trained_text(folder)) is not None]
    trained = trained_text(args.model)
    on = args.on or (trained and trained.task.corpus)
    if not on:
        raise InputError(
            f"on must be given, since '{args.model}' was not trained on text here; give --on FILE, or --tasks NAMES"
        )
    _make_out(args)
    with waiting(f"reading {on}"):
        texts = texts_on(on, trained_on, args.column)
    if args.against is not None:
        require_enough(len(texts.documents))
    say(console, texts.describe())
    names = [folder.resolve().name for folder in folders]
    if len({*names}) < len(names):
        names = [str(folder) for folder in folders]
    scores = [_score(args, folder, name, texts, console) for folder, name in zip(folders, names, strict=True)]
    console.print(table_of_texts(scores))
    verdict = paired(*scores) if len(scores) == 2 else None
    if verdict is not None:
        say(console, in_words(verdict))
    results = {"texts": texts.name, "held_out": texts.held_out, **record_of_texts(scores, verdict)}
    answer(console, **results)
    if args.out is not None:
        write_text(args.out / "documents.jsonl", "".join(lines_of_documents(scores)))
    _write_record(args, results, console)


def _score(args: EvaluateArguments, folder: Path, name: str, texts: "Texts", console: Console) -> "TextScore":
    from attractor.evaluate.texts.texts import encode_texts, score

    causal = replace(_load(args, folder), name=name)
    say(console, causal.describe())
    encoded = encode_texts(causal, texts.documents, args.window, args.stride, texts.special_tokens)
    with progress(console) as start_progress:
        return score(encoded, args.batch_size, start_progress(f"tokens of {name}", encoded.n_tokens))


def _tasks(args: EvaluateArguments, console: Console) -> None:
    from attractor.corpus.network import OFFLINE, reachable
    from attractor.evaluate.texts.tables import table_of_tasks

    require(args.limit is None or args.limit >= 1, "limit", "at least 1", args.limit)
    require(args.n_shots is None or args.n_shots >= 0, "n_shots", "at least 0", args.n_shots)
    if not reachable():
        # Set these before the libraries are imported, which would otherwise try to connect again and again.
        os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
        say(console, f"{OFFLINE}: only tasks whose data are on this machine can run")
    try:
        from attractor.evaluate.texts.harness import AttractorLM, evaluate_tasks
    except ImportError as error:
        raise not_installed("lm-eval", "eval", f"--tasks ({error})") from error
    _make_out(args)
    causal = _load(args, args.model)
    say(console, causal.describe())
    names = [name for tasks in args.tasks for name in tasks.split(",") if name]
    with progress(console) as start_progress:
        lm = AttractorLM(causal, args.window, args.batch_size, start_progress)
        results = evaluate_tasks(lm, names, args.include_path, args.n_shots, args.limit, args.apply_chat_template)
    console.print(table_of_tasks(results))
    fields_kept = ("results", "groups", "versions", "n-shot", "n-samples", "higher_is_better", "lm_eval_version")
    chosen = {name: results[name] for name in fields_kept if name in results}
    answer(console, **chosen)
    conditions = {"window": lm.max_length, "start": lm.prefix_token_id, "chat_template": args.apply_chat_template}
    _write_record(args, {"model": causal.name, **conditions, "limit": args.limit, **chosen}, console)


def _make_out(args: EvaluateArguments) -> None:
    """Make the folder of the results before the work, so that an impossible folder is refused at once."""
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)


def _load(args: EvaluateArguments, folder: Path) -> "Causal":
    from attractor.evaluate.causal import load_causal

    dtype = dtype_of(args.precision)
    return load_causal(folder, resolve_device(args.device), dtype, args.checkpoint if _is_run(folder) else "best")


def _is_run(folder: Path) -> bool:
    from attractor.evaluate.causal import described

    return "model_type" not in described(folder)


def _has_validation_sets(folder: Path) -> bool:
    from attractor.evaluate.causal import is_imported

    return _is_run(folder) and not is_imported(TrainConfig.from_dict(RunFolder.open(folder).config).task)


def _write_record(args: EvaluateArguments, results: dict[str, Any], console: Console) -> None:
    if args.out is None:
        return
    conditions = {"checkpoint": args.checkpoint, "dtype": args.precision, "device": str(resolve_device(args.device))}
    written = args.out / "evaluation.json"
    write_json(written, {"command": command_line(), **conditions, **results, "environment": environment()})
    say(console, str(written))
