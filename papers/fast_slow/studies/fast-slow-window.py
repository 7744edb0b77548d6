"""Does a slow path carry what a windowed fast path cannot see? (FastSlow, sections 5, 9, 11 and 12; a setting of ours)

In the paper the fast path attends to the whole text, so the slow path has nothing to add. Here each layer of the fast
path sees four tokens, and the task is to recall a value from a pair that stands at least 28 tokens back. The fast path
of a single pass reaches 9 tokens back, and that of four evaluations in both rounds 27. So a model whose slow path sees
no text must guess among 16 values, while "dense", whose fast path has no window, can look the value up.

Losses are in nats an answer. Guessing costs log 16 = 2.77. The learning rates of the gate are those of
`fast-slow-gate`. In all rows from "single pass" on, the gate has the highest of them. Seed 0 chose the setting, and
the study's seeds begin at 1.
"""

from typing import Any

from attractor.models import SIZES
from attractor.runs.quantity import LOSS_OF_VALIDATION
from attractor.study import ACCURACY, Axis, Scale, Study
from attractor.tasks.recall import Recall
from attractor.train.config import TrainConfig

from ..claims import CONSTRAINED
from ..probes.coupling import COUPLING_PROBE
from ..settings import CONSTRAINTS, GATE, PROJECTOR, UNINFORMATIVE, WORTH, base

WINDOW, LENGTH, GAP = 4, 48, 28
FAR = Recall(length=LENGTH, n_pairs=1, symbols=32, least_gap=GAP)
WIDE_RATE = 1e-1


def setting(n_steps: int, **changes: Any) -> TrainConfig:
    """Return the base of a scale; at desk it is the paper's budget of 500k tokens."""
    shape = {"task": FAR, "seq_len": LENGTH, "batch_size": 32, "window": WINDOW}
    steps = {"n_steps": n_steps, "warmup_steps": n_steps // 5, "eval_every": n_steps // 5}
    return base("desk", **shape, **steps, **changes)


def opened(**changes: Any) -> dict[str, Any]:
    return {"gate_lr": WIDE_RATE, **changes}


ROWS: dict[str, dict[str, Any]] = {
    "dense": {"frozen": True, "window": None},
    "windowed": {"frozen": True},
    "local and global": {"model": SIZES["dense-minimind"].replace(mlp="gelu", window=WINDOW, global_layers="every:4")},
    "gate 1e-4": {"gate_lr": 1e-4},
    "gate 1e-3": {},
    "gate 1e-2": {"gate_lr": 1e-2},
    "single pass": opened(),
    "2 passes": opened(equilibrium="passes", n_iterations=2),
    "4 passes": opened(equilibrium="passes", n_iterations=4),
    "Anderson 4": opened(equilibrium="anderson", n_iterations=4),
    "fixed-point loss": opened(fixed_point_loss=0.1),
    "DEQ 4": opened(equilibrium="deq", n_iterations=4),
    "projector": opened(**PROJECTOR),
    "P = 2": opened(pool_factor=2),
    "P = 8": opened(pool_factor=8),
    "1 round": opened(n_rounds=1),
    "3 rounds": opened(n_rounds=3),
    **{name: opened(**CONSTRAINTS[name]) for name in CONSTRAINTS if name not in ("none", "projector")},
    **{name: opened(**changes) for name, changes in UNINFORMATIVE.items()},
}

STUDY = Study(
    title="A window on the fast path",
    question="Does the slow path carry what a windowed fast path cannot see, and what opens its gate?",
    source="FastSlow, sections 5, 9, 11 and 12",
    rows=Axis("model", ROWS),
    baseline="windowed",
    control=False,  # attention to all positions alike has no window; the slow path without text is the control
    quantities=(LOSS_OF_VALIDATION, ACCURACY, GATE, WORTH, CONSTRAINED),
    probes=(COUPLING_PROBE,),
    scales={
        "smoke": Scale(setting(50, eval_batches=8), (1, 2)),
        "desk": Scale(setting(325), tuple(range(1, 9))),
        "bench": Scale(setting(3_250), (1, 2, 3, 4)),
    },
    claims=("F8", "F9", "F11", "F12", "F13"),
)
