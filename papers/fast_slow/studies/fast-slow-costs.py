"""What do two timescales cost, and which count predicts the cost? (FastSlow, section 3.4)

All models are timed in turns in one process. The paper's wall-clock time, 0.97 of the dense model's, is for 4 x 256
tokens and a dense model whose MLP has three matrices. "dense" has the block of FastSlow, so that only the timescales
differ. `benchmarks/time_predictions.py` compares the sweep with L_eq and with FLOPs.
"""

from itertools import product
from typing import Any

from attractor.claims.claim import published
from attractor.models import SIZES, FastSlowConfig
from attractor.study import Axis, Quantity, Scale, Study
from attractor.train.config import RECIPES

from .. import claims as fast_slow

PERIODS, SLOW, ROUNDS = (2, 4, 8, 16), (1, 2, 4), (1, 2, 3)
PAPERS = FastSlowConfig()
NAMED: dict[str, dict[str, Any]] = {
    "dense-minimind": {"model": SIZES["dense-minimind"]},
    "dense": {"model": SIZES["dense-minimind"].replace(mlp=PAPERS.mlp)},
    "fast-slow": {},
    "frozen": {"frozen": True},
}
SWEEP: dict[str, dict[str, Any]] = {
    f"P={period}, {n_slow} slow, {n_rounds} rounds": {"pool_factor": period, "n_slow": n_slow, "n_rounds": n_rounds}
    for period, n_slow, n_rounds in product(PERIODS, SLOW, ROUNDS)
    if (period, n_slow, n_rounds) != (PAPERS.pool_factor, PAPERS.n_slow, PAPERS.n_rounds)
}
ROWS = Axis("model", NAMED | SWEEP)

BASE = RECIPES["fast-slow"].replace(corpus="stdlib-code", eval_batches=1)
STEP = Quantity("step tok/s", "tokens_per_second", "higher", relative_to="dense-minimind")

STUDY = Study(
    title="The cost of two timescales",
    question="Is FastSlow as fast as a dense model, and do layers over all positions foretell it?",
    source="FastSlow, section 3.4",
    rows=ROWS,
    baseline="dense-minimind",
    control=False,
    kind="timing",
    quantities=(
        STEP,
        Quantity("forward tok/s", "forward_tokens_per_second", "higher", relative_to="dense-minimind"),
        Quantity("peak memory (bytes)", "peak_memory_bytes", "lower", relative_to="dense-minimind"),
        Quantity("L_eq", "layer_equivalents"),
        Quantity("forward FLOPs a token", "forward_flops_per_token"),
    ),
    scales={
        "smoke": Scale(BASE.replace(batch_size=1, seq_len=64), seeds=(0,), rows=ROWS.only(NAMED)),
        "laptop": Scale(BASE, seeds=(0,)),
        "bench": Scale(BASE.replace(seq_len=1024), seeds=(0,)),
        "paper": Scale(BASE, seeds=(0,)),
    },
    published=(
        *published({"dense-minimind": (1.0,), "fast-slow": (1 / fast_slow.FAST_SLOW_TIME,)}, quantity=STEP.name),
        *published(fast_slow.LAYER_EQUIVALENTS, quantity="L_eq"),
    ),
    claims=("F4",),
)
