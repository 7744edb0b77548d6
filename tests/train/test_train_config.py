"""Configs, recipes, schedules and the optimizer's parameter groups."""

import json
import math
from typing import Any

import pytest
import torch

from attractor.attention import PRESETS, Whole
from attractor.errors import InputError
from attractor.models import SIZES, AKOrNConfig, FastSlowConfig, ItrSAConfig
from attractor.tasks.sudoku import Sudoku
from attractor.train.config import RECIPES, SCHEDULES, Runtime, TrainConfig
from attractor.train.from_recipe import config_from_recipe
from attractor.train.memory import ProcessLayout
from attractor.train.optimizer import build_optimizer


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("warmup_steps", [0, 1, 10])
def test_warm_up_rises_in_equal_steps_and_reaches_the_rate_when_it_ends(schedule: str, warmup_steps: int) -> None:
    """Criterion: step i of n has (i + 1) / n of the rate, so that no step is wasted at 0 and step n has the full
    rate."""
    config = TrainConfig(lr=0.3, schedule=schedule, warmup_steps=warmup_steps, n_steps=100)
    rates = [config.learning_rate(step) for step in range(warmup_steps + 1)]
    expected = [0.3 * (step + 1) / warmup_steps for step in range(warmup_steps)] + [0.3]
    assert rates == pytest.approx(expected)


def test_cosine_goes_from_the_rate_to_zero_through_half_and_never_up_and_a_constant_rate_stays() -> None:
    config = TrainConfig(lr=2.0, schedule="cosine", warmup_steps=10, n_steps=110)
    rates = [config.learning_rate(step) for step in range(10, 111)]
    assert (rates[0], rates[50], rates[100]) == pytest.approx((2.0, 1.0, 0.0))
    assert rates == sorted(rates, reverse=True)
    assert rates[25] == pytest.approx(1 + math.cos(math.pi / 4))
    assert {config.replace(schedule="constant").learning_rate(step) for step in range(10, 111)} == {2.0}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_json(name: str) -> None:
    recipe = RECIPES[name]
    stored = json.loads(json.dumps(recipe.to_dict()))
    assert TrainConfig.from_dict(stored) == recipe
    assert TrainConfig.from_dict(stored | {"data": "a fingerprint"}) == recipe


@pytest.mark.parametrize("name", PRESETS)
def test_a_config_with_a_mechanism_spelled_out_survives_json(name: str) -> None:
    config = TrainConfig().replace(attention=PRESETS[name])
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert config.label == "custom"


def test_coupled_qk_is_trained_as_published() -> None:
    """Appendix B of the paper has 30,000 steps of 32 x 512 tokens, AdamW, and cosine decay after 2,000 steps of
    warm-up."""
    rates = {"small": 6e-4, "medium": 3e-4, "large": 2e-4}
    for name, lr in rates.items():
        recipe = RECIPES[name]
        assert recipe.model == SIZES[name]
        assert (recipe.lr, recipe.schedule, recipe.warmup_steps) == (lr, "cosine", 2_000)
        assert (recipe.weight_decay, recipe.clip, recipe.betas) == (0.1, 1.0, (0.9, 0.95))
        assert recipe.n_steps * recipe.batch_size * recipe.seq_len == 491_520_000
    assert [RECIPES[name].accumulation for name in rates] == [4, 4, 8]
    assert [RECIPES[name].activation_checkpointing for name in rates] == [False, True, True]


def test_psiqrh_is_trained_as_published() -> None:
    """Its training protocol is AdamW at a constant 1e-4, weight decay 0.01, no clipping, 32 x 512 tokens, and 4 layers
    of 8 heads with d_ff 512."""
    recipe = RECIPES["psiqrh"]
    assert (recipe.lr, recipe.schedule, recipe.warmup_steps, recipe.weight_decay) == (1e-4, "constant", 0, 0.01)
    assert (recipe.clip, recipe.betas, recipe.batch_size, recipe.seq_len) == (None, (0.9, 0.999), 32, 512)
    model = recipe.model
    assert (model.n_layers, model.n_heads, model.d_ff, model.attention) == (4, 8, 512, "psiqrh")


