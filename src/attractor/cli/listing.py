"""The command that lists mechanisms, sizes, recipes, tasks and corpora by name: list. It needs no PyTorch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import fill, indent
from typing import Annotated, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from tyro.conf import Positional, arg

from attractor.cli.console import say
from attractor.cli.help import columns
from attractor.cli.phrases import PHRASES
from attractor.cli.tables import Named, tables
from attractor.errors import unknown
from attractor.numerals import with_prefix

WIDTH = 80
OPTIONS = {"mechanisms": "attention", "sizes": "size", "recipes": "recipe", "tasks": "task", "corpora": "corpus"}
SHAPE = {"d_model": "d_model", "n_heads": "heads", "d_ff": "d_ff", "max_seq_len": "length", "vocab_size": "vocab"}
TRAINING = ("n_steps", "batch_size", "seq_len", "lr", "schedule", "precision")


@dataclass(frozen=True)
class ListArguments:
    """Show what there is by name: mechanisms, sizes, recipes, tasks and corpora."""

    name: Annotated[
        Positional[str | None],
        arg(help="one of these five words for a table, or any name in full; by default everything in short"),
    ] = None


def show_list(args: ListArguments, console: Console) -> None:
    kinds = tables().kinds
    if args.name is None:
        for kind in OPTIONS:
            console.print(overview(kind, console.width))
            say(console, "")
        say(console, "For more: attractor list mechanisms, sizes or recipes, or any of these names.")
        return
    if args.name in OPTIONS:
        console.print(details(args.name, console.width))
        if args.name == "mechanisms":
            say(console, "\nParameters, and numbers cached per position, of a layer of width 512, 8 heads.")
        return
    entries = [(kind, kinds[kind][args.name]) for kind in OPTIONS if args.name in kinds[kind]]
    if not entries:
        known = [*OPTIONS, *(name for kind in OPTIONS for name in kinds[kind])]
        raise unknown("name", args.name, known, see="'attractor list' shows all")
    say(console, "\n\n".join("\n".join(in_full(kind, args.name, entry)) for kind, entry in entries))


def overview(kind: str, width: int) -> Table:
    """Return a table of all names of a kind, with their phrases and sizes."""
    amounts = {"mechanisms": "parameters", "sizes": "parameters", "recipes": "tokens"}
    last = [amounts[kind]] if kind in amounts else []
    rows = [
        [name, entry.phrase, *(with_prefix(entry.facts[amount]) for amount in last)]
        for name, entry in tables().kinds[kind].items()
    ]
    return table([kind, f"--{OPTIONS[kind]} NAME", *last], rows, width)


def mechanism_row(name: str, entry: Named) -> list[str]:
    facts = entry.facts
    stages = "  ".join(f"{stage}: {choice}" for stage, (choice, _) in facts["stages"].items() if choice != "·")
    return [name, stages or "project: Heads  score: Softmax", f"{facts['parameters']:,}", f"{facts['cache']:,}"]


def size_row(name: str, entry: Named) -> list[str]:
    shape = [str(entry.values[field]) for field in SHAPE]
    return [name, *shape[:2], entry.facts["layers"], *shape[2:], with_prefix(entry.facts["parameters"])]


def recipe_row(name: str, entry: Named) -> list[str]:
    facts = entry.facts
    numbers = [str(entry.values[field]) for field in TRAINING]
    return [name, facts["model"], facts["task"], *numbers, with_prefix(facts["tokens"])]


DETAILS: dict[str, tuple[list[str], Callable[[str, Named], list[str]]]] = {
    "mechanisms": (["mechanism", "stages unlike standard", "parameters", "cache"], mechanism_row),
    "sizes": (["size", *list(SHAPE.values())[:2], "layers", *list(SHAPE.values())[2:], "params"], size_row),
    "recipes": (
        ["recipe", "size", "task", "steps", "batch", "length", "lr", "schedule", "dtype", "tokens"],
        recipe_row,
    ),
}


def details(kind: str, width: int) -> Table:
    """Return a table of a kind with its numbers, or its overview where it has none."""
    if kind not in DETAILS:
        return overview(kind, width)
    heading, rows = DETAILS[kind]
    return table(heading, [rows(name, entry) for name, entry in tables().kinds[kind].items()], width)


def table(heading: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Table:
    rich_table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), width=min(WIDTH, width))
    for place, title in enumerate(heading):
        is_number = place > 0 and all(row[place][:1].isdigit() for row in rows)
        rich_table.add_column(title, justify="right" if is_number else "left", no_wrap=place == 0)
    for row in rows:
        rich_table.add_row(*map(Text, row))
    return rich_table


def in_full(kind: str, name: str, entry: Named) -> list[str]:
    """Return all about a name: its phrase, its size, and its fields as options."""
    facts = dict(entry.facts)
    lines = [f"{name}  (--{OPTIONS[kind]} {name})", *indent(fill(entry.phrase, WIDTH - 2), "  ").splitlines()]
    if kind == "mechanisms":
        stages = [(stage, full) for stage, (_, full) in facts.pop("stages").items()]
        counts = [
            ("parameters", f"{facts['parameters']:,} in a layer of width 512 with 8 heads"),
            ("cache", f"{facts['cache']:,} numbers per position in such a layer"),
        ]
        return [*lines, "", *columns([*stages, *counts], WIDTH)]
    shown = [
        (fact, f"{value:,}" if isinstance(value, int) else value)
        for fact, value in facts.items()
        if isinstance(value, int | str)
    ]
    fields = [
        (f"--{field.replace('_', '-')} {entry.values[field]}", PHRASES[field].text)
        for field in PHRASES
        if entry.values.get(field) is not None
    ]
    return [*lines, *(line for part in (shown, fields) if part for line in ("", *columns(part, WIDTH)))]


COMMANDS: dict[str, tuple[type, Callable[[Any, Console], None]]] = {"list": (ListArguments, show_list)}
