"""Ours: FastSlow's gate at learning rates of its own, from the paper's 1e-4 to a thousand times that.

In 650 steps of AdamW |gamma| moves by about 650 rates at most. That is 0.065 in the paper, so that its closed gate may
be no finding about slow paths; a gate that opens may be none either, since noise would open one at a high rate. So what
the slow path is worth to the model is measured, too.
"""

from attractor.study import Axis, Study
from attractor.study.fast_slow import GATE, LARGEST_GATE, LOSS, OPEN_RATE, WORTH, scales

STUDY = Study(
    title="The rate of the gate",
    question="Does the gate stay closed because the slow path is of no use, or because it learns too slowly?",
    source="FastSlow, section 9 and the abstract's closed gate",
    rows=Axis(
        "gate",
        {
            "frozen": {"frozen": True},
            "gate 1e-4": {},
            "gate 1e-3": {"gate_lr": 1e-3},
            "gate 1e-2": {"gate_lr": OPEN_RATE},
            "gate 1e-1": {"gate_lr": 1e-1},
        },
    ),
    baseline="frozen",
    quantities=(LOSS, GATE, LARGEST_GATE, WORTH),
    probes=("coupling",),
    scales=scales(),
    claims=("F12",),
)
