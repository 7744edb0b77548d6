"""The configuration of a run (TrainConfig), where and how it is carried out (Runtime), and the recipes by name."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from attractor.console import waiting
from attractor.corpus.data_paths import locate
from attractor.errors import InputError, not_installed, require, require_count, require_known, unknown
from attractor.fields import PrintsChanges, later, require_types, stored_fields
from attractor.models import FAMILIES, SIZES, TransformerConfig
from attractor.models.config import ModelConfig
from attractor.models.families import model_config
from attractor.models.language_model import LanguageModel
from attractor.tasks import TASKS, Task, TaskConfig
from attractor.tasks.recall import Recall
from attractor.tasks.sudoku import Sudoku
from attractor.tasks.text import Text
from attractor.train import interventions
from attractor.train.formulas import formulas_of
from attractor.train.start import counterpart, weights_fingerprint

OPTIMIZERS = ("adamw", "muon")
PRECISIONS = ("fp32", "bf16", "fp16")
PARALLEL = ("ddp", "fsdp")
RECOMPUTED = ("blocks", "cheap")
ON_DIVERGENCE = ("stop", "rollback")
SCHEDULES: dict[str, Callable[[float], float]] = {  # factors of the learning rate; progress goes from 0 to 1
    "constant": lambda progress: 1.0,
    "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
}

# This model learns to use its context within seconds on one core, so that a comparison on a laptop can tell mechanisms
# apart. With learned positions that takes longer: after as many steps the control without attention was the better
# one (LOG.md, 2026-11-20).
LAPTOP = TransformerConfig(
    vocab_size=320, d_model=64, n_heads=4, n_layers=2, d_ff=192, max_seq_len=256, positions="rope"
)


@dataclass(frozen=True)
class TrainConfig(PrintsChanges):
    """All that determines a run. None switches an option off unless its help, the docstring below it, says more."""

    model: ModelConfig[LanguageModel] = LAPTOP
    task: TaskConfig = field(default_factory=Text)
    """text, mqar, needle or sudoku"""
    seed: int = 0
    """seed of initial weights and of the data's order"""
    start: str | None = None
    """run folder whose best weights are the start"""
    n_steps: int = 1_120
    """optimizer steps"""
    batch_size: int = 4
    """sequences per step; auto: in pieces that fit"""
    accumulation: int = 1
    """micro-batches that make up a step"""
    seq_len: int = 64
    """tokens per sequence"""
    lr: float = 2.5e-3
    """peak learning rate"""
    schedule: str = "cosine"
    """rate after warm-up: cosine or constant"""
    warmup_steps: int = 112
    """linear warm-up; keeps its share of n_steps"""
    betas: tuple[float, float] = (0.9, 0.95)
    """the two averaging rates of AdamW"""
    weight_decay: float = 0.1
    """decay of matrices; vectors and scalars have none"""
    optimizer: str = later("adamw")
    """adamw, or muon for hidden matrices"""
    muon_per_head: bool = later(True)
    """Muon orthogonalises query and key matrices head by head, not whole"""
    quack: float | None = later(None)
    """tau of QuacK, which slows heads whose logits may grow; by default off"""
    quack_norm: str = later("frobenius")
    """norm that QuacK measures: frobenius or spectral"""
    qk_rate: float | None = later(None)
    """factor on the rate of query and key weights; by default 1"""
    qk_clip: float | None = later(None)
    """largest logit that QK-clip leaves; by default off"""
    regularizer: str | None = later(None)
    """penalty on attention's weights: spectral, energy-single or energy-multi; by default off"""
    regularizer_weight: float | None = later(None)
    """weight of the regularizer in the loss; by default 1e-4 (1e-5: spectral in AKOrN; 1e-6: energy-single)"""
    gate_lr: float | None = later(None)
    """learning rate of gates that start closed; by default lr"""
    ema: float | None = later(None)
    """decay of averaged weights, which are then validated and stored; by default off"""
    ema_every: int = later(1)
    """steps between updates of the averaged weights"""
    clip: float | None = 1.0
    """largest norm of the gradient; none: unclipped"""
    precision: str = "fp32"
    """fp32, bf16 or fp16"""
    activation_checkpointing: bool = False
    """recompute activations in the backward pass, for memory"""
    recompute: str = later("blocks")
    """recompute whole blocks (blocks), or only what is cheap (cheap)"""
    compile: bool = False
    """use torch.compile, as long runs on one GPU do"""
    eval_every: int = 160
    """steps between evaluations"""
    eval_batches: int | None = 64
    """batches of an evaluation; none: all"""
    max_bad_steps: int = 10
    """non-finite steps in a row after which a run stops"""

    def __post_init__(self) -> None:
        require_types(self)
        for name in ("n_steps", "batch_size", "accumulation", "seq_len", "eval_every", "max_bad_steps", "ema_every"):
            require_count(name, getattr(self, name))
        for name in ("gate_lr", "quack", "qk_rate", "qk_clip"):
            value = getattr(self, name)
            require(value is None or 0 < value < math.inf, name, "positive and finite, or None", value)
        try:
            self._start_path  # noqa: B018
        except (LookupError, ValueError, AttributeError, TypeError) as error:
            rule = "a path in which only {attention} and {seed} are filled in"
            raise InputError(f"start must be {rule}, got '{self.start}'; write any other brace twice") from error
        for kind, name, names in (
            ("schedule", self.schedule, SCHEDULES),
            ("precision", self.precision, PRECISIONS),
            ("choice of what to recompute", self.recompute, RECOMPUTED),
            ("optimizer", self.optimizer, OPTIMIZERS),
        ):
            require_known(kind, name, names)
        length, divides = self.task.seq_len, self.batch_size % self.accumulation == 0
        by_muon, fits = self.optimizer == "muon", length in (None, self.seq_len)
        recomputes = self.activation_checkpointing or self.recompute == "blocks"
        no_gate = f"None for a model of the family {self.model.family}, which has no gate"
        for holds, name, rule, next_step in (
            (divides, "accumulation", f"a divisor of batch_size={self.batch_size}", ""),
            (self.seed >= 0, "seed", "at least 0", ""),
            (0 < self.lr < math.inf, "lr", "positive and finite", ""),
            (0 <= self.warmup_steps < self.n_steps, "warmup_steps", f"at least 0 and below n_steps={self.n_steps}", ""),
            (len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas), "betas", "two in [0, 1)", ""),
            (0 <= self.weight_decay < math.inf, "weight_decay", "at least 0 and finite", ""),
            (self.ema is None or 0 <= self.ema < 1, "ema", "at least 0 and below 1, or None", ""),
            (self.ema is not None or self.ema_every == 1, "ema_every", "1 without ema", "give ema, too"),
            (self.clip is None or self.clip > 0, "clip", "positive or None", ""),
            (self.eval_batches is None or self.eval_batches >= 1, "eval_batches", "at least 1", ""),
            (by_muon or self.muon_per_head, "muon_per_head", "True without Muon", "give optimizer='muon', too"),
            (
                recomputes,
                "recompute",
                "'blocks' without activation_checkpointing",
                "give activation_checkpointing, too",
            ),
            (fits, "seq_len", f"{length} for this {self.task.kind} task", f"give seq_len={length}"),
            (self.gate_lr is None or bool(self.model.own_rate), "gate_lr", no_gate, "leave it out"),
        ):
            require(holds, name, rule, getattr(self, name), next_step)
        self.model.require_length(self.seq_len)
        interventions.check(self)

    @property
    def label(self) -> str:
        """The name of this run in a comparison: its mechanism."""
        return self.model.label

    @property
    def _start_path(self) -> Path | None:
        return None if self.start is None else locate(self.start.format(attention=self.label, seed=self.seed))

    @property
    def start_folder(self) -> Path | None:
        """The run whose weights this run starts from."""
        path = self._start_path
        return None if path is None else counterpart(path, self.label, self.seed)

    def identity(self, task: Task) -> dict[str, Any]:
        """Return this configuration with fingerprints of the data and the first weights, and versions of formulas."""
        start = self.start_folder
        weights = {} if start is None else {"start_weights": weights_fingerprint(start, self.model)}
        versions = {"formulas": formulas} if (formulas := formulas_of(self)) else {}
        return self.to_dict() | {"data": task.fingerprint} | weights | versions

    @property
    def micro_batch_size(self) -> int:
        return self.batch_size // self.accumulation

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.seq_len

    def learning_rate(self, step: int) -> float:
        """Return the rate of a step, from 0: a linear warm-up whose last step has lr, then the schedule.

        The rate depends on the step alone, so a resumed run needs no stored schedule.
        """
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        return self.lr * SCHEDULES[self.schedule]((step - self.warmup_steps) / (self.n_steps - self.warmup_steps))

    def build_task(self) -> Task:
        """Return the data, and refuse a model that does not fit them."""
        task = self.task.build(self.seq_len, self.seed)
        for name, needed in task.demands.items():
            value = getattr(self.model, name)
            if value != needed and not (name == "vocab_size" and value > needed):
                rule = f"at least the task's {needed}" if name == "vocab_size" else f"{needed} for this task"
                require(False, name, rule, value, f"give {name}={needed}")
        return task

    def replace(self, **changes: Any) -> Self:
        """Return this config with fields of the run, its model or its task changed.

        A task is named by its kind, and may set seq_len: `replace(attention="gated", task="mqar", level="hard")`. With
        positions on a board, max_seq_len is the number of its cells by default.
        """
        model, task = changes.pop("model", self.model), changes.pop("task", self.task)
        if isinstance(task, str):
            require_known("task", task, TASKS)
            task = TASKS[task]()
        of_training, of_model, of_task = ({f.name for f in fields(part)} for part in (self, model, task))
        known = of_training | of_model | of_task
        for key in changes:
            if key not in known:
                refuse_field_of_another_family(key, model)
                raise unknown("training field", key, known)

        def given(names: set[str]) -> dict[str, Any]:
            return {key: value for key, value in changes.items() if key in names}

        task = replace(task, **given(of_task))
        length = {} if task.seq_len is None else {"seq_len": task.seq_len}
        changes_of_model = given(of_model)
        if changes_of_model.get("positions", model.positions) in task.suited_positions:
            changes_of_model.setdefault("max_seq_len", task.seq_len)
        return replace(self, model=model.replace(**changes_of_model), task=task, **{**length, **given(of_training)})

    def to_dict(self) -> dict[str, Any]:
        parts = {"model": self.model.to_dict(), "task": self.task.to_dict(), "betas": list(self.betas)}
        return {"label": self.label} | stored_fields(self) | parts

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Self:
        """Return the configuration that `to_dict` or `identity` stored."""
        converters: dict[str, Callable[[Any], Any]] = {"model": model_config, "task": task_from_dict, "betas": tuple}
        known = {f.name for f in fields(cls)}
        values = {}
        for key, value in stored.items():
            if key in known:
                values[key] = converters[key](value) if key in converters else value
            elif key not in ("label", "data", "start_weights", "formulas"):
                raise unknown("training field", key, known)
        return cls(**values)


