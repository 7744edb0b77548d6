"""What there is by name: mechanisms with their choices and costs, sizes, recipes, tasks and corpora."""

from dataclasses import fields

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attractor.attention import PRESETS, AttentionConfig, Cache, build
from attractor.attention.config import STAGES
from attractor.attention.stage import Stage
from attractor.corpus.documents import CORPORA
from attractor.models import SIZES
from attractor.numerals import with_prefix
from attractor.tasks import TASKS
from attractor.train.config import RECIPES, TrainConfig

D_MODEL, N_HEADS = 512, 8


def print_catalogue(console: Console) -> None:
    mechanisms = table("attention", *STAGES, "parameters", "cache")
    for name, config in PRESETS.items():
        choices = [choice(stage, getattr(config, stage)) for stage in STAGES]
        mechanisms.add_row(*map(Text, [name, *choices, f"{n_parameters(config):,}", f"{cache_numbers(config):,}"]))
    console.print(mechanisms)
    known = {f.name for config in PRESETS.values() for stage in STAGES for f in fields(getattr(config, stage))}
    say(
        console,
        f"Parameters of a layer and numbers it caches for each position, at d_model={D_MODEL}, n_heads={N_HEADS}. "
        f"attractor.attention.build takes every field of a preset's stages: {', '.join(sorted(known))}, dropout.",
    )
    sizes = table("size", "d_model", "heads", "layers", "d_ff", "positions", "vocabulary", "parameters")
    for name, size in SIZES.items():
        with torch.device("meta"):
            count = sum(p.numel() for p in size.build().parameters())
        numbers = (size.d_model, size.n_heads, size.depth, size.d_ff, size.max_seq_len, size.vocab_size)
        sizes.add_row(name, *map(str, numbers), f"{count:,}")
    console.print(sizes)
    recipes = table("recipe", "steps", "batch", "seq_len", "lr", "schedule", "precision", "tokens")
    for name, recipe in RECIPES.items():
        recipes.add_row(name, *map(Text, recipe_cells(recipe)))
    console.print(recipes)
    say(console, f"Tasks: {', '.join(TASKS)}. Corpora: {', '.join(CORPORA)}, or the path of a text file or folder.")


def say(console: Console, text: str) -> None:
    console.print(f"\n{text}\n", markup=False, highlight=False)


def table(first: str, *others: str) -> Table:
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    made.add_column(first, no_wrap=True)
    for name in others:
        made.add_column(name, justify="left" if name in STAGES else "right", overflow="fold")
    return made


def choice(name: str, stage: Stage) -> str:
    """A stage's class and the fields that its preset sets; what standard attention does is left out."""
    usual = type(getattr(AttentionConfig(), name))
    values = {f.name: getattr(stage, f.name) for f in fields(stage)}
    default = type(stage)()
    said = [] if type(stage) is usual else [type(stage).__name__]
    said += [f"{field}={value}" for field, value in values.items() if value != getattr(default, field)]
    return " ".join(said) or "·"


def n_parameters(config: AttentionConfig) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in build(config, D_MODEL, N_HEADS).parameters())


def cache_numbers(config: AttentionConfig) -> int:
    """Measured on what a layer really stores for one position."""
    cache = Cache()
    with torch.no_grad():
        build(config, D_MODEL, N_HEADS)(torch.zeros(1, 1, D_MODEL), cache=cache)
    return cache.n_numbers


def recipe_cells(recipe: TrainConfig) -> list[str]:
    tokens = recipe.n_steps * recipe.batch_size * recipe.seq_len
    numbers = [f"{recipe.n_steps:,}", str(recipe.batch_size), str(recipe.seq_len), f"{recipe.lr:g}"]
    return [*numbers, recipe.schedule, recipe.precision, with_prefix(tokens)]
