"""Evaluate a finished run on validation sets, as in training or with more iterations, several votes or other boards."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attractor.console import StartProgress, no_progress
from attractor.errors import InputError, require
from attractor.evaluate.boards.accuracy import accuracy_over_time
from attractor.models.language_model import LanguageModel
from attractor.models.recurrent import RecurrentModel
from attractor.tasks import Task
from attractor.tasks.sudoku import Puzzles, SudokuTask, read
from attractor.tasks.sudoku.data import Boards, Sets
from attractor.train.evaluate import validate
from attractor.train.finished import Finished


@dataclass(frozen=True)
class Question:
    """The options of an evaluation."""

    n_iterations: tuple[int, ...] = ()  # empty: as in training
    votes: int = 1
    seed: int = 0
    puzzles: Path | None = None
    batch_size: int | None = None  # None: as in the run's validation
    max_batches: int | None = None

    def __post_init__(self) -> None:
        for name in ("votes", "batch_size", "max_batches"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, "at least 1", value)
        for n in self.n_iterations:
            require(n >= 1, "n_iterations", "at least 1", n, "an answer is read after at least one iteration")


@dataclass(frozen=True)
class EvaluationRow:
    """The measures of one validation set after a number of iterations."""

    part: str  # the name of the validation set
    n_iterations: int | None  # None for a model without iterations
    measures: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        return {"set": self.part, "n_iterations": self.n_iterations, **self.measures}


class BoardsOfFile(SudokuTask):
    """A task of the boards in a file, for evaluation alone."""

    def __init__(self, puzzles: Puzzles) -> None:
        size = puzzles.boards.shape[1]
        self.name, self.n_cells, self.valid_sets = puzzles.path.name, size * size, (puzzles.path.name,)
        boards = Boards(puzzles.boards, puzzles.solutions)
        nothing = boards.take(np.arange(0))
        self.sets = Sets(nothing, {self.name: boards}, 0, puzzles.n_malformed, fingerprint="")


def evaluate_run(
    run: Finished, question: Question, start_progress: StartProgress = no_progress
) -> Iterator[EvaluationRow]:
    """Yield a row for each validation set and each number of iterations, in this order."""
    task = _task(run, question)
    model = run.model
    if not isinstance(model, RecurrentModel):
        for name, is_set, why in (
            ("n_iterations", bool(question.n_iterations), "has no iterations"),
            ("votes", question.votes > 1, "always starts from the same state"),
        ):
            if is_set:
                raise InputError(f"{name} must be left out: a model of the family '{model.config.family}' {why}")
    elif isinstance(task, SudokuTask):
        yield from _of_boards(run, model, task, question, start_progress)
        return
    if question.votes > 1:
        raise InputError(f"votes must be 1 for a task without boards, got {question.votes}; leave it out")
    yield from _of_batches(run, task, question, start_progress)


def _task(run: Finished, question: Question) -> Task:
    if question.puzzles is None:
        return run.config.build_task()
    length = run.config.task.seq_len
    if run.config.task.kind != "sudoku" or length is None:
        raise InputError(
            f"puzzles must be left out with a run of task '{run.config.task.kind}'; that task has no boards"
        )
    puzzles = read(question.puzzles)
    size = puzzles.boards.shape[1]
    if size * size != length:
        rows = round(length**0.5)
        raise InputError(
            f"puzzles must be {rows} x {rows} for this run, but '{puzzles.path.name}' has {size} x {size}; "
            "name another file, or a run trained on such boards"
        )
    n_full = int((puzzles.boards != 0).all((1, 2)).sum())
    if n_full:
        raise InputError(
            f"puzzles must have a blank in every board, and {n_full} of '{puzzles.path.name}' have none; leave them out"
        )
    return BoardsOfFile(puzzles)


def _of_boards(
    run: Finished, model: RecurrentModel, task: SudokuTask, question: Question, start_progress: StartProgress
) -> Iterator[EvaluationRow]:
    iterations = question.n_iterations or (model.n_iterations,)
    batch_size, max_batches = _extent(run, question)
    taken = {
        part: sets.take(np.arange(len(sets) if max_batches is None else min(len(sets), batch_size * max_batches)))
        for part, sets in task.sets.valid.items()
    }
    advance = start_progress("answers", sum(map(len, taken.values())) * question.votes)
    for part, boards in taken.items():
        with run.autocast():
            points = accuracy_over_time(
                model, boards.boards, boards.solutions, iterations, question.votes, question.seed, batch_size, advance
            )
        for point in points:
            measures = {name: getattr(point, name) for name in ("board_accuracy", "cell_accuracy", "energy")}
            costs = {"seconds_per_board": point.seconds, "n_boards": len(boards)}
            yield EvaluationRow(part, point.n_iterations, measures | costs)


def _of_batches(
    run: Finished, task: Task, question: Question, start_progress: StartProgress
) -> Iterator[EvaluationRow]:
    model = run.model
    iterations: Sequence[int | None] = question.n_iterations or (getattr(model, "n_iterations", None),)
    batch_size, max_batches = _extent(run, question)
    config = run.config.replace(batch_size=batch_size, accumulation=1, eval_batches=max_batches)
    advance = start_progress("evaluations", len(task.valid_sets) * len(iterations))
    for part in task.valid_sets:
        for n in iterations:
            began = time.perf_counter()
            with iterating(model, n):
                evaluation = validate(model, task, config, part)
            seconds = time.perf_counter() - began
            metric = evaluation.metric(task.metric)["value"]
            assert isinstance(metric, float)
            advance(1)
            yield EvaluationRow(
                part, n, {task.metric: metric} | evaluation.measures | {"loss": evaluation.loss, "seconds": seconds}
            )


@contextmanager
def iterating(model: LanguageModel, n_iterations: int | None) -> Iterator[None]:
    """Set the number of iterations of a recurrent model within the context."""
    if not isinstance(model, RecurrentModel) or n_iterations is None:
        yield
        return
    usual, model.n_iterations = model.n_iterations, n_iterations
    try:
        yield
    finally:
        model.n_iterations = usual


def _extent(run: Finished, question: Question) -> tuple[int, int | None]:
    """Return the batch size and the number of batches; by default, all boards of a file are evaluated."""
    config = run.config
    as_validated = None if question.puzzles is not None else config.eval_batches
    batch_size = question.batch_size or config.micro_batch_size
    return batch_size, as_validated if question.max_batches is None else question.max_batches
