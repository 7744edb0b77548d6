"""Tables of all commands, options and names, which the command line reads without importing PyTorch.

`python -m attractor.cli.write_tables` writes the tables into a file, and a test compares them with the code. So help,
lists and completion are printed at once and agree with the code.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

# Published recipes validate on whole held-out sets, which may take longer than the training, and studies keep that.
# Runs of `attractor train` on text validate on as many batches as the studies' smaller scales.
EVAL_BATCHES = 64
FILE = Path(__file__).with_name("tables.json")


@dataclass(frozen=True)
class Option:
    """An option of a command. A setting, which is a field of a recipe, has no default of its own."""

    name: str
    kind: str  # INT, FLOAT, TEXT, PATH, BOOL; FLAG for --name and --no-name; several words for several values
    phrase: str = ""
    default: str = ""  # as the help shows it; empty where the option is required or a setting
    positional: bool = False
    owners: Sequence[str] = ()  # the model families or tasks that have this setting; empty means all

    @property
    def written(self) -> str:
        """The option as it is written on the line."""
        dashed = self.name.replace("_", "-")
        if self.positional:
            return f"{self.name.upper()} ..." if self.kind.endswith("...") else self.name.upper()
        if self.kind == "FLAG":
            return f"--[no-]{dashed}"
        return f"--{dashed} {self.kind}"


@dataclass(frozen=True)
class Command:
    summary: str
    options: Sequence[Option]
    settings: bool = False  # whether the fields of recipes are options as well
    without: Sequence[str] = ()  # the fields that are no options


@dataclass(frozen=True)
class Named:
    """A mechanism, a size, a recipe, a task, a corpus or a family, by its name."""

    phrase: str = ""
    values: Mapping[str, str | None] = field(default_factory=dict)  # its fields as the help shows them
    facts: Mapping[str, Any] = field(default_factory=dict)  # counts and other facts of its kind


@dataclass(frozen=True)
class Tables:
    commands: Mapping[str, Command]
    settings: Mapping[str, Option]
    kinds: Mapping[str, Mapping[str, Named]]  # "mechanisms", "sizes", "recipes", "tasks", "corpora", "families"
    presets: Mapping[str, Mapping[str, Any]]  # every mechanism as a configuration stores it

    def options_of(self, command: str) -> list[Option]:
        entry = self.commands[command]
        settings = self.settings.values() if entry.settings else ()
        return [*entry.options, *(option for option in settings if option.name not in entry.without)]


@cache
def tables() -> Tables:
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    return Tables(
        commands={
            name: Command(**command | {"options": [Option(**option) for option in command["options"]]})
            for name, command in stored["commands"].items()
        },
        settings={name: Option(name=name, **option) for name, option in stored["settings"].items()},
        kinds={
            kind: {name: Named(**entry) for name, entry in entries.items()} for kind, entries in stored["kinds"].items()
        },
        presets=stored["presets"],
    )
