"""The table and the record of an evaluation."""

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from attractor.console import console_table, in_time
from attractor.evaluate.boards.evaluation import EvaluationRow, Question
from attractor.runs.configuration import config_hash
from attractor.train.finished import Finished


def table_of(rows: Sequence[EvaluationRow], n_votes: int) -> Table:
    names = list(rows[0].measures)
    has_iterations = rows[0].n_iterations is not None
    leading = ["set", *(["iterations", "votes"] if has_iterations else [])]
    table = console_table([*leading, *(name.removeprefix("n_").replace("_", " ") for name in names)])
    for part in dict.fromkeys(row.part for row in rows):
        for row in rows:
            if row.part == part:
                counts = [f"{row.n_iterations:,}", f"{n_votes:,}"] if has_iterations else []
                table.add_row(Text(part), *counts, *(shown(name, row.measures[name]) for name in names))
    return table


def shown(name: str, value: float) -> str:
    if name.startswith("seconds"):
        return in_time(value)
    if name.startswith("n_"):
        return f"{value:,.0f}"
    return f"{value:.4f}" if abs(value) < 1e3 else f"{value:,.1f}"


def record(run: Finished, question: Question, rows: Sequence[EvaluationRow]) -> dict[str, Any]:
    config = run.config.to_dict()
    return {
        "label": run.config.label,
        "run": config_hash(config),
        "checkpoint": run.checkpoint,
        "n_votes": question.votes,
        "seed": question.seed,
        "rows": [row.to_dict() for row in rows],
        "configuration": config,
    }
