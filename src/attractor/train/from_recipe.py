"""Build the configuration of a run from the name of a recipe and the fields that a person gives."""

import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from attractor.attention import Whole
from attractor.attention.named import mechanism
from attractor.errors import InputError, require, require_known, unknown
from attractor.models import SIZES
from attractor.models.config import ROTATIONS, ModelConfig
from attractor.models.language_model import LanguageModel
from attractor.runs.run_folder import RunFolder
from attractor.tasks import TASKS, TaskConfig
from attractor.tasks.text import Text, tokenizer_of
from attractor.train.compiled import compiling_pays
from attractor.train.config import DEFAULT_RECIPE, RECIPE_OF_TASK, RECIPES, Runtime, TrainConfig, data_of
from attractor.train.fit import auto_batch
from attractor.train.hardware import gpu_of
from attractor.train.memory import ProcessLayout
from attractor.train.saved_tokenizer import TOKENIZER_FILE, saved_tokenizer

MOST_STEPS = 10**12
# Published recipes validate on whole held-out sets, which may take longer than the training, and studies keep that.
# Single runs on text validate on as many batches as the studies' smaller scales.
EVAL_BATCHES = 64
AUTO = "auto"  # as a batch size: the recipe's, in the largest micro-batches that fit
SEE = "'attractor list' shows all"


def config_from_recipe(
    given: dict[str, Any],
    runtime: Runtime,
    processes: ProcessLayout,
    recipe: str | TrainConfig | None = None,
    size: str | None = None,
    epochs: float | None = None,
    eval_batches: int | None = None,
) -> TrainConfig:
    """Return a recipe with the given fields in place. By default it is the recipe of the task.

    `recipe` is a name, or a configuration in the place of one, which keeps its vocabulary. `size` names another model,
    `epochs` stands in place of n_steps, and `eval_batches` is for a run on text whose recipe validates on the whole
    held-out set. The model gets the sizes that the task demands. A contrary field that a person gives is kept, and
    `build_task` refuses it. A run that starts from another run has the model of that run. A long run on one GPU is
    compiled unless a person says otherwise.
    """
    chosen = recipe or RECIPE_OF_TASK.get(given.get("task", ""), DEFAULT_RECIPE)
    if isinstance(chosen, str) and chosen not in RECIPES:
        raise unknown("recipe", chosen, RECIPES, see=SEE)
    if size is not None and size not in SIZES:
        raise unknown("size", size, SIZES, see=SEE)
    given = dict(given)
    automatic = given.get("batch_size") == AUTO
    if automatic:
        del given["batch_size"]
    if automatic and "accumulation" in given:
        raise InputError("accumulation must be left out with batch_size=auto, which looks for it; leave one out")
    for name in ("attention", "attention_global", "slow_attention"):
        if name in given:
            given[name] = mechanism(given[name])
    base = RECIPES[chosen] if isinstance(chosen, str) else chosen
    model = base.model if size is None else SIZES[size]
    if "start" in given:
        model = _continued(base, given, size)
    task_config = _task_config(given, base)
    if base.eval_batches is None and isinstance(task_config, Text):
        given.setdefault("eval_batches", eval_batches)
    if isinstance(given.get("attention"), Whole) and model.positions in ROTATIONS and "start" not in given:
        if epochs is None and "positions" not in given:
            given.setdefault("n_steps", 2 * base.n_steps)  # by learned positions attention takes longer to learn
        given.setdefault("positions", "learned")  # such a layer takes no rotations
    suited = task_config.suited_positions
    if suited and model.positions not in suited and "start" not in given:
        given.setdefault("positions", suited[0])
    steps = ("n_steps", "warmup_steps")
    config = base.replace(model=model, task=task_config, **{name: given[name] for name in given if name not in steps})
    task = data_of(config, fit=False)
    n_steps = given.get("n_steps", base.n_steps)
    if epochs is not None:
        if "n_steps" in given or task.n_tokens is None:
            why = "beside n_steps" if "n_steps" in given else "with data drawn without end"
            raise InputError(f"epochs must be left out {why}, got {epochs:g}; give n_steps alone")
        require(0 < epochs < math.inf, "epochs", "positive and finite", epochs)
        wanted = epochs * task.n_tokens * model.steps_of_batch / config.tokens_per_step
        require(wanted < MOST_STEPS, "epochs", f"so many that fewer than {MOST_STEPS:,} steps result", epochs)
        n_steps = max(1, round(wanted))
    # A run of another length keeps its share of warm-up.
    warmup_steps = given.get("warmup_steps", base.warmup_steps * n_steps // base.n_steps)
    # The vocabulary of a model that is given may be larger than the task's.
    kept = {*given, "vocab_size"} if "start" in given or (base is recipe and size is None) else given
    demands = {name: value for name, value in task.demands.items() if name not in kept}
    config = config.replace(n_steps=n_steps, warmup_steps=warmup_steps, **demands)
    if isinstance(chosen, str) and "compile" not in given and processes.size == 1:
        config = config.replace(compile=config.compile or compiling_pays(config, gpu_of(runtime.device)))
    return auto_batch(config, runtime, processes) if automatic else config


def _continued(recipe: TrainConfig, given: dict[str, Any], size: str | None) -> ModelConfig[LanguageModel]:
    """Return the model of the run that this run starts from."""
    if size is not None:
        raise InputError("size must be left out with start, which brings the model of its run; leave it out")
    names = ("start", "attention", "seed")
    folder = recipe.replace(**{name: given[name] for name in names if name in given}).start_folder
    assert folder is not None
    source = TrainConfig.from_dict(RunFolder.open(folder).config)
    if given.get("task", recipe.task.kind) == "text":
        _refuse_other_tokenizer(folder, given.get("corpus", getattr(recipe.task, "corpus", Text.corpus)))
    return source.model


def _task_config(given: dict[str, Any], recipe: TrainConfig) -> TaskConfig:
    """Return the task with those of its options that are given, and remove them from `given`."""
    kind = given.pop("task", recipe.task.kind)
    require_known("task", kind, TASKS, see=SEE)
    names = {f.name for f in fields(TASKS[kind])}
    for other in TASKS.values():
        for name in {f.name for f in fields(other)} - names:
            if name in given:
                raise InputError(
                    f"{name} must be left out with task '{kind}', since it is an option of task '{other.kind}'; "
                    f"leave it out or give --task {other.kind}"
                )
    base = recipe.task if recipe.task.kind == kind else TASKS[kind]()
    return replace(base, **{name: given.pop(name) for name in names if name in given})


def _refuse_other_tokenizer(start: Path, corpus: str) -> None:
    """Refuse a corpus of another tokenizer than that of the start, since the same ids would mean other text."""
    kept = saved_tokenizer(RunFolder.open(start))
    if kept is None:
        return
    stored, tokenizer = start / TOKENIZER_FILE, tokenizer_of(corpus)
    if kept.fingerprint != tokenizer.fingerprint:
        raise InputError(
            f"corpus must have the tokenizer of the run given by start, but '{corpus}' has '{tokenizer.name}'; "
            f"'attractor data prepare {corpus} --tokenizer {stored} --out FOLDER' makes them"
        )