def test_replace_reaches_the_model_and_leaves_the_original() -> None:
    base = TrainConfig()
    changed = base.replace(d_model=32, lr=0.1, attention="gated")
    assert (changed.model.d_model, changed.lr, changed.label) == (32, 0.1, "gated")
    assert base == TrainConfig()
    assert changed.replace(d_model=base.model.d_model, lr=base.lr, attention="standard") == base
    both = base.replace(model=SIZES["tiny"], n_layers=1, seq_len=8)  # the model, and one of its fields
    assert both.model == SIZES["tiny"].replace(n_layers=1)


def test_an_unknown_stored_field_is_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown training field 'warmup'; did you mean 'warmup_steps'"):
        TrainConfig.from_dict(TrainConfig().to_dict() | {"warmup": 3})
    stored = TrainConfig().to_dict()
    with pytest.raises(InputError, match="unknown model field 'heads'; did you mean 'n_heads'"):
        TrainConfig.from_dict(stored | {"model": stored["model"] | {"heads": 2}})


BAD: list[tuple[str, Any]] = [
    *((name, value) for name in ("n_steps", "batch_size", "accumulation", "seq_len") for value in (0, -1, 1.5)),
    *((name, 0) for name in ("eval_every", "max_bad_steps", "eval_batches", "d_model", "n_heads", "n_layers")),
    *(("lr", value) for value in (0, -1e-3, math.nan, math.inf)),
    *(("weight_decay", value) for value in (-0.1, math.nan, math.inf)),
    *(("betas", value) for value in ((0.9,), (0.9, 1.0), (-0.1, 0.9))),
    *(("seed", -1), ("warmup_steps", -1), ("warmup_steps", 1_120), ("clip", 0), ("clip", -1.0), ("dropout", 1.0)),
    *(("accumulation", 3), ("d_model", 63), ("n_kv_heads", 3), ("positions", "sinusoidal")),
]


