"""A catalogue of everything that has a name: mechanisms with their costs, sizes, recipes, tasks and corpora.

`python -m attractor.cli.write_tables` stores the catalogue, for `attractor list` and the help.
"""

from dataclasses import fields
from typing import Any

import torch

from attractor.attention import PRESETS, AttentionConfig, Cache, build
from attractor.attention.config import STAGES
from attractor.attention.stage import Stage
from attractor.corpus.documents import CORPORA
from attractor.models import FAMILIES, SIZES
from attractor.models.config import ModelConfig
from attractor.models.shapes_only import shapes_only
from attractor.tasks import TASKS, TaskConfig
from attractor.train.config import DEFAULT_RECIPE, RECIPE_OF_TASK, RECIPES, TrainConfig
from attractor.train.parts import without_data

D_MODEL, N_HEADS = 512, 8
FROM_THE_TASK = ("vocab_size", "causal", "n_classes")  # fields of the model that the task decides

MECHANISMS = {
    "standard": "softmax attention, keys and values per head",
    "gqa": "four query heads share a key and value head",
    "mqa": "all query heads share one key and value head",
    "mla": "keys and values from a small latent vector",
    "differential": "difference of two softmax maps",
    "differential-original": "the same, weighted as in its first paper",
    "differential-v2": "the same, with a weight for every token",
    "mlp-only": "an MLP on queries, no coupling (control)",
    "coupled-euler": "queries and keys move each other, Euler step",
    "coupled-hamiltonian": "queries and keys move each other by leapfrog",
    "coupled-symplectic": "leapfrog whose force is a gradient",
    "coupled-linear": "an Euler step whose force is one matrix",
    "coupled-differential": "coupled-euler, then differential",
    "coupled-gqa": "coupled-euler with keys shared as in gqa",
    "coupled-mla": "coupled-euler with keys from mla's latent",
    "psiqrh": "phase attention over one wide shared latent",
    "phase": "queries and keys turned by a learned phase",
    "gated": "a sigmoid gate on what every head returns",
    "coupled-gated": "coupled-euler with gated output",
    "decay": "linear attention with a learned decay",
    "uniform": "the mean of visible values (control)",
}
MODELS = {
    "tiny": "Transformer for associative recall (CoupledQK)",
    "small": "Transformer of 60M parameters (CoupledQK)",
    "medium": "Transformer of 152M parameters (CoupledQK)",
    "large": "Transformer of 455M parameters (CoupledQK)",
    "large-354m": "large with a narrower MLP",
    "1b": "Transformer of the shape of Qwen3 (QuacK)",
    "1b-100m": "1b at a tenth of its parameters",
    "1b-20m": "1b at a fiftieth of its parameters",
    "1b-2m": "1b at a five-hundredth of its parameters",
    "fast-slow": "a fast path and a slow path, coupled (FastSlow)",
    "fast-slow-small": "FastSlow in small's width, with a window of 256",
    "fast-slow-medium": "FastSlow in medium's width, with a window of 256",
    "fast-slow-long": "FastSlow on long sequences of bytes, with a window of 256",
    "dense-minimind": "a dense rival of fast-slow, wider",
    "dense-gemma": "a dense rival of fast-slow, narrower",
    "itrsa": "one attention block iterated 16 times, for Sudoku",
    "itrsa-prenorm": "a whole pre-norm block iterated 16 times",
    "akorn": "coupled oscillators on spheres, iterated (AKOrN)",
    "recursive": "a slow answer and a fast reasoning state (TRM)",
}
SETTINGS = {
    "laptop": "a small model on text: a minute on two cores",
    "small": "CoupledQK's training of its small model",
    "medium": "CoupledQK's training of its medium model",
    "large": "CoupledQK's training of its large model",
    "mqar": "CoupledQK's associative recall",
    "glue": "CoupledQK's fine-tuning on SST-2",
    "1b": "QuacK's training at a high rate with Muon",
    "fast-slow": "FastSlow's training of its small model",
    "sudoku": "Sudoku with an iterated model (Jacobians)",
    "akorn": "Sudoku with AKOrN, as its authors train it",
    "prenorm": "Sudoku with the iterated model of AKOrN's authors",
    "recursive": "Sudoku with a recursive model (TRM)",
    "solver": "Sudoku with a small recursive model, for one core",
    "psiqrh": "PsiQRH's training of its language model",
}
LEARNED = {
    "text": "predict the next token of a corpus; measured by perplexity",
    "mqar": "recall the values of keys seen before; measured by accuracy",
    "needle": "recall a value from a line in real text; measured by accuracy",
    "sudoku": "fill in boards; measured by the share of boards solved",
    "glue": "classify sentences and pairs of them, nine data sets",
}


