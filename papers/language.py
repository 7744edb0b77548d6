"""Shared settings of the studies of language models, by scale, so that the studies can share runs.

    smoke    minutes on two cores, on corpora that come with Python; too small to support any claim
    laptop   an hour on two cores: many seeds of a small model on bytes of real text, where context matters early
    desk     nights on two cores: 0.93M parameters, four layers, heads 32 wide, 8.2M bytes of real text, and learned
             positions as in the paper; sequences are short enough that these learn to use context within 2M bytes.
             Five stacks of eight such runs side by side took an H200 one to two minutes
    bench    one GPU: the 60M model, 1,250 steps of 32 x 512 tokens, so that one pass over 21M tokens is enough; a run
             takes about four minutes of a shared H200
    paper    as CoupledQK publishes it

All corpora but smoke's are folders in ATTRACTOR_DATA that `attractor data prepare ... --out NAME` wrote: in bytes for
laptop and desk, in GPT-2's tokens for bench and paper.
"""

from typing import Any

from attractor.study.study import Scale
from attractor.train.config import RECIPES, TrainConfig

# The best rates of the grid 1e-3, 2e-3, 4e-3 of coupled_qk/studies/learning-rates.py that differ from the base's 2e-3
# (two seeds each; LOG.md, 2026-11-21). Coupled variants have the rate of the mechanism that they couple.
LAPTOP_RATES = dict.fromkeys(("differential", "coupled-differential", "gated", "coupled-gated", "uniform"), 4e-3)
# Desk has one rate, the best of that pilot for every row but one: coupled-hamiltonian was .0007 nats a byte better at
# 2e-3. That was one seed, seeds differ by .008, and rows at two rates also differ in how they attend (LOG.md,
# 2026-11-26).


def language(scale: str, **changes: Any) -> TrainConfig:
    """Return the base configuration of a study of language models."""
    return _BASES[scale].replace(**changes)


def laptop(seeds: int, **changes: Any) -> Scale:
    """Return the laptop scale with this number of seeds, at the learning rates of the pilot."""
    return Scale(language("laptop", **changes), tuple(range(seeds)), rates=LAPTOP_RATES)


def desk(seeds: int = 8, **changes: Any) -> Scale:
    """Return the desk scale with this number of seeds, all rows at one learning rate."""
    return Scale(language("desk", **changes), tuple(range(seeds)))


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
    lr=4e-3,
    eval_every=100,
    eval_batches=16,  # of the same 131,072 bytes for every row; 64 of them took a sixth of a run's time
    # Together they halve the time of a step on a core with AMX. Without bf16 instructions, bf16 alone saves no time.
    precision="bf16",
    compile=True,
)

_BASES: dict[str, TrainConfig] = {
    "smoke": RECIPES["laptop"].replace(n_steps=240, warmup_steps=24, eval_every=60),
    "laptop": _LAPTOP,
    "desk": _DESK,
    "bench": RECIPES["small"].replace(
        corpus="encyclopedic-gpt2",
        n_steps=1_250,
        warmup_steps=90,
        accumulation=1,
        compile=True,
        eval_every=250,
        eval_batches=16,
    ),
    "paper": RECIPES["small"].replace(corpus="wikitext-103"),
}