@pytest.mark.parametrize(("field", "value"), BAD, ids=lambda x: str(x))
def test_a_bad_value_is_refused_by_field_and_value(field: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        TrainConfig().replace(**{field: value})
    message = str(caught.value)
    assert message.startswith(f"{field} must be ")
    assert repr(value) in message
    assert "\n" not in message


RECURRENT = {"vocab_size": 320, "d_model": 16, "max_seq_len": 64, "n_heads": 2}
FAST_SLOW = FastSlowConfig(d_model=16, n_heads=2, d_ff=32, max_seq_len=64)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"n_stpes": 3}, "unknown training field 'n_stpes'; did you mean 'n_steps'"),
    ({"d_modle": 3}, "unknown training field 'd_modle'; did you mean 'd_model'"),
    ({"schedule": "cosin"}, "unknown schedule 'cosin'; did you mean 'cosine'"),
    ({"precision": "fp61"}, "unknown precision 'fp61'; did you mean 'fp16'"),
    ({"ema": 1.0}, "ema must be at least 0 and below 1, or None"),
    ({"ema": math.nan}, "ema must be at least 0 and below 1, or None"),
    ({"ema_every": 0}, "ema_every must be an integer of at least 1"),
    ({"ema_every": 2}, "ema_every must be 1 without ema"),
    ({"start": "runs/{preset}"}, "start must be a path in which only"),
    ({"recompute": "cheap"}, "recompute must be 'blocks' without activation_checkpointing, got 'cheap'"),
    ({"activation_checkpointing": True, "recompute": "cheep"}, "unknown choice of what to recompute 'cheep'; did you"),
    ({"gate_lr": 0.0}, "gate_lr must be positive"),
    ({"gate_lr": 0.1}, "gate_lr must be None for a model of the family transformer"),
    ({"model": FAST_SLOW, "gate_lr": 0.1, "frozen": True}, "gate_lr must be None .* fast-slow, which has no gate"),
    ({"model": FAST_SLOW, "seq_len": 16, "pool_factor": 16}, "pool_factor must be below seq_len=16, got 16"),
    ({"model": FAST_SLOW, "n_layers": 3}, "n_layers must be left out with a model of the family fast-slow"),
    ({"n_rounds": 3}, "n_rounds must be left out with a model of the family transformer"),
    ({"quack": 0.0}, "quack must be positive"),
    ({"quack": float("nan")}, "quack must be positive"),
    ({"qk_clip": -1.0}, "qk_clip must be positive"),
    ({"qk_rate": 0.0}, "qk_rate must be positive"),
    ({"quack": 1.0, "quack_norm": "nuclear"}, "unknown norm of QuacK 'nuclear'"),
    ({"quack_norm": "spectral"}, "quack_norm must be 'frobenius' without quack, got 'spectral'; give quack, too"),
    ({"muon_per_head": False}, "muon_per_head must be True without Muon, got False; give optimizer='muon', too"),
    ({"quack": 1.0, "qk_rate": 0.1}, "qk_rate must be None with quack"),
    ({"optimizer": "sgd"}, "unknown optimizer 'sgd'"),
    ({"qk_clip": 30.0, "qk_norm": True}, "QK-norm bounds the logits already"),
    ({"qk_clip": 30.0, "attention": "coupled-euler"}, "the coupling is not linear"),
    ({"qk_clip": 30.0, "sigma_reparam": True}, "sigma_reparam must be off with qk_clip"),
    ({"quack": 1.0, "attention": "decay"}, "quack must be None where no layer is known to have logits"),
    ({"quack": 1.0, "sigma_reparam": True}, "sigma_reparam must be off with quack"),
    ({"softcap": 0.0}, "softcap must be positive and finite, or None"),
    ({"z_loss": -1.0}, "z_loss must be"),
    ({"regularizer": "spectal"}, "unknown regularizer 'spectal'; did you mean 'spectral'"),
    ({"regularizer_weight": 1e-3}, "regularizer_weight must be None without a regularizer, got 0.001"),
    ({"regularizer": "spectral", "regularizer_weight": -1.0}, "regularizer_weight must be at least 0 and finite"),
    ({"regularizer": "spectral", "regularizer_weight": float("nan")}, "regularizer_weight must be at least 0"),
    ({"regularizer": "spectral", "sigma_reparam": True}, "divided by their norm"),
    ({"regularizer": "energy-single", "n_heads": 2}, "there are 2 heads"),
    ({"regularizer": "energy-multi", "attention": "mqa"}, "share the values of 1"),
    (
        {"regularizer": "spectral", "model": AKOrNConfig(**RECURRENT, coupling="conv")},
        "regularizer must be None for a model without attention, got 'spectral'; leave it out",
    ),
    (
        {"regularizer": "energy-multi", "model": ItrSAConfig(**RECURRENT, energy="multi")},
        "regularizer must be None where attention has an energy by construction",
    ),
]


@pytest.mark.parametrize(("changes", "says"), REFUSED, ids=lambda x: str(x)[:60])
def test_what_contradicts_or_has_no_effect_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        TrainConfig().replace(**changes)


def test_a_sequence_longer_than_the_learned_positions_is_refused_and_rope_has_no_limit() -> None:
    learned = TrainConfig().replace(positions="learned", max_seq_len=32, seq_len=32)
    with pytest.raises(InputError, match="seq_len must be at most max_seq_len=32, got 33; or raise max_seq_len"):
        learned.replace(seq_len=33)
    assert learned.replace(positions="rope", seq_len=33).seq_len == 33


@pytest.mark.parametrize("field", ["log_every", "save_every", "keep", "max_rollbacks", "threads", "telemetry_every"])
def test_the_fields_of_a_runtime_are_checked_too(field: str) -> None:
    may_be_none = field in ("threads", "telemetry_every")
    for value in (0,) if may_be_none else (0, None):
        rule = "at least 1, or None" if may_be_none else "an integer" if value is None else "at least 1"
        with pytest.raises(InputError, match=f"{field} must be {rule}, got {value}"):
            Runtime(**{field: value})
    with pytest.raises(InputError, match="unknown parallel 'fdsp'; did you mean 'fsdp'"):
        Runtime(parallel="fdsp")


