"""Rows of the studies of windows, memories and full layers: equal parameters, by the widths of the MLPs, to .25%.

Four layers, with windows but for what the row says. All have a short convolution, since the delta rule comes with one:
a value then knows its key, and rows differ in how far they see. Lengths are counted in windows W. A pair of key and
value stands more than 8 W tokens before its query, and the windows and convolutions of four layers reach at most
4 (W - 1 + 3) tokens back. The slow path attends to means of four tokens.

The laptop scale is as narrow as a pilot on another seed allowed: one full layer beside three windows of 4 solved the
task, with a gap of 5 W, in 2,400 steps at a rate of 2e-3. Without convolutions it still guessed then, as it did after
1,500 steps at width 64, at 1e-3 and 2e-3.
"""

from typing import Any

from attractor.models import FastSlowConfig, TransformerConfig
from attractor.study import Axis, Scale
from attractor.tasks.recall import Recall
from attractor.train.config import TrainConfig

MLP_WIDTHS = {  # by the width of the model
    32: {"layers": 64, "DeltaNet and full": 53, "gated-deltanet": 49, "window and slow path": 91},
    64: {"layers": 128, "DeltaNet and full": 108, "gated-deltanet": 101, "window and slow path": 216},
}


def shape(width: int, window: int, row: str = "layers") -> dict[str, Any]:
    sizes = {"vocab_size": 32, "d_model": width, "n_heads": width // 16, "d_ff": MLP_WIDTHS[width][row]}
    return {**sizes, "max_seq_len": 4096, "positions": "rope", "attention": "short-conv", "window": window}


def rows(width: int, window: int) -> Axis:
    delta_rule = {"attention": "gated-deltanet", "window": None}
    full = {"attention_global": "short-conv", "global_layers": "every:4"}
    mlp = {name: {"d_ff": d_ff} for name, d_ff in MLP_WIDTHS[width].items()}
    return Axis(
        "model",
        {
            "window": {},
            "window and full": {"global_layers": "every:4"},
            "DeltaNet and full": {**delta_rule, **full, **mlp["DeltaNet and full"]},
            "gated-deltanet": {**delta_rule, **mlp["gated-deltanet"]},
            "full": {"window": None},
            "window and slow path": {"model": FastSlowConfig(**shape(width, window, "window and slow path"))},
        },
    )


def recall(window: int, *lengths: int) -> Axis:
    """Return columns of sequences that are so many windows long."""
    return Axis("length", {f"{n} windows": task(window, n) for n in lengths})


def task(window: int, length: int) -> dict[str, Any]:
    recall = Recall(length=length * window, n_pairs=8, symbols=32, least_gap=8 * window)
    return {"task": recall, "seq_len": length * window}


def setting(width: int, window: int, n_steps: int) -> TrainConfig:
    return TrainConfig(
        model=TransformerConfig(n_layers=4, **shape(width, window)),
        batch_size=32,
        n_steps=n_steps,
        warmup_steps=n_steps // 10,
        eval_every=n_steps // 5,
        eval_batches=16,
        lr=2e-3,
        weight_decay=0.01,
    ).replace(**task(window, 16))


SMOKE = Scale(setting(32, 4, 20), seeds=(0, 1), rows=rows(32, 4), columns=recall(4, 16))
LAPTOP = Scale(setting(32, 4, 3_000), seeds=tuple(range(8)), rows=rows(32, 4), columns=recall(4, 16))
DESK = Scale(setting(32, 4, 6_000), seeds=tuple(range(1, 9)), rows=rows(32, 4), columns=recall(4, 16))  # 0: its pilot
BENCH = Scale(setting(64, 32, 12_000), seeds=tuple(range(8)))
