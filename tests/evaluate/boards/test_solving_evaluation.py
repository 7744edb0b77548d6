"""`evaluate` reproduces the validation of a run, and extends it to other boards and numbers of iterations."""

import json
import shutil
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from attractor.console import progress
from attractor.errors import InputError
from attractor.evaluate import boards as solving
from attractor.evaluate.boards.evaluation import EvaluationRow, Question, evaluate_run
from attractor.evaluate.boards.table import record
from attractor.models import ItrSAConfig
from attractor.models.recurrent import RecurrentModel
from attractor.tasks.recall import Recall
from attractor.tasks.sudoku import SudokuTask, generate
from attractor.train.config import Runtime, TrainConfig
from attractor.train.finished import Finished, finished_run
from attractor.train.loop import train

CPU = torch.device("cpu")
Trained = Callable[[str], Path]


def asked(run: Finished, **question: object) -> list[EvaluationRow]:
    """Evaluate the run as the question asks, without a report of progress."""
    return list(evaluate_run(run, Question(**question), lambda what, n: lambda more: None))


@pytest.mark.parametrize("family", ["itrsa", "akorn", "itrsa-prenorm", "recursive", "transformer"])
def test_the_accuracies_are_those_of_the_runs_summary(family: str, trained: Trained) -> None:
    """Criterion: with the last weights, the accuracies on both validation sets equal the stored ones exactly, so the
    same boards are evaluated in the same way."""
    path = trained(family)
    valid, ood = asked(finished_run(path, CPU, "last"))
    stored = json.loads((path / "summary.json").read_text())["measures"]
    for name in ("board_accuracy", "cell_accuracy"):
        assert valid.measures[name] == stored[name]
        assert ood.measures[name] == stored[f"ood_{name}"]
    assert 0 < stored["cell_accuracy"] < 1
    assert (valid.part, ood.part) == ("valid", "ood")
    assert valid.n_iterations == (None if family == "transformer" else 3)


def test_each_row_of_an_evaluation_is_the_accuracy_at_its_number_of_iterations(trained: Trained) -> None:
    run = finished_run(trained("itrsa"), CPU)
    rows = asked(run, n_iterations=(1, 5), max_batches=100)
    assert [(row.part, row.n_iterations) for row in rows] == [("valid", 1), ("valid", 5), ("ood", 1), ("ood", 5)]
    task = run.config.build_task()
    assert isinstance(task, SudokuTask)
    assert isinstance(run.model, RecurrentModel)
    for row in rows:
        batch = next(task.valid_batches(100, part=row.part))
        with torch.no_grad():
            logits, _ = run.model.eval()(torch.from_numpy(batch.inputs), n_iterations=row.n_iterations)
        for name, value in task.measure(batch.targets, logits.argmax(-1).numpy()).items():
            assert row.measures[name] == pytest.approx(value)
        assert row.measures["n_boards"] == len(batch.inputs)


def test_boards_of_a_file_replace_the_validation_sets(trained: Trained, tmp_path: Path) -> None:
    boards, solutions = generate(9, 6, seed=11, size=4)
    file = tmp_path / "mine.txt"
    file.write_text("\n".join("".join(map(str, board.ravel())) for board in boards))
    run = finished_run(trained("itrsa"), CPU)
    (row,) = asked(run, puzzles=file, batch_size=2)
    (point,) = solving.accuracy_over_time(run.model, boards, solutions, (3,))
    assert (row.part, row.measures["n_boards"]) == ("mine.txt", 9), "all boards, however many the run validates on"
    assert row.measures["board_accuracy"] == point.board_accuracy
    assert row.measures["cell_accuracy"] == point.cell_accuracy
    assert row.measures["energy"] == pytest.approx(point.energy)
    (plain,) = asked(finished_run(trained("transformer"), CPU), puzzles=file)
    assert 0 <= plain.measures["cell_accuracy"] <= 1
    other = tmp_path / "nine.npz"
    np.savez(other, puzzles=generate(2, 40, seed=0)[0])
    with pytest.raises(InputError, match=r"puzzles must be 4 x 4 for this run, but 'nine.npz' has 9 x 9; name another"):
        asked(run, puzzles=other)
    np.savez(other, puzzles=np.concatenate((boards, solutions[:2])))
    with pytest.raises(InputError, match=r"a blank in every board, and 2 of 'nine.npz' have none; leave them out"):
        asked(run, puzzles=other)
    with pytest.raises(InputError, match="boards must have a blank each, and 9 of 9 have none; leave them out"):
        solving.accuracy_over_time(run.model, solutions, solutions, (3,))


