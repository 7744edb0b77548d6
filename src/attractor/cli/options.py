"""Options that several commands share, and an option for every field of the configurations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Literal, get_args

import torch

from attractor.attention.named import Mechanism
from attractor.cli.config_file import WHOLE, settings_in
from attractor.cli.parsing import refuse_given
from attractor.errors import unknown
from attractor.models import FAMILIES
from attractor.tasks import KINDS
from attractor.train.config import Runtime, TrainConfig, stored_config
from attractor.train.distributed import World
from attractor.train.from_recipe import EVAL_BATCHES, config_from_recipe
from attractor.train.memory import ProcessLayout

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MEASURED = DTYPES | {"fp64": torch.float64}  # for Jacobians
NONE = Literal["none"]  # a number that a person unsets, where None itself says that the option is not given
# fields whose options take the name of a configuration
NAMES = ("attention", "attention_global", "slow_attention", "task")


def settings(without: Sequence[str] = (), several: Sequence[str] = ()) -> list[tuple[str, Any, Any]]:
    """Return an option for every field of models, training and tasks except those in `without`.

    An option that is not given is None, which leaves the recipe unchanged; "none" sets a field to None. Fields of the
    same name are one option. Those in `several` take any number of values."""
    options: dict[str, tuple[str, Any, Any]] = {}
    for config in (*FAMILIES.values(), TrainConfig, *KINDS):
        for f in fields(config):
            if f.name not in ("model", *without):
                kind: Any = str if f.name in NAMES else f.type
                kind = kind | Literal["auto"] if f.name == "batch_size" else kind
                may_be_none = NoneType in get_args(kind) and {int, float} & {*get_args(kind)}
                kind = kind | NONE if may_be_none else kind
                kind = tuple[kind, ...] if f.name in several else kind
                options[f.name] = (f.name, kind | None, field(default=None))
    return list(options.values())


def dtype_of(name: str | None, known: Mapping[str, torch.dtype] = DTYPES) -> torch.dtype | None:
    if name is not None and name not in known:
        raise unknown("precision", name, known)
    return None if name is None else known[name]


def runtime_of(args: Any) -> Runtime:
    """Return the runtime with every field that is an option of these arguments."""
    names = {setting.name for setting in fields(Runtime)}
    return Runtime(**{name: value for name, value in vars(args).items() if name in names})


@dataclass(frozen=True, kw_only=True)
class OfRun:
    """Options of the commands that load the model of a run."""

    checkpoint: str = "best"
    """checkpoint of a run: best or last"""
    code: str | None = None
    """FILE.py or module that defines the run's own mechanism; it is executed"""


@dataclass(frozen=True, kw_only=True)
class OfTrainedModel(OfRun):
    """Options of the commands that compute with the model of a run."""

    device: str = Runtime.device


@dataclass(frozen=True, kw_only=True)
class Carrying:
    """How runs are carried out: fields of `Runtime`, which also has their help."""

    device: str = Runtime.device
    threads: int | None = None
    save_every: int = Runtime.save_every
    save_every_minutes: float | None = Runtime.save_every_minutes
    keep: int = Runtime.keep
    on_divergence: str = Runtime.on_divergence
    max_rollbacks: int = Runtime.max_rollbacks


@dataclass(frozen=True)
class Common(Carrying):
    """The recipe of a run and how it is carried out. The parser adds an option for every setting of a recipe."""

    without: ClassVar[Sequence[str]] = ()  # the fields that are no options
    several: ClassVar[Sequence[str]] = ()  # the fields whose options take several values

    recipe: str | None = None
    """named settings, which all other options change; by default the task's"""
    config: Path | None = None
    """TOML of options, or a run's config.json"""
    size: str | None = None
    """a named model instead of the recipe's; by default the recipe's"""
    epochs: float | None = None
    """passes over the data, instead of n_steps"""
    out: Path | None = None
    """folder to write; by default a new one in runs/"""
    log_every: int = Runtime.log_every
    telemetry_every: int | None = Runtime.telemetry_every
    tensorboard: bool = False

    def configured(self, attention: str | Mechanism | None = None, seed: int | None = None) -> TrainConfig:
        """Return the recipe with the given options, and the given mechanism and seed where several are named."""
        one_of_several = {"attention": attention, "seed": seed}
        given = self.given() | {name: value for name, value in one_of_several.items() if value is not None}
        stored = {} if self.config is None else settings_in(self.config)
        recipe: str | TrainConfig | None = self.recipe
        if self.config is not None and WHOLE in stored:
            refuse_given(self, ["recipe"], "with --config of a whole configuration")
            if "attention" in given and isinstance(stored[WHOLE], dict):  # code of the stored one need not be there
                stored |= {WHOLE: {**stored[WHOLE], "attention": "standard"}}
            recipe = stored_config(stored, self.config)
        eval_batches = None if isinstance(recipe, TrainConfig) else EVAL_BATCHES
        return config_from_recipe(
            given, runtime_of(self), self.processes(), recipe, self.size, self.epochs, eval_batches
        )

    def processes(self) -> ProcessLayout:
        """Return how many processes carry out the run."""
        return ProcessLayout(World.from_environment().size)

    @classmethod
    def settings(cls) -> list[tuple[str, Any, Any]]:
        """Return the options that are fields of recipes."""
        return settings(cls.without, cls.several)

    def given(self) -> dict[str, Any]:
        """Return the fields of the configuration that are given as options."""
        kinds = {name: kind for name, kind, _ in settings()}
        given = {name: value for name, value in vars(self).items() if name in kinds and value is not None}
        unset = {name for name, value in given.items() if value == "none" and NONE in get_args(kinds[name])}
        return given | dict.fromkeys(unset)
