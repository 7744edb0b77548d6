"""Compare runs that exist already, as a study of one column. Nothing is trained.

A row is a run, or several that differ by their seed only. `JudgedStudy` gives a verdict only on rows that are paired
with the baseline.
"""

import shlex
from collections.abc import Collection, Sequence
from os.path import relpath
from pathlib import Path
from typing import Any

from attractor.errors import InputError, unknown
from attractor.files import write_json
from attractor.runs.configuration import config_differences, config_hash, dotted_fields
from attractor.runs.quantity import LOSS_OF_VALIDATION
from attractor.runs.run_folder import RunFolder
from attractor.runs.study_record import STUDY_FILE, Design, StudyRecord, pool_of, refuse_foreign_folder, study_as_dict
from attractor.study.compare import MEMORY, SCALE, SPEED, headline
from attractor.study.study import CONTROL

Runs = Sequence[RunFolder]
Paths = dict[tuple[str, str], dict[int, Path]]  # the folders of runs, by row and column and then by seed


def compare_runs(
    paths: Sequence[Path], folder: Path | None, command: str, baseline: str | None = None
) -> tuple[StudyRecord, Path]:
    """Write the study of these runs; return its record and its folder, which by default is one under runs/."""
    design, runs = study_of_runs(paths, command, folder.name if folder else None, baseline)
    folder = folder or Path("runs") / design.name
    refuse_foreign_folder(folder)
    pool = pool_of(folder)
    keys = {place: {seed: relpath(path, pool) for seed, path in by_seed.items()} for place, by_seed in runs.items()}
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / STUDY_FILE, study_as_dict(design, keys))
    return StudyRecord.read(folder), folder


def study_of_runs(
    paths: Sequence[Path], command: str, name: str | None = None, baseline: str | None = None
) -> tuple[Design, Paths]:
    """Return the design of a study of these runs, and their folders by row and seed. Nothing is written.

    The baseline is the first row if none is named."""
    runs = [RunFolder.open(path) for path in {path.resolve(): path for path in paths}.values()]
    for run in runs:
        if not {"label", "seed"} <= run.config.keys():
            raise InputError(f"the config.json of a compared run needs label and seed: '{run.path}' lacks one of them")
        if (summary := run.summary()) is not None and "metric" not in summary:
            raise InputError(
                f"a compared run must have been trained here, and '{run.path}' has no metric; leave it out"
            )
    unfinished = next((run.path for run in runs if not run.finished), None)
    if unfinished is not None:
        raise InputError(
            f"compared runs must be finished, and '{unfinished}' is not; finish it, as by attractor train --resume "
            f"{shlex.quote(str(unfinished))}, or leave it out"
        )
    metrics = {summary["metric"]["name"] for run in runs if (summary := run.summary())}
    rows = labelled(groups(runs))
    baseline = next(iter(rows)) if baseline is None else baseline
    if baseline not in rows:
        raise unknown("row for the baseline", baseline, rows)
    control = next((row for row, of_row in rows.items() if of_row[0].config["label"].split()[-1] == CONTROL), CONTROL)
    design = Design(
        name=name or f"compare-{config_hash({'runs': [run.config for run in runs]})[:8]}",
        title=f"Runs compared with {baseline}",
        question="How do these runs differ, and may the difference be put down to what differs between them?",
        source="attractor compare",
        scale=SCALE,
        rows_name="run",
        rows=tuple(rows),
        columns_name="",
        columns=("",),
        seeds=tuple(sorted({run.config["seed"] for run in runs})),
        baseline=baseline,
        control=None if control == baseline else control,
        budget="stored",
        quantities=(headline(metrics.pop()) if len(metrics) == 1 else LOSS_OF_VALIDATION, SPEED, MEMORY),
        command=command,
    )
    return design, {
        (row, ""): {run.config["seed"]: run.path.resolve() for run in of_row} for row, of_row in rows.items()
    }


def groups(runs: Runs) -> list[Runs]:
    """Put runs together that differ by their seed only; two runs of one seed stay apart."""
    by_settings: dict[str, list[RunFolder]] = {}
    for run in runs:
        by_settings.setdefault(config_hash(settings(run)), []).append(run)
    rows: list[Runs] = []
    for alike in by_settings.values():
        each_once = len({run.config["seed"] for run in alike}) == len(alike)
        rows += [alike] if each_once else [[run] for run in alike]
    return rows


def settings(run: RunFolder) -> dict[str, Any]:
    """Return the fields that distinguish rows. The start is none, since it may differ between the seeds of a row."""
    fields = dotted_fields(run.config)
    within_a_row = ("seed", "start", "start_weights")
    return {name: value for name, value in fields.items() if name.rpartition(".")[2] not in within_a_row}


def labelled(rows: Sequence[Runs]) -> dict[str, Runs]:
    """Name each row by its label; where several share one, by the fields in which they differ, else by the folder."""
    by_label: dict[str, list[Runs]] = {}
    for of_row in rows:
        by_label.setdefault(of_row[0].config["label"], []).append(of_row)
    named: dict[str, Runs] = {}
    for label, sharing in by_label.items():
        first = [of_row[0] for of_row in sharing]
        differing = config_differences({str(n): settings(run) for n, run in enumerate(first)}).keys() - {"data"}
        ways = (
            [label for _ in first],
            [", ".join((label, *_values(run, differing))) if len(differing) <= 2 else label for run in first],
            [f"{label} ({run.path.name})" for run in first],
            [f"{label} ({run.path})" for run in first],
        )
        names = next(names for names in ways if len(set(names)) == len(names))
        named |= dict(zip(names, sharing, strict=True))
    return named


def _values(run: RunFolder, fields: Collection[str]) -> list[str]:
    """Say the value of each field: `lr 0.001`."""
    values = settings(run)
    return [f"{name.rpartition('.')[2]} {values.get(name, 'absent')}" for name in sorted(fields)]
