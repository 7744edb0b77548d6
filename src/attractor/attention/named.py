"""One way to name a mechanism, in every command and in Python.

    standard                               a preset
    coupled-euler:n_steps=3,dt=0.1         a preset with other values of its fields
    mine.py:Mine, mine.py                  what a file defines, or the only mechanism that it defines
    package.module:Mine                    what an installed module defines
    mine                                   an entry point of the group `attractor.mechanisms`

NAME may be an AttentionConfig, a config of one stage, a `Whole`, or a class or function that returns a module, which
joins whole. Fields may follow it, too: `mine.py:Mine:n_groups=2`.
"""

from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from torch import nn

from attractor.attention.config import STAGES, AttentionConfig
from attractor.attention.presets import PRESETS, preset, split_fields
from attractor.attention.stage import Stage
from attractor.attention.whole import KIND, Whole
from attractor.errors import InputError, require, unknown
from attractor.files.code import imported

Mechanism = AttentionConfig | Whole
GROUP = "attractor.mechanisms"
FILE = "mechanism file"
WAYS = (
    "'attractor list' shows all, also models such as fast-slow, which --size takes; one of your own is FILE.py:NAME or "
    "package.module:NAME"
)


def mechanism(named: Any) -> str | Mechanism:
    """Return the mechanism, or the name itself where it is that of a preset. A file that it names is executed."""
    if isinstance(named, Mechanism):
        return named
    if isinstance(named, Stage) or (isinstance(named, type) and issubclass(named, Stage)):
        stage = named() if isinstance(named, type) else named
        return AttentionConfig(**{stage.stage: stage})  # type: ignore[arg-type]
    if not isinstance(named, str):
        return Whole(named)
    whole_name, fields = split_fields(named)
    place, _, name = whole_name.partition(":")
    if place in PRESETS:
        preset(named)
        return named
    if not place.endswith(".py") and "." not in place:
        entries = [entry for entry in entry_points(group=GROUP) if entry.name == place]
        if not entries:
            raise unknown("attention", named, PRESETS, see=WAYS)
        place, _, name = entries[0].value.partition(":")
    module = defined_by(place)
    chosen = mechanism(_named_in(module, name) if name else _only_one(module, place))
    assert not isinstance(chosen, str)
    return chosen.replace(**fields) if fields else chosen


def resolved(named: Any) -> Mechanism:
    """Return the mechanism, of presets too."""
    chosen = mechanism(named)
    return preset(chosen) if isinstance(chosen, str) else chosen


def label_of(named: str | Mechanism) -> str:
    """Return what a comparison calls the mechanism."""
    return named if isinstance(named, str) else named.label


def mechanism_from_dict(stored: dict[str, Any]) -> Mechanism:
    return Whole.from_dict(stored) if stored.get("kind") == KIND else AttentionConfig.from_dict(stored)


def defined_by(place: str) -> ModuleType:
    """Return the module of a mechanism's file or dotted path, once the names of its stages are those of no other."""
    before = stages()
    module = imported(place, FILE)
    refuse_taken_names(module, before)
    return module


def stages() -> dict[str, type[Stage]]:
    return {name: kind for family in STAGES.values() for name, kind in family.kinds().items()}


def refuse_taken_names(module: ModuleType, before: dict[str, type[Stage]]) -> None:
    """Refuse a stage with the name of another one that was known before, since runs are stored with it."""
    for name, stage in stages().items():
        if stage.__module__ == module.__name__:
            free = name not in before or _file_name(before[name].__module__) == _file_name(module.__name__)
            rule = "one that no other stage has, since runs are stored with it"
            require(free, f"name of a stage in '{module.__file__}'", rule, name, "rename the class")


def _file_name(module: str) -> str:
    return module.rpartition(".")[2]


def _named_in(module: ModuleType, name: str) -> Any:
    thing: Any = module
    for part in name.split("."):
        if not hasattr(thing, part):
            raise InputError(
                f"mechanism '{name}' must be defined in '{module.__file__}', and is not; it has "
                f"{', '.join(_candidates(module)) or 'none'}"
            )
        thing = getattr(thing, part)
    return thing


def _only_one(module: ModuleType, place: str) -> Any:
    candidates = _candidates(module)
    if len(candidates) != 1:
        listed = " and ".join(candidates) or "none"
        raise InputError(
            f"'{place}' must define one mechanism or be followed by a name, and it defines {listed}; give "
            f"{place}:{next(iter(candidates), 'NAME')}"
        )
    (only,) = candidates.values()
    return only


def _candidates(module: ModuleType) -> dict[str, Any]:
    """Return the mechanisms that a module defines. Modules of torch count only where there is no config."""
    defined = {
        name: thing
        for name, thing in vars(module).items()
        if isinstance(thing, Mechanism) or getattr(thing, "__module__", None) == module.__name__
    }
    configs = {
        name: thing
        for name, thing in defined.items()
        if isinstance(thing, Mechanism) or (isinstance(thing, type) and issubclass(thing, Stage))
    }
    return configs or {
        name: thing for name, thing in defined.items() if isinstance(thing, type) and issubclass(thing, nn.Module)
    }
