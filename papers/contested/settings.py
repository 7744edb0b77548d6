"""Shared settings of the studies of disputed mechanisms: those of language models, with rotary positions.

A row that adds parameters has a narrower MLP, so that all rows have equally many, to .1%.
A pilot on a seed that judges nothing (`studies/contested-rates.py`) gives each row its rate, here in RATES, before the
first run of a scale that is judged. Where a scale has none yet, all rows have the rate of the base.
"""

from typing import Any

from attractor.attention.presets import PRESETS
from attractor.study import Scale
from attractor.train.config import TrainConfig

from ..language import language

ROWS: dict[str, dict[str, Any]] = {
    "standard": {"attention": "standard"},
    "xsa": {"attention": "xsa"},
    "gated-heads": {"attention": "gated-heads"},
    "xsa, gated-heads": {"attention": PRESETS["xsa"].replace(output=PRESETS["gated-heads"].output)},
    "value-residual": {"attention": "value-residual"},
    "short-conv": {"attention": "short-conv"},
    "sinks": {"attention": "sinks"},
    "differential-v2": {"attention": "differential-v2"},
}


RATES: dict[str, dict[str, float]] = {  # by scale and row, where it differs from the base's 2e-3 and 4e-3
    "laptop": {
        **dict.fromkeys(("xsa", "gated-heads", "differential-v2"), 8e-3),
        **dict.fromkeys(("xsa, gated-heads", "value-residual", "sinks", "uniform"), 4e-3),
    },
}
MLP_WIDTHS = {  # of the rows that differ from the base's 192 and 384
    "laptop": {"gated-heads": 191, "xsa, gated-heads": 191, "short-conv": 191, "differential-v2": 171},
    "desk": {"gated-heads": 383, "xsa, gated-heads": 383, "short-conv": 383, "differential-v2": 341},
}


def scale(name: str, seeds: int, *rows: str) -> Scale:
    widths = MLP_WIDTHS.get(name, {})
    tuned = {(row, ""): {"d_ff": widths[row]} for row in rows if row in widths}
    return Scale(setting(name), tuple(range(seeds)), rates=RATES.get(name, {}), tuned=tuned)


def setting(scale: str, **changes: Any) -> TrainConfig:
    return language(scale, positions="rope", **changes)


def rows(*names: str) -> dict[str, dict[str, Any]]:
    return {name: ROWS[name] for name in names}
