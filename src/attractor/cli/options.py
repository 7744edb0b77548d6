"""Turn every field of the configurations into an option, which changes that field of a recipe."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Any, Literal, get_type_hints

from attractor.cli.tables import EVAL_BATCHES
from attractor.models import FAMILIES
from attractor.tasks import TASKS
from attractor.train.config import Runtime, TrainConfig
from attractor.train.distributed import World
from attractor.train.from_recipe import RunRequest
from attractor.train.memory import ProcessLayout

NAMES = ("attention", "slow_attention", "task")  # fields whose options take the name of a configuration


def settings(without: Sequence[str] = ()) -> list[tuple[str, Any, Any]]:
    """Return an option for every field of models, training and tasks except those in `without`.

    An option that is not given leaves the recipe unchanged. Fields of the same name are one option."""
    options: dict[str, tuple[str, Any, Any]] = {}
    for config in (*FAMILIES.values(), TrainConfig, *TASKS.values()):
        hints = get_type_hints(config)
        for f in fields(config):
            if f.name not in ("model", *without):
                kind = str if f.name in NAMES else hints[f.name]
                kind = kind | Literal["auto"] if f.name == "batch_size" else kind
                options[f.name] = (f.name, kind | None, field(default=None))
    return list(options.values())


def runtime_of(args: Any) -> Runtime:
    """Return the runtime with every field that is an option of these arguments."""
    names = {setting.name for setting in fields(Runtime)}
    return Runtime(**{name: value for name, value in vars(args).items() if name in names})


@dataclass(frozen=True)
class Common:
    """The recipe of a run and how it is carried out; subclasses add an option for every field of the recipe.

    `phrases.py` says what each option means.
    """

    recipe: str | None = None
    size: str | None = None
    epochs: float | None = None
    out: Path | None = None
    device: str = Runtime.device
    threads: int | None = None
    save_every: int = Runtime.save_every
    save_every_minutes: float | None = Runtime.save_every_minutes
    keep: int = Runtime.keep
    log_every: int = Runtime.log_every
    telemetry_every: int | None = Runtime.telemetry_every
    tensorboard: bool = False
    on_divergence: str = Runtime.on_divergence
    max_rollbacks: int = Runtime.max_rollbacks

    def config(self, attention: str | None = None, seed: int | None = None) -> TrainConfig:
        """Return the recipe with the given options, and the given mechanism and seed where several are named."""
        one_of_several = {"attention": attention, "seed": seed}
        given = self.given() | {name: value for name, value in one_of_several.items() if value is not None}
        request = RunRequest(self.recipe, given, self.size, self.epochs, EVAL_BATCHES)
        return request.config(self.runtime(), self.processes())

    def processes(self) -> ProcessLayout:
        """Return how many processes carry out the run."""
        return ProcessLayout(World.from_environment().size)

    def given(self) -> dict[str, Any]:
        """Return the fields of the configuration that are given as options."""
        names = {name for name, _, _ in settings()}
        return {name: value for name, value in vars(self).items() if name in names and value is not None}

    def runtime(self) -> Runtime:
        return runtime_of(self)


def command_class(name: str, base: type, doc: str, without: Sequence[str] = ()) -> type:
    made = make_dataclass(name, settings(without), bases=(base,), frozen=True)
    made.__doc__ = doc
    return made