def stored_config(stored: dict[str, Any], path: Path) -> TrainConfig:
    """Return the configuration that a file holds, and name the file where it holds none."""
    try:
        return TrainConfig.from_dict(stored)
    except InputError as error:
        raise InputError(f"'{path}': {error}") from error
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InputError(f"'{path}' must hold the configuration of a run, and is damaged; restore it") from error


def data_of(config: TrainConfig, fit: bool = True) -> Task:
    """Return the data of a run, and say on stderr what is going on if that takes long.

    A model that does not fit the data is refused, unless `fit` is False.
    """
    with waiting(f"reading {getattr(config.task, 'corpus', f'the data of task {config.task.kind}')}"):
        return config.build_task() if fit else config.task.build(config.seq_len, config.seed)


def refuse_field_of_another_family(name: str, model: ModelConfig) -> None:
    for family, kind in FAMILIES.items():
        if name in {f.name for f in fields(kind)}:
            raise InputError(
                f"{name} must be left out with a model of the family {model.family}, since it is a field of the family "
                f"{family}; leave it out, or give a size of that family"
            )


def task_from_dict(stored: dict[str, Any]) -> TaskConfig:
    values = dict(stored)
    kind = values.pop("kind", None)
    require_known("task", kind, TASKS, see="one that a file defines is known with --code FILE.py")
    return TASKS[kind].from_dict(values)


