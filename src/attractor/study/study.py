"""A study as data: its rows and columns, scales, seeds and budget. A file defines one study.

    runs = rows x columns x seeds, all with the base's configuration but for the fields of the axes         (1)

Rows and columns are axes: labels, each with the fields of the configuration that it sets. Nothing else differs between
runs, so a difference between rows has one cause.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from attractor.attention.named import label_of, mechanism, refuse_taken_names, stages
from attractor.errors import InputError, require, require_known, unknown
from attractor.files.code import executed
from attractor.models import FAMILIES
from attractor.models.language_model import LanguageModel
from attractor.runs.quantity import PERPLEXITY, Quantity
from attractor.runs.study_record import BUDGETS, Design, Published
from attractor.tasks import TASKS
from attractor.train.config import TrainConfig

CONTROL = "uniform"
KINDS = ("training", "counts", "timing")
# The fields of a study that its design has, too.
IN_DESIGN = (
    *("name", "title", "question", "source", "baseline", "budget"),
    *("quantities", "published", "claims", "margin", "looks", "legs"),
)
# "own" stands for settings of the user's choice, which decide no claim.
SCALES = ("smoke", "laptop", "desk", "bench", "paper", "own")


@dataclass(frozen=True)
class Axis:
    """Labels, each with the fields of the configuration that it sets."""

    name: str
    values: Mapping[str, Mapping[str, Any]]

    def __post_init__(self) -> None:
        require(len(self.values) >= 1, f"axis '{self.name}'", "of at least one value", "none")
        known = known_fields()
        values = {
            label: {key: mechanism(value) if key == "attention" else value for key, value in changes.items()}
            for label, changes in self.values.items()
        }
        object.__setattr__(self, "values", values)  # with the mechanisms that names stand for
        for label, changes in self.values.items():
            plain = isinstance(label, str) and label == " ".join(label.split())
            require(plain, f"label of axis '{self.name}'", "a text without outer and double blanks", repr(label))
            for key in changes:
                require_known(f"field of axis '{self.name}' at '{label}'", key, known)

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self.values)

    def only(self, labels: Collection[str]) -> "Axis":
        return Axis(self.name, {label: changes for label, changes in self.values.items() if label in labels})

    @property
    def changed(self) -> set[str]:
        return {name for changes in self.values.values() for name in changes}


def axis(field_name: str, *values: Any, **labelled: Any) -> Axis:
    """Return an axis of one field: `axis("attention", "standard", "gated")`, `axis("lr", low=1e-3, high=1e-2)`."""
    if field_name == "attention":
        values = tuple(map(mechanism, values))
    named = {label_of(value) if field_name == "attention" else str(value): value for value in values} | labelled
    require(len(named) == len(values) + len(labelled), f"axis '{field_name}'", "without repetition", values)
    return Axis(field_name, {label: {field_name: value} for label, value in named.items()})


def mechanisms(*names: str, **changes: Any) -> dict[str, dict[str, Any]]:
    """Return the values of an axis: the mechanisms by name, all with the same further changes."""
    return {name: {"attention": name} | changes for name in names}


def longer(config: TrainConfig, factor: float) -> dict[str, Any]:
    """Return an axis value's fields that train for more steps, at the same share of warm-up."""
    steps = round(config.n_steps * factor)
    return {"n_steps": steps, "warmup_steps": round(config.warmup_steps * factor)}


def known_fields() -> set[str]:
    parts: tuple[Any, ...] = (TrainConfig, *FAMILIES.values(), *TASKS.values())
    return {f.name for part in parts for f in fields(part)} - {"seed"}


@dataclass(frozen=True)
class Scale:
    """The size of the runs. An axis here replaces the study's axis, since corpora differ between scales."""

    base: TrainConfig
    seeds: tuple[int, ...]
    rows: Axis | None = None
    columns: Axis | None = None
    rates: Mapping[str, float] = field(default_factory=dict)  # learning rates of rows, from a pilot
    tuned: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)  # fields of cells, from a grid
    elsewhere: tuple[str, ...] = ()  # corpora that finished runs are evaluated on, although they did not train on them

    def __post_init__(self) -> None:
        require_class("base of a scale", TrainConfig, self.base)
        require_class("an axis of a scale", Axis | None, self.rows, self.columns)
        object.__setattr__(self, "seeds", tuple(self.seeds))  # of a range, too
        require_seeds(self.seeds)


