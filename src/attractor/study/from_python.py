"""Train and compare from Python, as `attractor train` and `attractor compare` do.

    attractor.compare("standard", Mine, corpus="notes.txt", seeds=4)
    attractor.train_model(attention=Mine, corpus="notes.txt", n_steps=500)

Settings are the options of the commands, with underscores. A script calls these below `if __name__ == "__main__":`,
since the processes of runs load it, too.
"""

import inspect
import multiprocessing
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from attractor.attention.named import Mechanism
from attractor.errors import InputError, RunStopped
from attractor.runs.configuration import config_hash
from attractor.runs.run_folder import DIVERGED
from attractor.runs.study_record import StudyRecord
from attractor.study.compare import DEFAULT_PRESETS, Asked, compare_mechanisms
from attractor.study.launch import GUARD, UNGUARDED
from attractor.train.config import Runtime, TrainConfig
from attractor.train.from_recipe import EVAL_BATCHES, config_from_recipe
from attractor.train.loop import train
from attractor.train.memory import ProcessLayout
from attractor.train.observers import Observer

OF_RUNTIME = {f.name for f in fields(Runtime)}
OF_RECIPE = ("recipe", "size", "epochs")


def compare_in_folder(
    presets: Sequence[Any], question: dict[str, Any], out: Path | None, workers: int | None, settings: dict[str, Any]
) -> tuple[StudyRecord, dict[str, str], Path]:
    """Train the mechanisms with several seeds and compare them; return the record, the failures and the folder."""
    _refuse_children()
    if isinstance(seeds := question.get("seeds"), int):
        question = question | {"seeds": tuple(range(seeds))}
    asked = Asked(presets or DEFAULT_PRESETS, **question)
    named = [
        preset if isinstance(preset, str) else getattr(preset, "__name__", "mechanism") for preset in asked.presets
    ]
    command = shlex.join(["attractor.compare", *named])
    console = Console(file=sys.stderr)
    return compare_mechanisms(asked, partial(_config, settings), _runtime(settings), console, out, workers, command)


def train_in_folder(out: Path | None, settings: dict[str, Any], observers: Sequence[Observer] = ()) -> Path:
    """Train one model, from wherever its folder stands, and return the folder."""
    _refuse_children()
    config = _config(settings, settings.get("attention"), settings.get("seed"))
    path = out or Path("runs") / f"{config.label}-{config_hash(config.to_dict())[:8]}"
    summary = train(config, path, _runtime(settings), observers=observers)
    if DIVERGED in summary:
        raise RunStopped(summary[DIVERGED])
    return path


def _config(settings: dict[str, Any], attention: str | Mechanism | None, seed: int | None) -> TrainConfig:
    given = {name: value for name, value in settings.items() if name not in OF_RUNTIME and name not in OF_RECIPE}
    given |= {name: x for name, x in (("attention", attention), ("seed", seed)) if x is not None}
    given |= {name: str(value) for name, value in given.items() if isinstance(value, Path)}
    recipe = {name: settings[name] for name in OF_RECIPE if name in settings}
    return config_from_recipe(given, _runtime(settings), ProcessLayout(), eval_batches=EVAL_BATCHES, **recipe)


def _runtime(settings: dict[str, Any]) -> Runtime:
    return Runtime(**{name: value for name, value in settings.items() if name in OF_RUNTIME})


def _refuse_children() -> None:
    """Refuse to begin anew in a process that loads a script for a run, before the process begins or in it."""
    if any(info.frame.f_globals.get("__name__") == "__mp_main__" for info in inspect.stack(0)):
        os._exit(UNGUARDED)  # an exception would become a traceback of each process, and the parent would not know it
    if multiprocessing.parent_process() is not None:
        raise InputError(GUARD)
