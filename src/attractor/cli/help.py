"""Write the help of commands from the tables: options in groups, each with a phrase and its default value.

The help of a training command follows the recipe, the size and the task that are named on its line."""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from attractor.cli.phrases import GROUPS, PHRASES
from attractor.cli.tables import EVAL_BATCHES, Named, Option, Tables, tables
from attractor.errors import unknown

WIDEST_NAME, NARROWEST = 26, 10  # columns of a name, and of the text beside it
GROUPS_OF_COMMANDS = {
    "data": "Prepare and check corpora on disk.",
    "runs": "Find, compare and prune stored runs.",
    "study": "Carry out controlled comparisons that are written down as files.",
}
EXAMPLES: dict[str, tuple[str, ...]] = {
    "compare": ("attractor compare standard gated --corpus notes.txt", "attractor compare runs/one runs/another"),
    "train": (
        "attractor train --attention coupled-euler --out runs/one",
        "attractor train --size fast-slow --slow-attention decay --epochs 2",
    ),
    "plan": ("attractor plan standard mla --size small", "attractor plan --recipe 1b --no-calibrate"),
    "judge": (
        "attractor judge runs.csv --margin 0.003",
        "attractor judge logs --value 'val_loss:([0-9.]+)' --out judged",
    ),
    "race": (
        "attractor race --baseline 'python train.py --seed {seed}' --row mine='python train.py --mine --seed {seed}' "
        "--value 'val_loss:([0-9.]+)' --margin .003",
    ),
    "generate": ("attractor generate runs/one --prompt 'def '",),
    "evaluate": (
        "attractor evaluate runs/one --on notes.txt --against runs/another",
        "attractor evaluate runs/one --tasks hellaswag --limit 100",
    ),
    "measure": ("attractor measure runs/one --on stdlib-docs --out measures",),
    "solve": ("attractor solve board.txt --run runs/sudoku --votes 8",),
    "bench": ("attractor bench coupled-euler mla --lengths 512 2048", "attractor bench gated --profile"),
    "import": ("attractor import Qwen3-0.6B --out runs/qwen",),
    "convert": ("attractor convert runs/qwen --attention coupled-gqa",),
    "export": ("attractor export runs/one --dtype bf16",),
    "report": ("attractor report runs/one",),
    "watch": ("attractor watch runs",),
    "claims": ("attractor claims C1 C3",),
    "list": ("attractor list mechanisms", "attractor list coupled-euler"),
    "completion": ("attractor completion > ~/.attractor-completion",),
    "data prepare": ("attractor data prepare notes.txt --tokenizer bpe:4096 --out corpora/notes",),
    "data verify": ("attractor data verify corpora/notes",),
    "runs list": ('attractor runs list --where "attention=gated lr>1e-3" --sort loss',),
    "runs show": ("attractor runs show runs/one",),
    "runs compare": ('attractor runs compare --where "corpus=notes.txt"',),
    "runs prune": ("attractor runs prune --keep best --yes",),
    "study run": ("attractor study run papers/coupled_qk/studies/coupling-ablation.py --scale laptop",),
    "study plan": ("attractor study plan papers/coupled_qk/studies/coupling-ablation.py --scale desk",),
    "study list": ("attractor study list",),
}


class Start(NamedTuple):
    """The recipe, size and task on the line of a training command, and the default values that they give."""

    description: str
    family: str
    task: str
    values: Mapping[str, str | None]


def help_of_all(width: int) -> str:
    """Return the help of `attractor`."""
    rows = [(name, first_sentence(command.summary)) for name, command in tables().commands.items()]
    about = "Train, compare and measure attention mechanisms, each as a dynamical system."
    more = (
        "attractor COMMAND --help   explain a command and its options",
        "attractor --version        print the version",
    )
    return page("usage: attractor COMMAND [options]", about, [("commands", rows)], more, width)


def help_of_group(group: str, width: int) -> str:
    """Return the help of a group of commands, such as `attractor data`."""
    rows = [(name, first_sentence(c.summary)) for name, c in tables().commands.items() if name.split()[0] == group]
    more = (f"attractor {group} COMMAND --help   explain a command and its options",)
    return page(
        f"usage: attractor {group} COMMAND [options]", GROUPS_OF_COMMANDS[group], [("commands", rows)], more, width
    )


def help_of_command(name: str, line: Sequence[str], width: int) -> str:
    """Return the help of a command, given the options on its line."""
    command = tables().commands[name]
    examples = [f"  {example}" for example in EXAMPLES[name]]
    ending = ["example" if len(examples) == 1 else "examples", *examples]
    usage = f"usage: {usage_of(name)}"
    if not command.settings:
        rows = [(option.written, with_default(option.phrase, option.default)) for option in command.options]
        return page(usage, command.summary, [("options", rows)] if rows else [], ending, width)
    start = start_of(line)
    show_all = "--help-all" in line
    groups, n_shown = [], 0
    for group, options in grouped(tables().options_of(name)).items():
        shown = [option for option in options if show_all or is_shown(option, start)]
        if shown:
            groups.append((group, [(o.written, with_default(o.phrase, value_of(o, start))) for o in shown]))
            n_shown += len(shown)
    about = f"{command.summary} In brackets: the value from {start.description}. BOOL is True or False."
    if left := len(tables().options_of(name)) - n_shown:
        ending += [
            "",
            f"{left} further options: attractor {name} --help-all. Those of a size or a task are",
            f"shown where it is named, as in attractor {name} --size fast-slow --help.",
        ]
    return page(usage, about, groups, ending, width)