LONGEST_TIMEOUT = 10_000_000  # seconds, which are four months
MAX_THREADS = 1024  # torch crashes if the system cannot start as many threads as torch asks for


@dataclass(frozen=True)
class Runtime(PrintsChanges):
    """Where and how a run is carried out.

    Nothing here changes what the run computes beyond rounding, except that a run may be rolled back (`on_divergence`).
    Its state, its metrics and its summary then say so.
    """

    device: str = "auto"
    """cpu, cuda or auto (cuda where there is a GPU)"""
    threads: int | None = None
    """CPU threads of each run; by default automatic"""
    log_every: int = 10
    """steps between lines of metrics"""
    save_every: int = 500
    """steps between checkpoints; the end and Ctrl-C write one, too"""
    keep: int = 2
    """newest checkpoints kept, besides the best and the last good one"""
    telemetry_every: int | None = 50
    """steps between looks at attention's logits; None: off"""
    tensorboard: bool = False
    """also write TensorBoard's files into the run folder"""
    parallel: str = "ddp"
    """how several processes share a model: ddp (each holds all of it) or fsdp (a part of every tensor)"""
    collective_timeout: float = 600.0
    """seconds that processes of one run wait for one another"""
    cuda_graphs: bool = False
    """replay a compiled loss, for steps that take longer to launch than to compute"""
    on_divergence: str = "stop"
    """after max_bad_steps, stop, or rollback to the last good checkpoint and go on with other data"""
    max_rollbacks: int = 3
    """times that a run may go back before it stops"""
    save_every_minutes: float | None = 10.0
    """minutes without a checkpoint after which one is written; None: never"""

    def __post_init__(self) -> None:
        require_types(self)
        for name in ("log_every", "save_every", "keep", "max_rollbacks"):
            require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        for name in ("telemetry_every", "threads"):
            value = getattr(self, name)
            require(value is None or value >= 1, name, "at least 1, or None", value)
        fits = 0 < self.collective_timeout <= LONGEST_TIMEOUT
        require(fits, "collective_timeout", f"above 0 and at most {LONGEST_TIMEOUT:,}", self.collective_timeout)
        minutes = self.save_every_minutes
        require(minutes is None or minutes > 0, "save_every_minutes", "positive or None", minutes)
        if self.tensorboard and find_spec("tensorboard") is None:
            raise not_installed("tensorboard", "tensorboard", "its files", "leave the option out")
        require(self.threads is None or self.threads <= MAX_THREADS, "threads", f"at most {MAX_THREADS}", self.threads)
        require_known("parallel", self.parallel, PARALLEL)
        require_known("on_divergence", self.on_divergence, ON_DIVERGENCE)


