"""How far back do models of long documents read, with and without a slow path? (FastSlow, section 12)

The text is encyclopedic documents of at least 16,000 bytes, in sequences of 1,024 bytes. Each layer of a windowed fast
path sees 32 bytes, so the fast path of a single pass reaches 93 bytes back. The table shows what context beyond 64 and
beyond 128 bytes is worth to each model: the loss of the positions that have so much context, minus the loss of the
last half of the sequence.
"""

from typing import Any

from attractor.models import SIZES
from attractor.runs.quantity import LOSS, Quantity
from attractor.study import Axis, Scale, Study

from ..probes.coupling import COUPLING_PROBE
from ..probes.positions import POSITIONS_PROBE
from ..settings import GATE, OPEN_RATE, UNINFORMATIVE, WORTH, base

WINDOW = 32
ROWS: dict[str, dict[str, Any]] = {
    "dense": {"frozen": True, "window": None},
    "windowed": {"frozen": True},
    "local and global": {"model": SIZES["dense-minimind"].replace(mlp="gelu", window=WINDOW, global_layers="every:4")},
    "coupled": {"gate_lr": OPEN_RATE},
    "uninformative slow path": {"gate_lr": OPEN_RATE, **UNINFORMATIVE["uninformative slow path"]},
}
LONG = {"corpus": "encyclopedic-long", "seq_len": 1024, "window": WINDOW, "eval_batches": 32}

STUDY = Study(
    title="Long documents",
    question="What is context beyond a window worth in long documents, and does a slow path read it?",
    source="FastSlow, section 12",
    rows=Axis("model", ROWS),
    baseline="windowed",
    control=False,  # attention to all positions alike has no window
    quantities=(
        LOSS,
        Quantity("gain beyond 64 bytes (nats)", "probes.positions.gain.64"),
        Quantity("gain beyond 128 bytes (nats)", "probes.positions.gain.128"),
        GATE,
        WORTH,
    ),
    probes=(POSITIONS_PROBE, COUPLING_PROBE),
    scales={
        "smoke": Scale(base("smoke", window=8), (0, 1)),
        "desk": Scale(base("desk", **LONG, n_steps=325, eval_every=65), (0, 1, 2, 3)),
        "bench": Scale(base("bench", **LONG), (0, 1, 2)),
    },
)