def require_class(what: str, kind: Any, *values: Any) -> None:
    """Refuse a value of another class, which would fail later, in a place that does not name it."""
    for value in values:
        if not isinstance(value, kind):
            names = " or ".join(option.__name__ for option in get_args(kind) or (kind,))
            given = f"{type(value).__name__}: {value!r:.60}"
            raise InputError(f"{what} must be of class {names}, got {given}; see papers/*/studies/")


def require_seeds(seeds: tuple[int, ...]) -> None:
    require(len(seeds) >= 1, "seeds", "at least one", seeds, "as --seeds 0 1 2")
    whole = all(isinstance(seed, int) and seed >= 0 for seed in seeds)
    require(whole, "seeds", "whole numbers from 0 up", " ".join(map(str, seeds)))
    require(len(set(seeds)) == len(seeds), "seeds", "without repetition", " ".join(map(str, seeds)))


@dataclass(frozen=True)
class Probe:
    """A measure of finished runs: a function of a model and its configuration, by the name of what it measures."""

    name: str
    measure: Callable[[LanguageModel, TrainConfig], dict[str, Any]]
    weights: Literal["best", "last", "first"] = "best"  # which of the run's weights; the first are not trained yet


@dataclass(frozen=True)
class Study:
    """A comparison of rows by columns, with a baseline, at one or more scales."""

    title: str
    question: str
    source: str  # the table or figure of a paper that the study reproduces
    rows: Axis
    baseline: str
    scales: Mapping[str, Scale]
    columns: Axis | None = None
    control: bool = True  # whether the control, which attends to all positions alike, is among the rows
    budget: str = "tokens"
    resize: str = "d_ff"  # the field that is resized under the budget "parameters"
    sized_by: str = ""  # the row that keeps its size under the budget "parameters"; by default the baseline
    quantities: tuple[Quantity, ...] = (PERPLEXITY,)
    probes: tuple[Probe, ...] = ()  # measures of finished runs
    kind: str = "training"  # or "counts" (parameters and FLOPs, without a run) or "timing" (seconds per step)
    published: tuple[Published, ...] = ()
    claims: tuple[str, ...] = ()
    margin: float | None = None  # the smallest difference that matters, in the unit of the first quantity
    looks: tuple[int, ...] = ()  # numbers of pairs at which the rows of one column are tested; none: after all runs
    legs: tuple[str, ...] = ()  # the further studies of a thorough comparison (`thorough.py`)
    pretrained: "Study | None" = None  # a run starts from its run of the same row, seed and scale
    name: str = field(default="", compare=False)  # the name of the file

    def __post_init__(self) -> None:
        classes = {"title": str, "question": str, "source": str, "rows": Axis, "columns": Axis | None}
        for name, kind in (classes | {"pretrained": Study | None, "scales": Mapping}).items():
            require_class(name, kind, getattr(self, name))
        require_class("every one of scales", Scale, *self.scales.values())
        named = (("budget", BUDGETS), ("kind", KINDS), ("resize", ("d_ff", "d_model")))
        for name, known in named:
            require_known("kind of study" if name == "kind" else name, getattr(self, name), known)
        for name in self.scales:
            require_known("scale", name, SCALES)
        for name in ("quantities", "published", "claims", "probes"):
            value = getattr(self, name)
            require(isinstance(value, tuple), name, "a tuple, which needs a comma: (X,)", repr(value)[:80])
        require_class("every one of quantities", Quantity, *self.quantities)
        require_class("every one of published", Published, *self.published)
        require_class("every one of probes", Probe, *self.probes)
        if not self.scales:
            raise InputError("scales must name at least one scale, and there is none; give smoke")
        for scale in self.scales:
            rows, columns = self.axes(scale)
            for field_name in ("baseline", "sized_by"):
                if (label := getattr(self, field_name)) and label not in rows.labels:
                    raise unknown(field_name, label, rows.labels)
            for row, column in self.scales[scale].tuned:
                if row not in rows.labels or column not in columns.labels:
                    cells = itertools.product(rows.labels, columns.labels)
                    raise unknown("cell in tuned", f"{row}, {column}", map(", ".join, cells))
            twice = sorted(rows.changed & columns.changed)
            if twice:
                raise InputError(
                    f"axes must name different fields, but '{rows.name}' and '{columns.name}' both set {twice[0]}; "
                    "leave it out of one"
                )
        rows_of_any = {row for scale in self.scales for row in self.axes(scale)[0].labels}
        for figure in self.published:
            require_known("row of a published figure", figure.row, rows_of_any)

    def axes(self, scale: str) -> tuple[Axis, Axis]:
        """Return the rows, with the control if the study has one, and the columns on this scale."""
        chosen = self.on(scale)
        rows, columns = chosen.rows or self.rows, chosen.columns or self.columns or Axis("", {"": {}})
        if self.control and CONTROL not in rows.labels:
            rows = Axis(rows.name, dict(rows.values) | {CONTROL: {"attention": CONTROL}})
        return rows, columns

    def on(self, scale: str) -> Scale:
        require_known("scale", scale, self.scales, see=f"of study '{self.name}'")
        return self.scales[scale]

    def configs(self, scale: str, seed: int) -> Iterator[tuple[tuple[str, str], TrainConfig]]:
        """Yield the configurations of (1) for a seed, by row and column."""
        for column in self.axes(scale)[1].labels:
            for row, config in self.column(scale, seed, column).items():
                yield (row, column), config

    def column(self, scale: str, seed: int, column: str) -> dict[str, TrainConfig]:
        """Return the configurations of a column for a seed, by row. The data of that column must be here."""
        base, rates, tuned = self.on(scale).base, self.on(scale).rates, self.on(scale).tuned
        rows, columns = self.axes(scale)
        configs = {}
        for row, changed_by_row in rows.values.items():
            tuned_rate = {"lr": rates[row]} if row in rates else {}
            of_the_cell = dict(tuned.get((row, column), {}))
            changes = tuned_rate | dict(columns.values[column]) | dict(changed_by_row) | of_the_cell
            config = base.replace(seed=seed, **changes)
            configs[row] = fitted(config, changes) if self.kind == "training" else config
        return configs

    def design(self, scale: str, seeds: tuple[int, ...], command: str) -> Design:
        rows, columns = self.axes(scale)
        return Design(
            scale=scale,
            rows_name=rows.name,
            rows=rows.labels,
            columns_name=columns.name,
            columns=columns.labels,
            seeds=seeds,
            control=CONTROL if self.control else None,
            command=command,
            **{name: getattr(self, name) for name in IN_DESIGN},
        )


def fitted(config: TrainConfig, given: Mapping[str, Any]) -> TrainConfig:
    """Set the fields that the task demands of the model, such as a vocabulary, unless `given` has them."""
    demands = config.task.build(config.seq_len, config.seed).demands
    return config.replace(**{name: value for name, value in demands.items() if name not in given})


def load_study(path: str | Path) -> Study:
    """Return the study that a file defines as STUDY. The file is Python, and is executed."""
    path = Path(path)
    if not path.exists():
        raise InputError(
            f"study must be a file that exists, and '{path}' does not; 'attractor study list' shows those here"
        )
    if not path.is_file() or path.suffix != ".py":
        raise InputError(
            f"study must be a Python file, and '{path}' is none; give one whose name ends in .py, as 'attractor study "
            "list' shows them"
        )
    before = stages()
    module = executed(path, "study file")
    refuse_taken_names(module, before)
    study = getattr(module, "STUDY", None)
    if not isinstance(study, Study):
        raise InputError(f"'{path}' must define STUDY, a Study, and has {type(study).__name__}; see papers/*/studies/")
    return replace(study, name=path.stem)
