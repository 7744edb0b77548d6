"""Read run folders as the observations of a verdict: the validation losses of finished runs by label and seed."""

from collections.abc import Sequence
from pathlib import Path

from attractor.errors import InputError
from attractor.runs.configuration import config_differences
from attractor.runs.run_folder import METRICS, RunFolder, find_runs, run_paths
from attractor.runs.study_record import STUDY_FILE, study_runs
from attractor.verdict.observations import Observations, Run, Seed

VALUE = "valid_loss"


def are_runs(paths: Sequence[Path | str]) -> bool:
    """Whether each path is a run, a study, or a folder of runs. Other programs write a config.json, too, but beside
    other files."""
    return bool(paths) and all(Path(path).is_dir() and _holds_runs(Path(path)) for path in paths)


def _holds_runs(folder: Path) -> bool:
    return (folder / STUDY_FILE).is_file() or any((run / METRICS).is_file() for run in run_paths(folder, True))


def read_runs(paths: Sequence[Path | str], value: str | None = None) -> Observations:
    """Return a number of finished runs, which is the validation loss unless a metric is named.

    A row is a label, or what a study calls a row. Runs of one label and seed that differ otherwise are refused.
    """
    value = value or VALUE
    runs = {run.path.resolve(): (row, run) for path in paths for row, run in _runs(Path(path))}
    rows: dict[str, dict[Seed, Run]] = {}
    chosen: dict[tuple[str, Seed], RunFolder] = {}
    unfinished = 0
    for row, run in runs.values():
        seed = run.config.get("seed")
        if not isinstance(seed, int):
            raise InputError(f"a run must have a seed, and the config.json of '{run.path}' has none; leave it out")
        if not run.finished:
            unfinished += 1
            continue
        if (other := chosen.setdefault((row, seed), run)) is not run:
            fields = list(config_differences({"one": other.config, "other": run.config}))[:3]
            raise InputError(
                f"a row must have one run for each seed, and '{row}' has two for seed {seed}, '{other.path}' and "
                f"'{run.path}', which differ in {', '.join(fields) or 'nothing'}; give the runs of one setting"
            )
        rows.setdefault(row, {})[seed] = _observation(run, value)
    if not rows:
        raise InputError(f"runs must be finished, and none of the {len(runs)} is; let them finish")
    notes = [f"{len(chosen)} runs are read by label and seed, value: '{value}'"]
    return Observations(
        rows, value, True, (*notes, *([f"{unfinished} unfinished runs are left out"] * bool(unfinished)))
    )


def _runs(path: Path) -> list[tuple[str, RunFolder]]:
    if not (path / STUDY_FILE).is_file():
        return [(str(run.config.get("label", run.path.name)), run) for run in find_runs(path)]
    _, folders = study_runs(path)
    return [
        (f"{row}, {column}" if column else row, RunFolder.open(folder))
        for (row, column), by_seed in folders.items()
        for folder in by_seed.values()
        if folder.is_dir()
    ]


def _observation(run: RunFolder, value: str) -> Run:
    records = run.metrics()
    if not any(value in record for record in records):
        known = sorted({name for record in records for name in record} - {"step", "tokens"})
        raise InputError(f"value must be a metric of each run, and '{value}' is none of '{run.path}'; known: {known}")
    # JSON has no NaN: a number that was not finite is null in the records.
    curve = tuple((r["step"], float("nan") if r[value] is None else r[value]) for r in records if value in r)
    summary = run.summary() or {}
    return Run(curve[-1][1], curve, summary.get("wall_seconds"), summary.get("tokens"))