def usage_of(name: str) -> str:
    """Return the usage of a command, with optional parts in brackets."""
    words = [option for option in tables().commands[name].options if option.positional]
    shown = [f"[{word.written}]" if word.default else word.written for word in words]
    rest = ["[options]"] if len(tables().options_of(name)) > len(words) else []
    return " ".join(["attractor", name, *shown, *rest])


def grouped(options: Iterable[Option]) -> dict[str, list[Option]]:
    """Return the options of a training command, grouped and ordered as their phrases."""
    by_name = {option.name: option for option in options}
    groups = {
        title: [by_name[name] for part in group for name in part if name in by_name] for title, group in GROUPS.items()
    }
    return {title: members for title, members in groups.items() if members}


def is_shown(option: Option, start: Start) -> bool:
    """Whether an option is shown without --help-all, because it is common or belongs to the chosen model or task."""
    if option.owners and not {start.family, start.task} & set(option.owners):
        return False
    return bool(option.owners) or any(option.name in group.common for group in GROUPS.values())


def start_of(line: Sequence[str]) -> Start:
    """Return the defaults from the recipe, the size and the task on the line, as `Common.config` computes them."""
    known = tables()
    task_name = word_after("task", line)
    recipe_name = word_after("recipe", line) or entry(known, "tasks", task_name or "text").facts["recipe"]
    recipe = entry(known, "recipes", recipe_name)
    family, task = recipe.facts["family"], recipe.facts["task"]
    values, description = dict(recipe.values), f"recipe {recipe_name}"
    if (size_name := word_after("size", line)) is not None:
        size = entry(known, "sizes", size_name)
        family, description = size.facts["family"], f"{description}, size {size_name}"
        values |= {name: value for name, value in size.values.items() if name not in recipe.facts["from_the_task"]}
    if task_name is not None and task_name != task:
        task, description = task_name, f"{description}, task {task_name}"
        values |= {**entry(known, "tasks", task).values, "task": task}
    if task == "text" and values.get("eval_batches") is None:
        values["eval_batches"] = str(EVAL_BATCHES)
    length, suited = (known.kinds["tasks"][task].facts[name] for name in ("seq_len", "suited_positions"))
    if suited:
        values |= {"max_seq_len": str(length)}
        values |= {} if values["positions"] in suited else {"positions": suited[0]}
    return Start(description, family, task, values | ({} if length is None else {"seq_len": str(length)}))


def entry(known: Tables, kind: str, name: str) -> Named:
    if name not in known.kinds[kind]:
        raise unknown(kind.removesuffix("s"), name, known.kinds[kind], see="'attractor list' shows all")
    return known.kinds[kind][name]


def word_after(option: str, line: Sequence[str]) -> str | None:
    """Return the value of an option on the line."""
    for place, word in enumerate(line):
        name, equals, value = word.partition("=")
        if name == f"--{option}":
            return value if equals else next(iter(line[place + 1 : place + 2]), None)
    return None


def value_of(option: Option, start: Start) -> str:
    """Return the default of an option. A setting of another model or task shows its defaults there."""
    if option.name not in tables().settings:
        return option.default
    unset = PHRASES[option.name].unset
    if option.name in start.values and (not option.owners or {start.family, start.task} & set(option.owners)):
        value = start.values[option.name]
        return unset if value is None else value
    owners = {**tables().kinds["families"], **tables().kinds["tasks"]}
    owned = [owners[owner].values[option.name] for owner in option.owners]
    return " or ".join(dict.fromkeys(unset if value is None else value for value in owned))


# --- how it is laid out -------------------------------------------------------------------------------------------


def with_default(phrase: str, default: str) -> str:
    return f"{phrase} [{default}]" if default else f"{phrase} (required)"


def first_sentence(summary: str) -> str:
    return summary.partition(". ")[0].rstrip(".")


def page(
    usage: str, about: str, groups: Sequence[tuple[str, list[tuple[str, str]]]], ending: Sequence[str], width: int
) -> str:
    lines = [usage, "", *textwrap.wrap(about, width)]
    for title, rows in groups:
        lines += ["", title, *columns(rows, width)]
    return "\n".join([*lines, "", *ending])


def columns(rows: Sequence[tuple[str, str]], width: int, widest: int = WIDEST_NAME) -> list[str]:
    """Lay out names on the left and their texts on the right."""
    left = max(1, min(widest, max(len(name) for name, _ in rows), width // 2))
    lines = []
    for name, text in rows:
        first, *others = textwrap.wrap(text, max(width - left - 4, NARROWEST), break_on_hyphens=False) or [""]
        lines += [f"  {name:<{left}}  {first}"] if len(name) <= left else [f"  {name}", f"{'':{left + 4}}{first}"]
        lines += [f"{'':{left + 4}}{other}" for other in others]
    return lines
