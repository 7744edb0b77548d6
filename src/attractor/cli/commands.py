"""The commands, their options, and the names that options take, all known without importing a command's module."""

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from attractor.cli.definitions import POSITIONAL, definitions
from attractor.corpus.documents import CORPORA

COMMANDS = {  # each with its module and its function, whose docstring is the help of the command
    "compare": "runs.compare",
    "judge": "judge.judge",
    "race": "race.race",
    "train": "runs.train",
    "report": "evidence.report",
    "watch": "stored_runs.watch",
    "runs list": "stored_runs.runs_list",
    "runs show": "stored_runs.runs_show",
    "runs compare": "stored_runs.runs_compare",
    "runs prune": "stored_runs.runs_prune",
    "study run": "study.study_run",
    "study plan": "study.study_plan",
    "study list": "study.study_list",
    "claims": "evidence.claims",
    "data prepare": "data.data_prepare",
    "data verify": "data.data_verify",
    "list": "listing.show_list",
    "measure": "measure.measure",
    "evaluate": "evaluate.evaluate",
    "generate": "runs.generate",
    "import": "hugging_face.import_folder",
    "export": "hugging_face.export",
    "plan": "runs.plan",
    "bench": "bench.bench",
    "check": "own.check",
    "completion": "completion.show_completion",
    "convert": "hugging_face.convert",
    "init": "own.init",
    "solve": "solve.solve",
}
FURTHER = ("bench", "check", "completion", "convert", "help", "init", "solve")  # the first help only names them
GROUPS = {
    "runs": "Find, compare and prune stored runs.",
    "study": "Carry out controlled comparisons that are written down as files.",
    "data": "Prepare and check corpora on disk.",
}
# `watch` and `completion` find nothing, and `runs list` prints an object a line itself.
WITH_JSON = tuple(name for name in COMMANDS if name not in ("runs list", "watch", "completion"))
KINDS = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH", bool: "FLAG"}
# options that take a name which `list` shows, and the kind of these names
NAMED = {"recipe": "recipes", "size": "sizes", "task": "tasks"}
NAMED |= dict.fromkeys(("attention", "attention_global", "slow_attention"), "mechanisms")
UNSET = ("; by default ", "; None: ")  # what comes before the meaning of None in the docstring of a field
FROM_THE_TASK = ("vocab_size", "causal", "n_classes")  # fields of the model that the task decides


@dataclass(frozen=True)
class Option:
    """An option of a command. A setting is a field of a recipe, from which it has its default."""

    name: str
    kind: str  # INT, FLOAT, TEXT, PATH; FLAG for --name and --no-name; several words for several values
    phrase: str
    unset: str  # how None is shown
    default: str = ""  # as the help shows it; empty where the option is required or a setting
    positional: bool = False
    is_setting: bool = False
    group: str = "options"  # its heading in the help; of several owners, the first has it
    owners: Sequence[str] = ()  # the model families or tasks that have this setting; empty means all

    @property
    def dashed(self) -> str:
        return f"--{self.name}".replace("_", "-")

    @property
    def negated(self) -> str:
        return f"--no-{self.dashed[2:]}"

    @property
    def written(self) -> str:
        """The option as the help writes it."""
        if self.positional:
            return f"{self.name.upper()} ..." if self.kind.endswith("...") else self.name.upper()
        return f"--[no-]{self.dashed[2:]}" if self.kind == "FLAG" else f"{self.dashed} {self.kind}"

    def with_value(self, value: str) -> str:
        """Return the option as a line gives it this value."""
        if self.kind == "FLAG":
            return self.negated if value == "off" else self.dashed
        return f"{self.dashed} {value}"


def function_of(command: str) -> ast.FunctionDef:
    """Return the definition of a command's function."""
    module, _, function = COMMANDS[command].partition(".")
    node = definitions(f"cli.{module}").statements[function]
    assert isinstance(node, ast.FunctionDef)
    return node


def help_text(command: str) -> tuple[str, list[str]]:
    """Return what a command does, and examples: the first two paragraphs of its function's docstring."""
    about, _, examples = (ast.get_docstring(function_of(command)) or "").partition("\n\n")
    return " ".join(about.split()), [line.strip() for line in examples.splitlines()]


def arguments_of(command: str) -> type:
    """Return the class of a command's own options, without the settings."""
    annotation = function_of(command).args.args[0].annotation
    assert isinstance(annotation, ast.Name)
    arguments = getattr(definitions(f"cli.{COMMANDS[command].partition('.')[0]}"), annotation.id)
    assert isinstance(arguments, type)
    return arguments


