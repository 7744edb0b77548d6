"""Rows of the studies of windows, memories and full layers: equal parameters, by the widths of the MLPs, to .12%.

Four layers, with windows but for what the row says. Lengths are counted in windows W. A pair of key and value stands at
least 5 W tokens before its query, beyond the 4 (W - 1) that the windows of four layers reach together. The slow path
attends to means of four tokens.
"""

from typing import Any

from attractor.models import FastSlowConfig, TransformerConfig
from attractor.study import Axis, Scale
from attractor.tasks.recall import Recall
from attractor.train.config import TrainConfig

WIDE: dict[str, Any] = {"d_model": 64, "n_heads": 4, "max_seq_len": 4096, "positions": "rope"}
LAYERS = TransformerConfig(vocab_size=32, n_layers=4, d_ff=128, **WIDE)


def rows(window: int) -> Axis:
    two_timescales = FastSlowConfig(vocab_size=32, d_ff=216, window=window, **WIDE)
    return Axis(
        "model",
        {
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
            "window and slow path": {"model": two_timescales},
        },
    )


def recall(window: int, *lengths: int) -> Axis:
    """Return columns of sequences that are so many windows long."""
    return Axis("length", {f"{n} windows": task(window, n) for n in lengths})


def task(window: int, length: int) -> dict[str, Any]:
    recall = Recall(length=length * window, n_pairs=4, symbols=32, least_gap=5 * window)
    return {"task": recall, "seq_len": length * window}


def setting(window: int, n_steps: int) -> TrainConfig:
    return TrainConfig(
        model=LAYERS.replace(window=window),
        batch_size=16,
        n_steps=n_steps,
        warmup_steps=n_steps // 10,
        eval_every=n_steps // 5,
        eval_batches=16,
        lr=1e-3,
    ).replace(**task(window, 16))


SMOKE = Scale(setting(8, 20), seeds=(0, 1), rows=rows(8), columns=recall(8, 16))
LAPTOP = Scale(setting(8, 3_000), seeds=tuple(range(8)), rows=rows(8), columns=recall(8, 16))
DESK = Scale(setting(32, 6_000), seeds=tuple(range(8)))
BENCH = Scale(setting(32, 12_000), seeds=tuple(range(8)))
