"""The command that lists mechanisms, sizes, recipes, tasks and corpora by name: list. Only counts need PyTorch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from textwrap import fill, indent
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from tyro.conf import Positional

from attractor.cli.commands import FROM_THE_TASK, names, options_of, shown
from attractor.cli.console import answer, say
from attractor.cli.definitions import definitions
from attractor.cli.help import columns
from attractor.console import temporary_text, with_prefix
from attractor.errors import unknown

if TYPE_CHECKING:
    from attractor.attention import AttentionConfig

WIDTH = 80
D_MODEL, N_HEADS = 512, 8  # of the layer whose parameters and cache are counted
OPTIONS = {"mechanisms": "attention", "sizes": "size", "recipes": "recipe", "tasks": "task", "corpora": "corpus"}
SHAPE = {"d_model": "d_model", "n_heads": "heads", "d_ff": "d_ff", "max_seq_len": "length", "vocab_size": "vocab"}
TRAINING = ("n_steps", "batch_size", "seq_len", "lr", "schedule", "precision")


@dataclass(frozen=True)
class ListArguments:
    name: Positional[str | None] = None
    """one of these five words for a table, or any name in full; by default everything in short"""


def show_list(args: ListArguments, console: Console) -> None:
    """Show what there is by name: mechanisms, sizes, recipes, tasks and corpora.

    attractor list mechanisms
    attractor list coupled-euler
    """
    answer(console, **{kind: dict(phrases) for kind, phrases in names().items()})
    if args.name is None:
        for kind in OPTIONS:
            console.print(overview(kind, console.width))
            say(console, "")
        say(console, "For more: attractor list mechanisms, sizes or recipes, or any of these names.")
        return
    if args.name in OPTIONS:
        with temporary_text("loading PyTorch ..."):
            table_of_kind = details(args.name, console.width)
        console.print(table_of_kind)
        if args.name == "mechanisms":
            say(console, "\nParameters, and numbers cached per position, of a layer of width 512, 8 heads.")
        return
    kinds = [kind for kind in OPTIONS if args.name in names()[kind]]
    if not kinds:
        known = [*OPTIONS, *(name for kind in OPTIONS for name in names()[kind])]
        raise unknown("name", args.name, known, see="'attractor list' shows all")
    with temporary_text("loading PyTorch ..."):
        texts = ["\n".join(in_full(kind, args.name)) for kind in kinds]
    say(console, "\n\n".join(texts))


def overview(kind: str, width: int) -> Table:
    """Return a table of all names of a kind, with their phrases."""
    return table([kind, f"--{OPTIONS[kind]} NAME"], list(names()[kind].items()), width)


def n_parameters(size: str) -> int:
    from attractor.models import SIZES
    from attractor.train.parts import without_data

    return sum(parameter.numel() for parameter in without_data(SIZES[size]).parameters())


def layer_counts(config: "AttentionConfig") -> tuple[int, int]:
    """Return the parameters of a layer, and how many numbers it caches for one position."""
    import torch

    from attractor.attention import Cache, build

    layer, cache = build(config, D_MODEL, N_HEADS), Cache()
    with torch.no_grad():
        layer(torch.zeros(1, 1, D_MODEL), cache=cache)
    return sum(parameter.numel() for parameter in layer.parameters()), cache.n_numbers


def mechanism_row(name: str) -> list[str]:
    from attractor.attention import PRESETS
    from attractor.attention.config import STAGES, unlike_standard

    choices = {stage: unlike_standard(stage, getattr(PRESETS[name], stage)) for stage in STAGES}
    stages = "  ".join(f"{stage}: {choice}" for stage, choice in choices.items() if choice)
    return [name, stages or "project: Heads  score: Softmax", *(f"{n:,}" for n in layer_counts(PRESETS[name]))]


def size_row(name: str) -> list[str]:
    from attractor.models import SIZES

    shape = [str(getattr(SIZES[name], field)) for field in SHAPE]
    return [name, *shape[:2], SIZES[name].depth, *shape[2:], with_prefix(n_parameters(name))]


def recipe_row(name: str) -> list[str]:
    recipe = definitions("train.config").RECIPES[name]
    tokens = recipe.n_steps * recipe.batch_size * recipe.seq_len
    numbers = [str(shown(getattr(recipe, field))) for field in TRAINING]
    return [name, size_of(recipe), recipe.task.kind, *numbers, with_prefix(tokens)]


def size_of(recipe: Any) -> str:
    """Return the name of a recipe's model, whatever positions its task suggests, or `own`."""
    sizes = definitions("train.config").SIZES
    return next(
        (name for name, size in sizes.items() if size.replace(positions=recipe.model.positions) == recipe.model), "own"
    )


DETAILS: dict[str, tuple[list[str], Callable[[str], list[str]]]] = {
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
    heading, row = DETAILS[kind]
    return table(heading, [row(name) for name in names()[kind]], width)


def table(heading: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> Table:
    rich_table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), width=min(WIDTH, width))
    for place, title in enumerate(heading):
        is_number = place > 0 and all(row[place][:1].isdigit() for row in rows)
        rich_table.add_column(title, justify="right" if is_number else "left", no_wrap=place == 0)
    for row in rows:
        rich_table.add_row(*map(Text, row))
    return rich_table


def in_full(kind: str, name: str) -> list[str]:
    """Return all about a name: its phrase, its size, and its fields as options."""
    known = definitions("train.config")
    lines = [f"{name}  (--{OPTIONS[kind]} {name})", *indent(fill(names()[kind][name], WIDTH - 2), "  ").splitlines()]
    if kind == "mechanisms":
        return [*lines, "", *columns(stages_in_full(name), WIDTH)]
    facts: list[tuple[str, str]] = []
    parts: list[Any] = []
    if kind == "sizes":
        parts = [known.SIZES[name]]
        facts = [("family", parts[0].family), ("parameters", f"{n_parameters(name):,}")]
    elif kind == "recipes":
        recipe = known.RECIPES[name]
        parts = [recipe.model, recipe.task, recipe]
        tokens = f"{recipe.n_steps * recipe.batch_size * recipe.seq_len:,}"
        facts = [
            ("family", recipe.model.family),
            ("task", recipe.task.kind),
            ("size", size_of(recipe)),
            ("tokens", tokens),
        ]
    elif kind == "tasks":
        parts = [known.TASKS[name]()]
        facts = [("recipe", known.RECIPE_OF_TASK.get(name, known.DEFAULT_RECIPE))]
    left_out = FROM_THE_TASK if kind == "recipes" else ()
    values = {f.name: shown(getattr(part, f.name)) for part in parts for f in fields(part) if f.name not in left_out}
    options = [
        (option.with_value(value), option.phrase)
        for option in options_of("train")
        if option.is_setting and (value := values.get(option.name)) is not None and option.name != "task"
    ]
    return [*lines, *(line for part in (facts, options) if part for line in ("", *columns(part, WIDTH)))]


def stages_in_full(name: str) -> list[tuple[str, str]]:
    """Return the class of each stage of a mechanism with all its fields, and the size of a layer."""
    from attractor.attention import PRESETS
    from attractor.attention.config import STAGES

    rows = []
    for stage in STAGES:
        config = getattr(PRESETS[name], stage)
        values = " ".join(f"{f.name}={getattr(config, f.name)}" for f in fields(config))
        rows.append((stage, f"{type(config).__name__} {values}"))
    parameters, cache = layer_counts(PRESETS[name])
    layer = f"a layer of width {D_MODEL} with {N_HEADS} heads"
    return [*rows, ("parameters", f"{parameters:,} in {layer}"), ("cache", f"{cache:,} numbers per position there")]
