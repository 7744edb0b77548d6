"""Judge anybody's numbers: tables and logs of other programs, tables in memory, and stored runs of attractor.

attractor.judge("runs.csv", margin=0.003)                       a file, several files or a folder
attractor.judge(frame, row="method", value="val_loss")          a pandas table, records, or columns by name
attractor.judge({"base": {0: 3.28, 1: 3.29}, "mine": {0: 3.27, 1: 3.28}})     numbers by row and seed
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attractor.errors import InputError
from attractor.runs.run_folder import METRICS, RunFolder, find_runs, run_paths
from attractor.runs.study_record import STUDY_FILE, study_runs
from attractor.verdict.judge import judge_observations
from attractor.verdict.observations import Observations, ObservedRun, Seed
from attractor.verdict.outcome import Verdicts
from attractor.verdict.reading import observations_of_columns, read_observations


def judge(
    data: Any,
    *,
    row: str | None = None,
    seed: str | None = None,
    value: str | None = None,
    step: str | None = None,
    baseline: str | None = None,
    margin: float | None = None,
    tried: int | None = None,
    looks: Sequence[int] = (),
    against: float | None = None,
    at: str | float = "last",
    lower_is_better: bool | None = None,
    level: float = 0.95,
) -> Verdicts:
    """Return the verdict on every row of a table against its baseline, or against a number.

    `row`, `seed`, `value` and `step` name columns; what is not named is guessed, and the notes say how. `margin` is the
    smallest difference that matters, `tried` the number of ideas that were run, `looks` the planned numbers of pairs,
    and `at` the step that counts: last, best or a number.
    """
    return judge_observations(
        observe(data, row=row, seed=seed, value=value, step=step),
        baseline=baseline,
        margin=margin,
        tried=tried,
        looks=looks,
        against=against,
        at=at,
        lower_is_better=lower_is_better,
        level=level,
    )


def observe(data: Any, **columns: str | None) -> Observations:
    """Return the runs in data of any form, by row and seed."""
    if isinstance(data, Observations):
        return data
    if isinstance(data, str | Path):
        data = [data]
    if isinstance(data, Mapping) and data and all(isinstance(of_row, Mapping) for of_row in data.values()):
        rows = {str(row): _runs_of(str(row), of_row) for row, of_row in data.items()}
        return Observations(rows, columns["value"] or "value")
    if hasattr(data, "reset_index") and any(name is not None for name in data.index.names):
        data = data.reset_index()  # a pandas table or series, whose named index may hold rows or seeds
    if hasattr(data, "to_dict") and hasattr(data, "columns"):  # a pandas table
        data = data.to_dict("list")
    if isinstance(data, Mapping):
        return observations_of_columns({str(name): list(cells) for name, cells in data.items()}, **columns)
    items = list(data)
    paths = [getattr(item, "path", item) for item in items]  # of results of runs, too
    if items and all(isinstance(path, str | Path) for path in paths):
        folders = [Path(path) for path in paths]
        if all(folder.is_dir() and _holds_runs(folder) for folder in folders):
            return _observations_of_runs([run for folder in folders for run in _runs_in(folder)])
        return read_observations(folders, **columns)
    if items and all(isinstance(item, Mapping) for item in items):
        names = dict.fromkeys(name for item in items for name in item)
        return observations_of_columns({str(name): [item.get(name) for item in items] for name in names}, **columns)
    raise InputError(
        f"data must be files, a table, records, or numbers by row and seed, got {type(data).__name__}; "
        "see help(attractor.judge)"
    )


def _runs_of(row: str, values: Mapping[Seed, Any]) -> dict[Seed, ObservedRun]:
    try:
        return {seed: ObservedRun(math.nan if value is None else float(value)) for seed, value in values.items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"values of row '{row}' must be numbers: {error}; give nan for a run that failed") from None


def _holds_runs(folder: Path) -> bool:
    """Whether a folder is a study or holds runs. Other programs write a config.json, too, but no metrics beside it."""
    return (folder / STUDY_FILE).is_file() or any((run / METRICS).is_file() for run in run_paths(folder))


def _runs_in(folder: Path) -> list[tuple[str, RunFolder]]:
    """Return the runs in a folder with the rows that they belong to: those of a study, or else their labels."""
    if not (folder / STUDY_FILE).is_file():
        return [(str(run.config.get("label") or run.path.name), run) for run in find_runs(folder)]
    return [
        (f"{row}, {column}" if column else row, RunFolder.open(path))
        for (row, column), by_seed in study_runs(folder)[1].items()
        for path in by_seed.values()
        if path.is_dir()
    ]


def _observations_of_runs(runs: Sequence[tuple[str, RunFolder]]) -> Observations:
    """Return the validation losses of runs by row and seed; of a run that has not ended, nothing."""
    rows: dict[str, dict[Seed, ObservedRun]] = {}
    n_unfinished = 0
    for label, run in runs:
        summary = run.summary()
        if not summary:
            n_unfinished += 1
            continue
        config, lines = run.config, run.metrics()
        losses = [(float(line["step"]), line["valid_loss"]) for line in lines if "valid_loss" in line]
        curve = tuple((step, math.nan if loss is None else float(loss)) for step, loss in losses)  # JSON has no nan
        seed = config.get("seed", 0)
        of_row = rows.setdefault(label, {})
        if seed in of_row:
            raise InputError(
                f"runs must have one place each, but two of '{label}' have seed {seed}: '{run.path}' is one; give "
                "folders that hold the runs of one comparison"
            )
        value = summary.get("valid_loss")
        last = math.nan if value is None else float(value)
        of_row[seed] = ObservedRun(last, curve if math.isfinite(last) else (), seconds=summary.get("wall_seconds"))
    notes = [f"{n_unfinished} runs have not ended and are left out."] if n_unfinished else []
    return Observations(rows, "valid_loss", notes=tuple(notes))