def catalogue() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the catalogue by kind and name: a phrase, the fields as people read them, and further facts."""
    return {
        "mechanisms": {name: mechanism(name, config) for name, config in PRESETS.items()},
        "sizes": {name: size(name, config) for name, config in SIZES.items()},
        "recipes": {name: recipe(name, config) for name, config in RECIPES.items()},
        "tasks": {name: task(name, kind()) for name, kind in TASKS.items()},
        "corpora": {name: {"phrase": first_sentence(read)} for name, read in CORPORA.items()},
        "families": {name: {"phrase": "", "values": shown_fields(kind())} for name, kind in FAMILIES.items()},
    }


def mechanism(name: str, config: AttentionConfig) -> dict[str, Any]:
    stages = {stage: getattr(config, stage) for stage in STAGES}
    return {
        "phrase": MECHANISMS.get(name, ""),
        "facts": {
            "stages": {name: [choice(name, stage), in_full(stage)] for name, stage in stages.items()},
            "parameters": n_parameters(config),
            "cache": cache_numbers(config),
        },
    }


def in_full(stage: Stage) -> str:
    """Return the class of a stage with all its fields."""
    return " ".join([type(stage).__name__, *(f"{f.name}={getattr(stage, f.name)}" for f in fields(stage))])


def size(name: str, config: ModelConfig) -> dict[str, Any]:
    count = sum(parameter.numel() for parameter in without_data(config).parameters())
    facts = {"family": config.family, "parameters": count, "layers": config.depth}
    return {"phrase": MODELS.get(name, ""), "values": shown_fields(config), "facts": facts}


def recipe(name: str, config: TrainConfig) -> dict[str, Any]:
    parts = (config.model, config.task, config)
    values = {field: text for part in parts for field, text in shown_fields(part).items()}
    values |= {"task": config.task.kind} | dict.fromkeys(FROM_THE_TASK)
    del values["model"]
    tokens = config.n_steps * config.tokens_per_step
    shape = config.model.to_dict() | {"positions": None}  # left out, since a task may suggest other positions
    model = next((name for name, size in SIZES.items() if size.to_dict() | {"positions": None} == shape), "own")
    return {
        "phrase": SETTINGS.get(name, ""),
        "values": values,
        "facts": {
            "family": config.model.family,
            "task": config.task.kind,
            "model": model,
            "tokens": tokens,
            "from_the_task": FROM_THE_TASK,
        },
    }


def task(name: str, config: TaskConfig) -> dict[str, Any]:
    return {
        "phrase": LEARNED.get(name, ""),
        "values": shown_fields(config),
        "facts": {
            "seq_len": config.seq_len,
            "recipe": RECIPE_OF_TASK.get(config.kind, DEFAULT_RECIPE),
            "suited_positions": config.suited_positions,
        },
    }


def first_sentence(made: Any) -> str:
    return str(made.__doc__).partition("\n")[0].rstrip(".")


def shown_fields(config: Any) -> dict[str, str | None]:
    return {f.name: shown(getattr(config, f.name)) for f in fields(config)}


def shown(value: Any) -> str | None:
    """Return the value of a field as it is written on the command line."""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else None if value is None else str(value)


def choice(name: str, stage: Stage) -> str:
    """Return how a stage differs from that of standard attention: its class, and the fields not at defaults."""
    standard, default = type(getattr(AttentionConfig(), name)), type(stage)()
    values = {f.name: getattr(stage, f.name) for f in fields(stage)}
    words = [] if type(stage) is standard else [type(stage).__name__]
    words += [f"{field}={value}" for field, value in values.items() if value != getattr(default, field)]
    return " ".join(words) or "·"


def n_parameters(config: AttentionConfig) -> int:
    with shapes_only():
        return sum(p.numel() for p in build(config, D_MODEL, N_HEADS).parameters())


def cache_numbers(config: AttentionConfig) -> int:
    """Return how many numbers a layer stores in its cache for one position."""
    cache = Cache()
    with torch.no_grad():
        build(config, D_MODEL, N_HEADS)(torch.zeros(1, 1, D_MODEL), cache=cache)
    return cache.n_numbers
