"""Lay out the help of commands: options in groups, each with a phrase and its default value.

The help of a training command follows the recipe, the size and the task that are named on its line."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from attractor.cli.commands import COMMANDS, FROM_THE_TASK, FURTHER, GROUPS, Option, help_text, options_of, shown
from attractor.cli.definitions import definitions
from attractor.errors import require_known

WIDEST_NAME, NARROWEST = 26, 10  # columns of a name, and of the text beside it
COMMON = (  # options of training commands that are shown without --help-all
    *("resume", "recipe", "config", "size", "epochs", "out", "device", "mechanisms", "seeds", "within", "workers"),
    *("margin", "thorough", "recall", "match"),
    *("devices", "calibrate", "json", "d_model", "n_layers", "n_heads", "d_ff", "dropout"),
    *("attention", "n_kv_heads", "qk_norm", "task", "seed", "start", "n_steps", "batch_size"),
    *("seq_len", "lr", "warmup_steps", "optimizer", "weight_decay", "clip", "precision", "compile"),
    "corpus",
)


class Start(NamedTuple):
    """The recipe, size and task on the line of a training command, and the default values that they give."""

    description: str
    family: str
    task: str
    values: Mapping[str, str | None]


def help_of_all(width: int, further: bool = False) -> str:
    """Return the help of `attractor`: the commands that a newcomer needs, or those that this help only names."""
    about = "Train, compare and measure attention mechanisms, each as a dynamical system."
    first_words = dict.fromkeys(command.split()[0] for command in COMMANDS)
    texts = {name: GROUPS.get(name) or help_text(name)[0] for name in first_words}
    texts["help"] = "Show this help, or that of a command, as --help does."
    rows = [(name, first_sentence(text)) for name, text in texts.items() if further or name not in FURTHER]
    more = (
        *([] if further else textwrap.wrap(f"more: {', '.join(FURTHER)} (attractor help --all)", width)),
        "attractor COMMAND --help   explain a command and its options",
        "attractor --version        print the version",
    )
    return page("usage: attractor COMMAND [options]", about, [("commands", rows)], more, width)


def help_of_group(group: str, width: int) -> str:
    """Return the help of a group of commands, such as `attractor data`."""
    rows = [(name, first_sentence(help_text(name)[0])) for name in COMMANDS if name.split()[0] == group]
    more = (f"attractor {group} COMMAND --help   explain a command and its options",)
    return page(f"usage: attractor {group} COMMAND [options]", GROUPS[group], [("commands", rows)], more, width)


def help_of_command(command: str, line: Sequence[str], width: int) -> str:
    """Return the help of a command, given the options on its line."""
    (about, examples), options = help_text(command), options_of(command)
    ending = ["example" if len(examples) == 1 else "examples", *(f"  {example}" for example in examples)]
    start = start_of(line) if any(option.is_setting for option in options) else None
    listed = [option for option in options if start is None or "--help-all" in line or is_shown(option, start)]
    groups: dict[str, list[tuple[str, str]]] = {}
    for option in listed:
        value = option.default if start is None else value_of(option, start)
        text = f"{option.phrase} [{value}]" if value else f"{option.phrase} (required)"
        groups.setdefault(heading_of(option, start), []).append((option.written, text))
    if start is not None:
        about += f" In brackets: the value from {start.description}."
    if left := len(options) - len(listed):
        ending += [
            "",
            f"{left} further options: attractor {command} --help-all. Those of a size or a task are",
            f"shown where it is named, as in attractor {command} --size fast-slow --help.",
        ]
    return page(f"usage: {usage_of(command)}", about, list(groups.items()), ending, width)


def usage_of(command: str) -> str:
    """Return the usage of a command, with optional parts in brackets."""
    options = options_of(command)
    words = [option for option in options if option.positional]
    written = [f"[{word.written}]" if word.default else word.written for word in words]
    return " ".join(["attractor", command, *written, *(["[options]"] if len(options) > len(words) else [])])


def heading_of(option: Option, start: Start | None) -> str:
    """Return the heading of an option: its group, but that of the chosen model or task where several have it."""
    chosen = () if start is None else (start.family, start.task)
    owner = next((owner for owner in option.owners if owner in chosen), None)
    return option.group if owner is None else option.group.replace(option.owners[0], owner)


def is_shown(option: Option, start: Start) -> bool:
    """Whether an option is shown without --help-all, because it is common or belongs to the chosen model or task."""
    return bool({start.family, start.task} & set(option.owners)) if option.owners else option.name in COMMON


def start_of(line: Sequence[str]) -> Start:
    """Return the defaults from the recipe, the size and the task on the line, as `Common.config` computes them."""
    known = definitions("train.config")
    task_name = word_after("task", line)
    of_task = known.RECIPE_OF_TASK.get(task_name, known.DEFAULT_RECIPE)
    recipe_name = word_after("recipe", line) or of_task
    task = None if task_name is None else entry("task", known.TASKS, task_name)()
    recipe = entry("recipe", known.RECIPES, recipe_name)
    model, description = recipe.model, f"recipe {recipe_name}"
    if (size := word_after("size", line)) is not None:
        model, description = entry("size", known.SIZES, size), f"{description}, size {size}"
    if task is None or task.kind == recipe.task.kind:
        task = recipe.task
    else:
        description += f", task {task.kind}"
    values = {f.name: shown(getattr(part, f.name)) for part in (model, task, recipe) for f in fields(part)}
    values |= {"task": task.kind, **dict.fromkeys(FROM_THE_TASK)}
    if task.kind == "text" and recipe.eval_batches is None:
        values["eval_batches"] = str(definitions("train.from_recipe").EVAL_BATCHES)
    if task.suited_positions:
        values["max_seq_len"] = str(task.seq_len)
        if model.positions not in task.suited_positions:
            values["positions"] = task.suited_positions[0]
    if task.seq_len is not None:
        values["seq_len"] = str(task.seq_len)
    return Start(description, model.family, task.kind, values)


def entry(kind: str, table: Mapping[str, Any], name: str) -> Any:
    require_known(kind, name, table, see="'attractor list' shows all")
    return table[name]


def word_after(option: str, line: Sequence[str]) -> str | None:
    """Return the value of an option on the line."""
    for place, word in enumerate(line):
        name, equals, value = word.partition("=")
        if name == f"--{option}":
            return value if equals else next(iter(line[place + 1 : place + 2]), None)
    return None


def value_of(option: Option, start: Start) -> str:
    """Return the default of an option. A setting of another model or task shows its defaults there."""
    if not option.is_setting:
        return option.default
    if not option.owners or {start.family, start.task} & set(option.owners):
        values = [start.values[option.name]]
    else:
        known = definitions("train.config")
        owners = {**known.FAMILIES, **known.TASKS}
        values = [shown(getattr(owners[owner], option.name)) for owner in option.owners]
    return " or ".join(dict.fromkeys(option.unset if value is None else value for value in values))


def first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".")


def page(
    usage: str, about: str, groups: Sequence[tuple[str, list[tuple[str, str]]]], ending: Sequence[str], width: int
) -> str:
    lines = [usage, "", *textwrap.wrap(about, width)]
    for title, rows in groups:
        lines += ["", title, *columns(rows, width)]
    return "\n".join([*lines, "", *ending])


def columns(rows: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Lay out names on the left and their texts on the right."""
    left = max(1, min(WIDEST_NAME, max(len(name) for name, _ in rows), width // 2))
    lines = []
    for name, text in rows:
        first, *others = textwrap.wrap(text, max(width - left - 4, NARROWEST), break_on_hyphens=False) or [""]
        lines += [f"  {name:<{left}}  {first}"] if len(name) <= left else [f"  {name}", f"{'':{left + 4}}{first}"]
        lines += [f"{'':{left + 4}}{other}" for other in others]
    return lines
