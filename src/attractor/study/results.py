"""Stored runs and studies as Python objects, for a notebook or a script.

    run = attractor.load("runs/gated")                  configuration, metrics, curves, and the best model
    study = attractor.compare(["runs/a", "runs/b"])     the comparison that `attractor compare runs/a runs/b` makes

A result reads its folder at every access, so the result of a run that still trains is always up to date.
"""

import shlex
from collections.abc import Mapping, Sequence
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attractor.attention.named import Mechanism, split_fields
from attractor.attention.presets import PRESETS, presets_as_data
from attractor.attention.stage import Stage
from attractor.errors import InputError, RunStopped, require_package, unknown
from attractor.report.judged_study import JudgedStudy
from attractor.report.latex import in_latex
from attractor.report.legs import legs_of, verdict_of
from attractor.report.run_figure import curves_of_runs, learning_curves, small_line
from attractor.report.study_figure import pictures
from attractor.report.study_report import write_report
from attractor.report.study_table import console_tables
from attractor.runs.index import IndexedRun, indexed_runs
from attractor.runs.quantity import Quantity
from attractor.runs.run_folder import RunFolder
from attractor.runs.study_record import STUDY_FILE, StudyRecord, read_record, stored_loss_unit, study_runs
from attractor.study.from_python import compare_in_folder, train_in_folder
from attractor.study.stored_runs import Paths, compare_runs, study_of_runs
from attractor.train.config import TrainConfig, stored_config
from attractor.train.observers import Observer
from attractor.verdict.intervals import mean_interval
from attractor.verdict.words import html_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from attractor.models.language_model import LanguageModel

LARGER = 2  # scale of a drawn curve, relative to the small curves in tables


def load(path: str | Path) -> "RunResult | StudyResult | RunsResult":
    """Return the result of the run or study in a folder, of all runs below it, or of a study's `record.json`."""
    path = Path(path)
    if path.is_file():
        return StudyResult(read_record(path))
    if (path / STUDY_FILE).is_file():
        return StudyResult(StudyRecord.read(path), study_runs(path)[1])
    if (path / "config.json").is_file():
        return RunResult(RunFolder.open(path))
    if path.is_dir() and (runs := RunsResult(path)):
        return runs
    holds = f"holds neither config.json nor {STUDY_FILE}" if path.is_dir() else "is no folder"
    raise InputError(f"path must be a run or a study, and '{path}' {holds}; give the folder that a command printed")


def compare(
    *compared: Any,
    out: str | Path | None = None,
    seeds: int | Sequence[int] | None = None,
    margin: float | None = None,
    within: str | None = None,
    thorough: bool = False,
    recall: bool = False,
    match: str = "tokens",
    workers: int | None = None,
    **settings: Any,
) -> "StudyResult":
    """Train mechanisms and compare them, or compare stored runs with the first of them, as `attractor compare` does.

        attractor.compare("standard", Mine, corpus="notes.txt", seeds=4)
        attractor.compare(["runs/one", "runs/another"])

    A mechanism is a name, a config, or a class or function that returns a module. `settings` are the options of the
    command, with underscores; of several learning rates, as lr=(1e-3, 2e-3, 4e-3), each row has its best. Of stored
    runs nothing is written unless `out` names a folder.
    """
    runs = compared[0] if len(compared) == 1 and not _is_mechanism(compared[0]) else compared
    if isinstance(runs, str | Path | RunResult):
        raise InputError(f"runs must be a list of runs, got '{runs}' alone; give [first, second]")
    runs = list(runs)
    if not compared or (runs and all(map(_is_mechanism, runs))):
        question: dict[str, Any] = {"seeds": seeds, "margin": margin, "within": within, "thorough": thorough}
        rates = settings.pop("lr") if isinstance(settings.get("lr"), Sequence) else None
        question |= {"recall": recall, "rates": rates, "match": match}
        folder = None if out is None else Path(out)
        record, failures, folder = compare_in_folder(runs, question, folder, workers, settings)
        result = StudyResult(record, study_runs(folder)[1])
        write_report(result.judged, folder, presets=presets_as_data())
        if failures:
            raise RunStopped(f"{', '.join(failures)}: {'; '.join(dict.fromkeys(failures.values()))}")
        return result
    paths = [run.path if isinstance(run, RunResult) else Path(run) for run in runs]
    if not paths:
        raise InputError("runs must be at least one run, and the list is empty; give the folders of runs")
    command = shlex.join(["attractor", "compare", *map(str, paths)])
    if out is None:
        design, by_place = study_of_runs(paths, command)
        return StudyResult(StudyRecord.of_runs(design, by_place), by_place)
    record, folder = compare_runs(paths, Path(out), command)
    result = StudyResult(record, study_runs(folder)[1])
    write_report(result.judged, folder, presets=presets_as_data())
    return result