def test_the_optimizer_is_adamw_with_the_recipes_numbers() -> None:
    config = TrainConfig().replace(lr=0.02, betas=(0.8, 0.9), weight_decay=0.3)
    optimizer = build_optimizer(config.replace(attention="coupled-euler").model.build(0), config)
    assert isinstance(optimizer, torch.optim.AdamW)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0]
    assert all(group["betas"] == (0.8, 0.9) and group["lr"] == 0.02 for group in optimizer.param_groups)


def requested(recipe: str | None = None, size: str | None = None, **given: Any) -> TrainConfig:
    given = {"n_boards": 20, "n_valid_boards": 10} | given if given.get("task") == "sudoku" else given
    return config_from_recipe(given, Runtime(), ProcessLayout(1), recipe, size)


def test_the_task_chooses_the_recipe_unless_one_is_named() -> None:
    boards = Sudoku(n_boards=20, n_valid_boards=10)
    assert requested(task="sudoku") == RECIPES["sudoku"].replace(task=boards)
    assert requested("akorn", n_boards=20, n_valid_boards=10).model == SIZES["akorn"].replace(vocab_size=10)
    assert requested("laptop", task="sudoku").lr == RECIPES["laptop"].lr
    assert requested(task="mqar").lr == RECIPES["laptop"].lr


@pytest.mark.parametrize("size", [None, "tiny", "itrsa-prenorm", "akorn"])
def test_models_know_rows_columns_and_boxes_of_the_boards_unless_told_otherwise(size: str | None) -> None:
    model = requested(size=size, task="sudoku", board_size=4).model
    positions = "grid-rope" if size == "akorn" else "grid"  # those of AKOrN's authors
    assert (model.positions, model.max_seq_len, model.vocab_size) == (positions, 16, 5)
    assert requested(size=size, task="sudoku", board_size=4, positions="rope").model.positions == "rope"
    learned = requested(size=size, task="sudoku", positions="learned", max_seq_len=90).model
    assert (learned.positions, learned.max_seq_len) == ("learned", 90)


class Own(torch.nn.Linear):
    """A layer of one's own that joins whole; `d_model` is its width."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model, d_model)


@pytest.mark.parametrize(
    ("gpu", "given", "expected"),
    [
        ("NVIDIA H200", {"n_steps": 100_000}, True),
        ("NVIDIA H200", {"n_steps": 1_000}, False),  # seconds on such a card
        ("GPU of tomorrow", {"n_steps": 100_000}, True),
        ("NVIDIA H200", {"n_steps": 100_000, "compile": False}, False),
        ("NVIDIA H200", {"n_steps": 100_000, "device": "cpu"}, False),
        ("NVIDIA H200", {"n_steps": 100_000, "attention": Whole(Own)}, False),
        ("NVIDIA H200", {"n_steps": 100_000, "n_processes": 2, "batch_size": 32}, False),
        (None, {"n_steps": 100_000}, False),
        (None, {"n_steps": 10, "compile": True}, True),
    ],
)
def test_a_long_run_on_one_gpu_is_compiled_unless_told_otherwise(
    gpu: str | None, given: dict[str, Any], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Criterion: the choice is stored, and a whole configuration that is named keeps its own."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu is not None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: gpu)
    given = {"seq_len": 512, "batch_size": 32} | given
    runtime, processes = Runtime(device=given.pop("device", "auto")), ProcessLayout(given.pop("n_processes", 1))
    config = config_from_recipe(given, runtime, processes, "laptop", "small")
    assert config.to_dict()["compile"] is expected
    stored = config.replace(compile=False)
    assert config_from_recipe({}, Runtime(), ProcessLayout(), stored) == stored


def test_a_length_other_than_the_boards_is_refused() -> None:
    with pytest.raises(InputError, match=r"^seq_len must be max_seq_len=81 under positions='grid', got 64"):
        requested(size="itrsa", task="text", positions="grid")