def test_a_task_without_boards_is_evaluated_as_it_was_validated(tmp_path: Path) -> None:
    """A recurrent model is evaluated on the recall task with more iterations, too. Votes need boards and are
    refused."""
    task = Recall(level="zoology-64", symbols=32, n_examples=64)
    shape = {"vocab_size": 64, "d_model": 16, "n_heads": 2, "max_seq_len": 64, "causal": True, "blank": None}
    config = TrainConfig(ItrSAConfig(**shape, n_iterations=2), task, n_steps=4, batch_size=4, warmup_steps=1)
    config = config.replace(eval_every=2, eval_batches=2, **task.build(64, 0).demands | {"causal": True})
    summary = train(config, tmp_path / "run", Runtime(device="cpu", telemetry_every=None))
    run = finished_run(tmp_path / "run", CPU, "last")
    rows = asked(run, n_iterations=(2, 4))
    assert rows[0].measures["loss"] == pytest.approx(summary["valid_loss"])
    assert rows[0].measures["accuracy"] == summary["accuracy"]
    assert rows[1].measures["loss"] != rows[0].measures["loss"]
    assert isinstance(run.model, RecurrentModel)
    assert run.model.n_iterations == 2
    with pytest.raises(InputError, match="votes must be 1 for a task without boards, got 3"):
        asked(run, votes=3)
    with pytest.raises(InputError, match="puzzles must be left out with a run of task 'mqar'"):
        asked(run, puzzles=tmp_path / "any.txt")


def test_the_best_and_the_last_weights_can_be_chosen(trained: Trained, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(trained("itrsa"), tmp_path / "run"))
    (copy / "checkpoints" / "best.json").write_text(json.dumps({"step": 4, "loss": 0.0}))
    best, last = (finished_run(copy, CPU, which) for which in ("best", "last"))
    assert (best.checkpoint, last.checkpoint) == ("step-00000004", "step-00000008")
    assert not torch.equal(best.model.embedding.weight, last.model.embedding.weight)


def test_impossible_evaluations_are_refused(trained: Trained) -> None:
    for name, value in (("n_iterations", (4,)), ("votes", 4)):
        with pytest.raises(InputError, match=f"{name} must be left out: a model of the family 'transformer'"):
            asked(finished_run(trained("transformer"), CPU), **{name: value})
    with pytest.raises(InputError, match="max_batches must be at least 1, got 0"):
        Question(max_batches=0)
    with pytest.raises(InputError, match="unknown checkpoint 'first'"):
        finished_run(trained("itrsa"), CPU, "first")


def test_a_record_holds_every_number_and_no_path(trained: Trained) -> None:
    path = trained("akorn")
    run, question = finished_run(path, CPU), Question((2, 3), votes=2)
    rows = asked(run, n_iterations=(2, 3), votes=2)
    stored = record(run, question, rows)
    assert [row["n_iterations"] for row in stored["rows"]] == [2, 3, 2, 3]
    assert stored["rows"][1] == {"set": "valid", "n_iterations": 3, **rows[1].measures}
    assert str(path) not in json.dumps(stored)


def test_a_log_shows_progress_and_the_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attractor.console.SECONDS_BETWEEN", 0.0)
    log = StringIO()
    with progress(Console(file=log, width=120)) as watch:
        advance = watch("answers", 10)
        advance(4)
        advance(6)
    (line,) = log.getvalue().splitlines()
    assert line.startswith("4 of 10 answers, ")
    assert line.endswith(" left")
