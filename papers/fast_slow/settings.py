"""Shared settings of the studies of FastSlow: its recipe at five scales, and the rows that several studies have.

smoke   the paper's model, 50 steps of 4 x 64 tokens of a corpus that comes with Python
laptop  the paper's model, batches, steps and rate (665,600 tokens), on bytes of encyclopedic text
desk    the laptop's at ten times the rate, with clipping, eight seeds: the control is worse by .48 nats (laptop: .22)
bench   the laptop's for ten times as many steps of sixteen sequences: 26.6M tokens
paper   as published; its text of 222,000 characters from several domains is not public, and a text of that name stands
        in for it

Rows that measure what the coupling is good for have a gate that can open: at the paper's rate a steady gradient moves
gamma by 650 x 1e-4, however useful the slow path is.
"""

from typing import Any

from attractor.attention.presets import preset
from attractor.runs.quantity import Quantity
from attractor.study.study import Scale
from attractor.train.config import RECIPES, TrainConfig

LOSS = Quantity("loss (nats)", "valid_loss", "lower")
GATE = Quantity("gate", "timescales.gate")
LARGEST_GATE = Quantity("largest |gate|", "timescales.gate_largest")
TRAINED = Quantity("trained", "probes.coupling.trained_parameters")
WORTH = Quantity("slow path's worth (nats)", "probes.coupling.worth")

OPEN_RATE = 1e-2  # a hundred times the paper's: 650 steps can lead from a closed gate to one that is wide open
SEEDS = {"smoke": (0, 1), "laptop": (0, 1, 2, 3), "desk": tuple(range(8)), "bench": (0, 1, 2), "paper": (0, 1, 2, 3)}


def base(scale: str, **changes: Any) -> TrainConfig:
    return _BASES[scale].replace(**changes)


def scales(seeds: dict[str, tuple[int, ...]] = SEEDS, **changes: Any) -> dict[str, Scale]:
    """Return all scales, with the same changes to the fields of their bases."""
    return {scale: Scale(base(scale, **changes), of_scale) for scale, of_scale in seeds.items()}


def open_scales() -> dict[str, Scale]:
    """Return all scales with a gate that can open. A laptop has one seed less, since these studies have many rows."""
    return scales(SEEDS | {"laptop": (0, 1, 2)}, gate_lr=OPEN_RATE)


# The control of claims about the slow path has all parameters of the coupled model, but the slow path sees no text.
UNINFORMATIVE: dict[str, dict[str, Any]] = {"uninformative slow path": {"slow_input": "constant"}}

PROJECTOR = {"projector_width": 256}
FIDELITY: dict[str, dict[str, Any]] = {
    "2 passes": {"equilibrium": "passes", "n_iterations": 2},
    "4 passes": {"equilibrium": "passes", "n_iterations": 4},
    "Anderson 4": {"equilibrium": "anderson", "n_iterations": 4},
    "fixed-point loss": {"fixed_point_loss": 0.1},
    "DEQ 8": {"equilibrium": "deq", "n_iterations": 8},
}
EQUILIBRIA: dict[str, dict[str, Any]] = {"single pass": {}, **FIDELITY, "projector": PROJECTOR}

# The injection enters at every evaluation, as printed, and f(x, y) = 0 is solved with the gradient of its solution.
EQUATION_2: dict[str, dict[str, Any]] = {
    "equation (2), 4 steps": {"equilibrium": "forced", "n_iterations": 4},
    "equation (2), solved": {"equilibrium": "forced-deq", "n_iterations": 8},
}

# Norm(W y) does not depend on the size of y, so the sphere has an effect only before a projector that is not linear.
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "none": {},
    "4 streams": {"streams": 4},
    "unit slow state": {"unit_slow_state": True},
    "both": {"streams": 4, "unit_slow_state": True},
    "projector": PROJECTOR,
    "projector and unit slow state": {**PROJECTOR, "unit_slow_state": True},
}

# As we read section 4.2, the slow path that collapsed had no pooling, since pooling is said to prevent the collapse.
SLOW_PATHS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "decay": {"slow_attention": "decay"},
    "decay without pooling": {"slow_attention": "decay", "pool_factor": 1},
    "decay without pooling from 16": {"slow_attention": preset("decay").replace(initial_memory=16.0), "pool_factor": 1},
}

_LAPTOP = RECIPES["fast-slow"].replace(corpus="encyclopedic", eval_batches=64)
_BASES: dict[str, TrainConfig] = {
    "smoke": RECIPES["fast-slow"].replace(n_steps=50, seq_len=64, eval_every=25, eval_batches=8),
    "laptop": _LAPTOP,
    "desk": _LAPTOP.replace(lr=1e-3, clip=1.0),
    "bench": _LAPTOP.replace(n_steps=6_500, batch_size=16, eval_every=650),
    "paper": RECIPES["fast-slow"].replace(corpus="multi-domain"),
}