@cache
def options_of(command: str) -> list[Option]:
    """Return the options of a command: its own, and for commands that train an option for every setting of a recipe."""
    arguments = arguments_of(command)
    order = [name for kind in arguments.__mro__ for name in vars(kind).get("__annotations__", {})]
    options = [option_of(f, arguments) for f in sorted(fields(arguments), key=lambda f: order.index(f.name))]
    options.sort(key=lambda option: not option.positional)
    if command in WITH_JSON:
        options.append(Option("json", "FLAG", "print one JSON object, and all else on standard error", "", "off"))
    if hasattr(arguments, "without") and hasattr(arguments, "several"):
        options += settings(arguments.without, arguments.several)
    return options


def option_of(f: Field[Any], arguments: type) -> Option:
    hint: Any = f.type
    metadata = hint.__metadata__ if get_origin(hint) is Annotated else ()
    hint = hint.__origin__ if metadata else hint
    phrase, unset = described(f.name, arguments.__mro__)
    if not phrase:
        phrase, unset = described(f.name, [definitions("train.config").Runtime])
    kind = kind_of(hint, f.name)
    default = "" if f.default is MISSING else unset if f.default in (None, (), "") else str(shown(f.default))
    return Option(f.name, kind, phrase, unset, default, POSITIONAL in metadata)


def described(name: str, configs: Iterable[type]) -> tuple[str, str]:
    """Return the help of a field, and how its value None is shown: the first docstring that these classes have."""
    text = next((text for config in configs if (text := vars(config).get("docstrings", {}).get(name))), "")
    words = next((words for words in UNSET if words in text), None)
    phrase, _, unset = text.rpartition(words) if words else (text, "", "none")
    return phrase, unset


@cache
def settings(without: Sequence[str], several: Sequence[str]) -> list[Option]:
    """Return an option for each field of models, of training and of tasks."""
    options, train = definitions("cli.options"), definitions("train.config")
    parts = {**train.FAMILIES, "": train.TrainConfig, **train.TASKS}
    classes = [kind for config in parts.values() for kind in config.__mro__[::-1]]
    made = []
    for name, kind, _ in options.settings(without, several):
        owners = [owner for owner, config in parts.items() if name in {f.name for f in fields(config)}]
        owners = [] if "" in owners or set(train.FAMILIES) <= set(owners) else owners
        phrase, unset = described(name, classes)
        group = group_of(name, owners)
        made.append(Option(name, kind_of(kind, name), phrase, unset, "", False, True, group, owners))
    return sorted(made, key=lambda option: GROUP_ORDER.get(option.group, len(GROUP_ORDER)))


GROUP_ORDER = {"model": 0, "attention": 1, "training": 2}


def group_of(name: str, owners: Sequence[str]) -> str:
    """Return the heading under which the help shows a setting."""
    train, model = definitions("train.config"), definitions("models.config")
    if name in {f.name for f in fields(train.TrainConfig)}:
        return "training"
    if not owners or "transformer" in owners:
        is_attention = name in (*model.OF_ATTENTION, "attention", "n_kv_heads") and name != "dropout"
        return "attention" if is_attention else "model"
    return f"models of family {owners[0]}" if owners[0] in train.FAMILIES else f"task {owners[0]}"


def kind_of(hint: Any, name: str = "") -> str:
    """Name the values of a type: `INT`, `FLOAT FLOAT`, `TEXT ...`, or `NAME` for the names that `list` shows."""
    if name in NAMED:
        return "NAME"
    if get_origin(hint) is tuple:
        inner = get_args(hint)
        return f"{kind_of(inner[0])} ..." if inner[-1] is Ellipsis else " ".join(map(kind_of, inner))
    choices = [choice for choice in get_args(hint) if choice is not NoneType]
    return KINDS[hint] if hint in KINDS else kind_of(choices[0])


def shown(value: Any) -> str | None:
    """Return the value of a field as it is written on the command line, and that of a flag as the help shows it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else None if value is None else str(value)


@cache
def names() -> Mapping[str, Mapping[str, str]]:
    """Return the names that options take, by kind, each with a phrase."""
    presets, models, train = (definitions(name) for name in ("attention.presets", "models.families", "train.config"))
    documented = {"tasks": train.TASKS, "corpora": CORPORA}
    phrases = {"mechanisms": presets.ABOUT_PRESETS, "sizes": models.ABOUT_SIZES, "recipes": train.ABOUT_RECIPES}
    return phrases | {
        kind: {name: (made.__doc__ or "").partition("\n")[0].rstrip(".") for name, made in table.items()}
        for kind, table in documented.items()
    }