def train_model(
    attention: Any = None, *, out: str | Path | None = None, observers: Sequence[Observer] = (), **settings: Any
) -> "RunResult":
    """Train a model as `attractor train` does, and return its run. `settings` are the options of the command.

    Each observer is called with every record of the metrics when it is written.
    """
    settings |= {} if attention is None else {"attention": attention}
    return RunResult(RunFolder.open(train_in_folder(None if out is None else Path(out), settings, observers)))


def _is_mechanism(thing: Any) -> bool:
    """Whether this is or names a mechanism, and not a run's folder."""
    if isinstance(thing, str):
        is_name = split_fields(thing)[0] in PRESETS or ".py" in thing or ("/" not in thing and ":" in thing)
        return is_name and not Path(thing, "config.json").exists()
    return isinstance(thing, Mechanism | Stage) or (callable(thing) and not isinstance(thing, RunResult))


class RunResult:
    """A stored run. `records` lists the lines of its metrics, and `metrics` is the same as a pandas table."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        folder.metrics()  # so that a damaged file is refused now
        folder.summary()

    @property
    def path(self) -> Path:
        """The folder of the run."""
        return self.folder.path

    @cached_property
    def config(self) -> TrainConfig:
        """Everything that determines the run."""
        return stored_config(self.folder.config, self.path / "config.json")

    @property
    def records(self) -> list[dict[str, Any]]:
        """The lines of the metrics in order, each with `step` and `tokens`."""
        return self.folder.metrics()

    @property
    def metrics(self) -> "DataFrame":
        """The records as a pandas table, with NaN where a record lacks a number."""
        return _data_frame(self._begun(), "records")

    @property
    def summary(self) -> dict[str, Any]:
        """The outcome of the run; empty until it is finished."""
        return self.folder.summary() or {}

    @property
    def state(self) -> str:
        """One of `not begun`, `running`, `interrupted` and `finished`."""
        return self.folder.state

    @property
    def loss_unit(self) -> str:
        """The unit of the losses in the metrics: nats, nats/byte or nats/token."""
        return stored_loss_unit(self.summary, self.folder.config)

    @property
    def best_loss(self) -> float | None:
        """The lowest validation loss; None before the first validation."""
        losses = (record.get("valid_loss") for record in self.records)
        return min((loss for loss in losses if loss is not None), default=None)

    @property
    def n_parameters(self) -> int:
        """The number of parameters; before the run is finished they are counted on a model without data."""
        if (stored := self.summary.get("n_parameters")) is not None:
            return stored
        from attractor.train.parts import without_data

        return sum(parameter.numel() for parameter in without_data(self.config.model).parameters())

    def model(self, device: str = "cpu", checkpoint: str = "best") -> "LanguageModel":
        """Return the model with its best weights, or its last ones, in evaluation mode on a device."""
        from attractor.train.finished import finished_run
        from attractor.train.hardware import resolve_device

        return finished_run(self.path, resolve_device(device), checkpoint).model.eval()

    def generate(self, prompt: str = "", max_new_tokens: int = 200, *, temperature: float = 0.8, seed: int = 0) -> str:
        """Return the prompt and its continuation by the best weights."""
        from attractor.train.samples import continuation
        from attractor.train.saved_tokenizer import tokenizer_of_run

        tokenizer = tokenizer_of_run(self.folder)
        return prompt + continuation(self.model(), tokenizer, prompt, max_new_tokens, temperature, seed)

    def evaluate(self, part: str = "valid") -> dict[str, Any]:
        """Return the loss, the accuracy and the other measures of the best weights on a validation set."""
        from attractor.train.evaluate import validate

        measured = validate(self.model(), self.config.build_task(), self.config, part)
        return {"loss": measured.loss, "accuracy": measured.accuracy, **measured.measures}

    def plot(self) -> "Figure":
        """Draw the loss and the validation loss over tokens, and the learning rate."""
        return learning_curves(self._begun(), f"{self.config.label}, seed {self.config.seed}", self.loss_unit)

    def _begun(self) -> list[dict[str, Any]]:
        records = self.records
        if not records:
            raise InputError(f"run must have begun, and '{self.path}' has no metrics yet; train it first")
        return records

    @property
    def _facts(self) -> dict[str, str]:
        step = max((record["step"] for record in self.records), default=0)
        best = self.best_loss
        return {
            "run": self.config.label,
            "parameters": f"{self.n_parameters:,}",
            "step": f"{step:,} of {self.config.n_steps:,}",
            "best validation loss": "none yet" if best is None else f"{best:.4f} {self.loss_unit}",
            "state": self.state,
        }

    def __repr__(self) -> str:
        label, parameters, step, best, state = self._facts.values()
        return (
            f"RunResult('{self.path}': {label}, {parameters} parameters, step {step}, "
            f"best validation loss {best}, {state})"
        )

    def _repr_html_(self) -> str:
        heading, *rows = {**self._facts, "folder": str(self.path)}.items()
        line = small_line([record.get("loss") for record in self.records], "training loss by step", LARGER)
        return f"{html_table(heading, rows)}\n{line}"


class RunsResult(Sequence[RunResult]):
    """All intact runs below a folder, in the order of their paths."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._runs = [run for run in indexed_runs(folder, presets_as_data()) if not run.problem]

    def __len__(self) -> int:
        return len(self._runs)

    def __getitem__(self, place: Any) -> Any:
        chosen = self._runs[place]
        if isinstance(chosen, list):
            return [self._run(run) for run in chosen]
        return self._run(chosen)

    def _run(self, run: IndexedRun) -> RunResult:
        return RunResult(RunFolder.open(self.folder / run.key))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Of each run its key, configuration, state, steps and last loss, as `attractor runs list` has them."""
        return [{"run": run.key, **run.fields} for run in self._runs]

    @property
    def table(self) -> "DataFrame":
        """The rows as a pandas table, indexed by the folder of the run."""
        return _data_frame(self.rows, "rows").set_index("run")

    def best(self) -> RunResult:
        """Return the run with the lowest validation loss."""
        losses = {number: loss for number, run in enumerate(self) if (loss := run.best_loss) is not None}
        if not losses:
            raise InputError(f"a run must have been validated, and none in '{self.folder}' was; train one further")
        best: RunResult = self[min(losses, key=lambda number: losses[number])]
        return best

    def plot(self, x: str = "tokens") -> "Figure":
        """Draw the validation losses of all runs over `tokens`, `step` or `seconds`."""
        return curves_of_runs({run.path.name: run.records for run in self}, x)

    def __repr__(self) -> str:
        return f"RunsResult('{self.folder}': {len(self)} runs)"


class StudyResult:
    """A study of stored runs: its table, verdicts and figures. `record` holds the numbers."""

    def __init__(self, record: StudyRecord, paths: Paths | None = None) -> None:
        self.record = record
        self._paths = paths

    @cached_property
    def judged(self) -> JudgedStudy:
        """The record with its statistical tests."""
        return JudgedStudy(self.record)

    @property
    def verdicts(self) -> list[str]:
        """The conclusions that the study supports, in sentences."""
        return [line.text for line in verdict_of(self.judged)]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The mean of every quantity over seeds, and its paired difference from the baseline, row by row.

        `low` and `high` are the ends of a 95% interval, which needs at least two seeds.
        """
        design = self.judged.design
        return [self._row(row, column) for column in design.columns for row in design.rows]

    @property
    def legs(self) -> list[dict[str, Any]]:
        """What each leg of a thorough comparison says of each row, with its numbers; empty of any other study."""
        return [vars(row) for leg in legs_of(self.judged).values() for row in leg]

    @property
    def table(self) -> "DataFrame":
        """The rows as a pandas table, indexed by label."""
        return _data_frame(self.rows, "rows").set_index("label")

    @property
    def runs(self) -> "list[RunResult]":
        """The runs of the study whose folders exist, row by row and seed by seed."""
        if self._paths is None:
            raise InputError("runs must be stored with the study, and a record has none; load the folder of the study")
        paths = [path for by_seed in self._paths.values() for path in by_seed.values()]
        return [RunResult(RunFolder.open(path)) for path in paths if (path / "config.json").is_file()]

    def to_latex(self) -> str:
        """Return the tables of the report for a paper."""
        return in_latex(self.judged)

    def plot(self, name: str | None = None) -> "Figure":
        """Draw a figure of the report by its name, such as `curves` or `differences`; the default is the first one."""
        drawn = {picture.name: picture for picture in pictures(self.judged)}
        if not drawn:
            raise InputError("a figure needs finished runs, and this study has none; let them finish")
        if name is not None and name not in drawn:
            raise unknown("figure", name, drawn)
        return drawn[name or next(iter(drawn))].figure

    def _row(self, row: str, column: str) -> dict[str, Any]:
        judged = self.judged
        cell = judged.cell(row, column)
        numbers: dict[str, Any] = {"label": row} | ({judged.design.columns_name: column} if column else {})
        numbers |= {"seeds": len(cell.outcomes), "parameters": judged.n_parameters(row, column)}
        for measure in judged.headlines:
            numbers |= self._numbers(row, column, measure)
        return numbers

    def _numbers(self, row: str, column: str, measure: Quantity) -> dict[str, Any]:
        """Return a quantity of one cell. A tested quantity has an interval and a difference from the baseline."""
        values = self.judged.spread(row, column, measure).by_seed
        mean = mean_interval(values) if values else None
        if not self.judged.is_tested(measure):
            return {measure.title: mean and mean.mean}
        difference = self.judged.differences.get((row, column, measure))
        prefix = "" if len(self.judged.tested) == 1 else f"{measure.title} "
        return {
            **_ends(measure.title, mean),
            **_ends(f"{prefix}difference", difference and difference.verdict.measured),
            f"{prefix}outcome": difference.verdict.outcome if difference else "baseline",
        }

    def __repr__(self) -> str:
        design = self.record.design
        n_runs = len(design.rows) * len(design.columns) * len(design.seeds)
        return (
            f"StudyResult('{design.name}': {design.title}, {self.record.finished} of {n_runs} runs finished, "
            f"in {self.judged.judged_in})"
        )

    def _repr_html_(self) -> str:
        tables = [
            html_table(table.headings, [[entry.text for entry in row] for row in table.rows], table.n_texts)
            for table in console_tables(self.judged)
        ]
        verdicts = "".join(f"<li>{escape(text)}</li>" for text in self.verdicts)
        return f"<p><b>{escape(self.record.design.title)}</b></p>{''.join(tables)}<ul>{verdicts}</ul>"


def _ends(name: str, interval: Any) -> dict[str, float | None]:
    if interval is None:
        return dict.fromkeys((name, f"{name} low", f"{name} high"))
    return {name: interval.mean, f"{name} low": interval.low, f"{name} high": interval.high}


def _data_frame(rows: Sequence[Mapping[str, Any]], without: str) -> "DataFrame":
    pandas = require_package("pandas", "pandas", "a table", f"use .{without}")
    return pandas.DataFrame(rows)
