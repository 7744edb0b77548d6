"""Rows of the studies of windows, memories and full layers: equal parameters, by the widths of the MLPs, to .12%.

Four layers, with windows of 32 but for what the row says. A pair of key and value stands at least 160 tokens before its
query, beyond the 4 x 31 tokens that the windows of four layers reach together. The slow path attends to means of four
tokens.
"""

from typing import Any

from attractor.models import FastSlowConfig, TransformerConfig
from attractor.study import Axis, Scale
from attractor.tasks.recall import Recall
from attractor.train.config import TrainConfig

WINDOW, GAP = 32, 160
WIDE: dict[str, Any] = {"d_model": 64, "n_heads": 4, "max_seq_len": 4096, "positions": "rope", "window": WINDOW}
LAYERS = TransformerConfig(vocab_size=32, n_layers=4, d_ff=128, **WIDE)
ROWS: dict[str, dict[str, Any]] = {
    "window": {},
    "window and full": {"global_layers": "every:4"},
    "DeltaNet and full": {
        "attention": "gated-deltanet",
        "window": None,
        "attention_global": "standard",
        "global_layers": "every:4",
        "d_ff": 107,
    },
    "gated-deltanet": {"attention": "gated-deltanet", "window": None, "d_ff": 100},
    "full": {"window": None},
    "window and slow path": {
        "model": FastSlowConfig(vocab_size=32, d_ff=216, **WIDE),
    },
}


def recall(*lengths: int) -> Axis:
    task = {n: Recall(length=n, n_pairs=4, symbols=32, least_gap=GAP) for n in lengths}
    return Axis("length", {f"{n} tokens": {"task": task[n], "seq_len": n} for n in lengths})


def setting(n_steps: int) -> TrainConfig:
    return TrainConfig(
        model=LAYERS,
        task=Recall(length=512, n_pairs=4, symbols=32, least_gap=GAP),
        seq_len=512,
        batch_size=16,
        n_steps=n_steps,
        warmup_steps=n_steps // 10,
        eval_every=n_steps // 5,
        eval_batches=16,
        lr=2e-3,
    )


SMOKE = Scale(setting(20), seeds=(0, 1), columns=recall(256))
LAPTOP = Scale(setting(3_000), seeds=tuple(range(8)), columns=recall(512))
DESK = Scale(setting(6_000), seeds=tuple(range(8)))
BENCH = Scale(setting(12_000), seeds=tuple(range(8)))
