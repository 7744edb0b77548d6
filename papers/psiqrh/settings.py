"""Shared settings of the studies of PsiQRH: their rows, and the paper's protocol at five scales.

Every row's MLP is resized to PsiQRH's parameters within 0.1%. The protocol has a constant rate, no warm-up and no
clipping.

smoke   minutes on two cores; too small to support any claim
laptop  the small language model of `scales`, with an MLP of width 64
desk    1M parameters in four layers with two heads of 32, on 8.2M bytes, each row at its `DESK_RATES` or at 1e-3
bench   the protocol's model, 5,000 of its 20,000 steps
paper   the protocol as published, but for its "~7M parameters", which GPT-2's vocabulary rules out
"""

from typing import Any

from attractor.attention.config import AttentionConfig
from attractor.attention.output.plain import Plain
from attractor.attention.presets import preset
from attractor.attention.project.shared import Shared
from attractor.study.study import Axis
from attractor.train.config import RECIPES, TrainConfig

from ..language import language

WITHOUT_PHASE = AttentionConfig(project=Shared(), output=Plain(out_bias=True))
ROWS = Axis(
    "attention",
    {
        "standard": {"attention": "standard"},
        "psiqrh": {"attention": "psiqrh"},
        "psiqrh without phase": {"attention": WITHOUT_PHASE},
        "psiqrh without shared latent": {"attention": "phase"},
    },
)

WIDTH = 64  # of the desk's model: with a latent of four times this width, four layers have 1M parameters
# The protocol's latent is four times as wide as the model, and takes parameters that the MLP has in other rows. A
# latent as wide as the model shows what this costs.
DESK_ROWS = Axis(
    "attention",
    dict(ROWS.values) | {"psiqrh with a narrow latent": {"attention": preset("psiqrh").replace(latent=WIDTH)}},
)
# The best rates of the pilot studies/psiqrh-rates.py that differ from the base's 1e-3 (LOG.md, 2026-11-27).
DESK_RATES = {
    "standard": 2e-3,
    "psiqrh without shared latent": 2e-3,
    "psiqrh with a narrow latent": 2e-3,
    "uniform": 2e-3,
}

_PROTOCOL: dict[str, Any] = {"schedule": "constant", "warmup_steps": 0, "clip": None, "weight_decay": 0.01}
_SMALL: dict[str, Any] = {"d_ff": 64, "lr": 1e-3, **_PROTOCOL}
_BASES: dict[str, TrainConfig] = {
    "smoke": language("smoke", **_SMALL),
    "laptop": language("laptop", **_SMALL),
    "desk": language("desk", d_model=WIDTH, n_heads=2, **_SMALL),
    "bench": RECIPES["psiqrh"].replace(corpus="encyclopedic-gpt2", n_steps=5_000),
    "paper": RECIPES["psiqrh"].replace(corpus="wikitext-103"),
}


def base(scale: str, **changes: Any) -> TrainConfig:
    return _BASES[scale].replace(**changes)