# CoupledQK, appendix B, WikiText-103. The paper trains in fp16, this recipe in bf16.
COUPLED_QK = TrainConfig(
    model=SIZES["small"],
    n_steps=30_000,
    batch_size=32,
    accumulation=4,
    seq_len=512,
    lr=6e-4,
    warmup_steps=2_000,
    precision="bf16",
    eval_every=1_000,
    eval_batches=None,
)
# torch's default betas and a constant rate, which we assume for a paper that names neither a schedule nor a warm-up.
PLAIN: dict[str, Any] = {"schedule": "constant", "warmup_steps": 0, "betas": (0.9, 0.999), "eval_batches": None}

# AKOrN's recipe, which Jacobians takes over (section 6): Adam, and an average of the weights, updated every tenth step.
# The length is also AKOrN's: 100 epochs of 9,000 boards.
SUDOKU = TrainConfig(
    SIZES["itrsa"].replace(positions="grid"),
    Sudoku(),
    n_steps=9_000,
    batch_size=100,
    seq_len=81,
    lr=1e-3,
    weight_decay=0.0,
    ema=0.995,
    ema_every=10,
    eval_every=500,
    **PLAIN,
)

DEFAULT_RECIPE = "laptop"
# TRM (arXiv 2510.04871) as its public code trains on Sudoku, with attention: AdamW at 1e-4 with decay 1, and an average
# of the weights. A step is a segment. The published optimizer is a variant of AdamW (atan2), and its boards are those
# of Sudoku-Extreme: --puzzles FILE.
RECURSIVE = TrainConfig(
    SIZES["recursive"].replace(positions="grid", stable_softmax=True, halting=True),
    Sudoku(n_boards=1_000, augment=True),
    n_steps=65_000,
    batch_size=768,
    seq_len=81,
    lr=1e-4,
    schedule="constant",
    warmup_steps=2_000,
    weight_decay=1.0,
    ema=0.999,
    precision="bf16",
    eval_every=5_000,
    eval_batches=None,
)
RECIPE_OF_TASK = {"sudoku": "sudoku"}  # where no recipe is named; other tasks start from the default recipe
RECIPES: dict[str, TrainConfig] = {
    "laptop": TrainConfig(),
    "small": COUPLED_QK,
    "medium": COUPLED_QK.replace(model=SIZES["medium"], lr=3e-4, activation_checkpointing=True),
    "large": COUPLED_QK.replace(model=SIZES["large"], lr=2e-4, accumulation=8, activation_checkpointing=True),
    # CoupledQK, appendix B: AdamW, 10K to 20K steps of 64 sequences. The level of the task (--level) sets their length.
    "mqar": TrainConfig(
        model=SIZES["tiny"],
        task=Recall(),
        n_steps=20_000,
        batch_size=64,
        lr=3e-4,
        warmup_steps=500,
        weight_decay=0.01,
        eval_every=1_000,
        eval_batches=None,
    ),
    # QuacK, section 4. What the paper leaves open is as in the other recipes: decay 0.1, clipping at 1, and the same
    # rate for the parameters that AdamW moves.
    "1b": TrainConfig(
        model=SIZES["1b"],
        task=Text("cosmopedia-v2"),
        n_steps=5_000,
        batch_size=96,
        accumulation=12,
        seq_len=2048,
        lr=3e-3,
        schedule="constant",
        warmup_steps=500,
        optimizer="muon",
        precision="bf16",
        activation_checkpointing=True,
        eval_every=250,
        eval_batches=16,
    ),
    # FastSlow, section 9: 650 steps of 4 x 256, which are 665,600 tokens and not the 500k that the paper states. The
    # rest of AdamW is torch's default; the paper names neither warm-up nor schedule nor clipping.
    "fast-slow": TrainConfig(
        SIZES["fast-slow"],
        n_steps=650,
        batch_size=4,
        seq_len=256,
        lr=1e-4,
        weight_decay=0.01,
        clip=None,
        eval_every=130,
        **PLAIN,
    ),
    "sudoku": SUDOKU,
    "akorn": SUDOKU.replace(model=SIZES["akorn"]),
    "prenorm": SUDOKU.replace(model=SIZES["itrsa-prenorm"].replace(positions="grid"), lr=5e-4),
    "recursive": RECURSIVE,
    # A small recursive model that solves boards of 9 x 9 (docs/solving.md).
    "solver": RECURSIVE.replace(
        model=RECURSIVE.model.replace(
            d_model=128, n_heads=4, d_ff=512, n_layers=1, n_inner=3, n_iterations=16, n_segments=8
        ),
        task=Sudoku(n_valid_boards=200, augment=True),
        n_steps=12_000,
        batch_size=64,
        lr=1e-3,
        schedule="cosine",
        warmup_steps=200,
        weight_decay=0.1,
        precision="fp32",
        eval_every=1_000,
    ),
    # PsiQRH, "Training Protocol", without its warm-up, decay of the rate and clipping; steps stand in for its epochs.
    "psiqrh": TrainConfig(
        SIZES["small"].replace(d_model=256, n_layers=4, d_ff=512, max_seq_len=512, attention="psiqrh"),
        n_steps=20_000,
        batch_size=32,
        seq_len=512,
        lr=1e-4,
        weight_decay=0.01,
        clip=None,
        eval_every=1_000,
        **PLAIN,
    ),
}

# What `attractor list` says of each of these.
ABOUT_RECIPES = {
    "laptop": "a small model on text: a minute on two cores",
    "small": "CoupledQK's training of its small model",
    "medium": "CoupledQK's training of its medium model",
    "large": "CoupledQK's training of its large model",
    "mqar": "CoupledQK's associative recall",
    "1b": "QuacK's training at a high rate with Muon",
    "fast-slow": "FastSlow's training of its small model",
    "sudoku": "Sudoku with an iterated model (Jacobians)",
    "akorn": "Sudoku with AKOrN, as its authors train it",
    "prenorm": "Sudoku with the iterated model of AKOrN's authors",
    "recursive": "Sudoku with a recursive model (TRM)",
    "solver": "Sudoku with a small recursive model, for one core",
    "psiqrh": "PsiQRH's training of its language model",
}
