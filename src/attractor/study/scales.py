"""The settings that studies of language models share, by scale, so that their runs can be shared, too.

    smoke    minutes on two cores; the corpora that every Python brings along; says nothing about any claim
    laptop   an hour on two cores: many seeds of a small model on real text, in bytes, where context matters early
    desk     nights on two cores: 0.93M parameters, four layers, heads 32 wide, 8.2M bytes of real text, and learned
             positions as the paper has them; sequences are short enough that these learn to use context within 2M bytes
    bench    one GPU, a run within 25 minutes: the 60M model, 5,000 steps of 32 x 512 tokens
    paper    as CoupledQK publishes it

Corpora but smoke's are names in the folder ATTRACTOR_DATA, each made by `attractor data prepare ... --out NAME`: in
bytes on a laptop and at a desk, in GPT-2's tokens above that.
"""

from typing import Any

from attractor.study.study import Scale
from attractor.train.config import RECIPES, TrainConfig

# What differs from the base's 2e-3 on the grid 1e-3, 2e-3, 4e-3 of studies/learning-rates.py (two seeds each, LOG.md).
# Coupled variants have the rate of what they are coupled with.
LAPTOP_RATES = dict.fromkeys(
    ("differential", "coupled-differential", "gated", "coupled-gated", "uniform"),
    4e-3,
)


DESK_RATES: dict[str, float] = {}  # what a pilot on the grid of studies/learning-rates.py will have found


def language(scale: str, **changes: Any) -> TrainConfig:
    """The base of a study of language models."""
    return _BASES[scale].replace(**changes)


def laptop(seeds: int, **changes: Any) -> Scale:
    """So many seeds on a laptop, at the rates that the pilot found."""
    return Scale(language("laptop", **changes), tuple(range(seeds)), rates=LAPTOP_RATES)


def desk(seeds: int = 8, **changes: Any) -> Scale:
    """So many seeds at a desk, at the rates that the pilot found."""
    return Scale(language("desk", **changes), tuple(range(seeds)), rates=DESK_RATES)


def longer(config: TrainConfig, factor: float) -> dict[str, Any]:
    """Fields of an axis that trains for more steps, at the same shares of warm-up."""
    steps = round(config.n_steps * factor)
    return {"n_steps": steps, "warmup_steps": round(config.warmup_steps * factor)}


def mechanisms(*names: str, **changes: Any) -> dict[str, dict[str, Any]]:
    """Values of an axis: each mechanism by its name, with further fields changed alike."""
    return {name: {"attention": name} | changes for name in names}


_LAPTOP = RECIPES["laptop"].replace(
    corpus="encyclopedic",
    n_steps=800,
    warmup_steps=80,
    batch_size=8,
    seq_len=128,
    lr=2e-3,
    eval_every=160,
    eval_batches=64,
)

_DESK = _LAPTOP.replace(
    d_model=128,
    n_layers=4,
    d_ff=384,
    positions="learned",
    n_steps=1_000,
    warmup_steps=100,
    batch_size=64,
    eval_every=100,
    precision="bf16",  # the same loss as fp32 (2.567 and 2.565 after 100 steps), in .89 of its time on one core
)

_BASES: dict[str, TrainConfig] = {
    "smoke": RECIPES["laptop"].replace(n_steps=240, warmup_steps=24, eval_every=60),
    "laptop": _LAPTOP,
    "desk": _DESK,
    "bench": RECIPES["small"].replace(
        corpus="encyclopedic-gpt2", n_steps=5_000, warmup_steps=350, accumulation=1, compile=True, eval_batches=64
    ),
    "paper": RECIPES["small"].replace(corpus="wikitext-103"),
}
