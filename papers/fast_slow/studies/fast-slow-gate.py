"""Does FastSlow's gate stay closed because it learns too slowly? (ours; FastSlow's abstract reports a closed gate)

The gate has learning rates from the paper's 1e-4 to a thousand times that. In 650 steps of AdamW, a steady gradient
moves gamma by 650 learning rates: 0.065 in the paper. So its closed gate may say nothing about slow paths. An open gate
may say nothing either, because noise opens a gate at a high rate. So the study also measures what the slow path is
worth.
"""

from dataclasses import replace
from typing import Any

from attractor.study import Axis, Study

from ..probes.coupling import COUPLING_PROBE
from ..settings import GATE, LARGEST_GATE, LOSS, WORTH, base, scales

SCALES = scales()


def gates(scale: str) -> Axis:
    """Return the rows of a scale; a gate at the rate of the run has none of its own."""
    rate = base(scale).lr
    rows: dict[str, dict[str, Any]] = {
        f"gate {own}": {} if float(own) == rate else {"gate_lr": float(own)} for own in ("1e-4", "1e-3", "1e-2", "1e-1")
    }
    return Axis("gate", {"frozen": {"frozen": True}} | rows)


STUDY = Study(
    title="The rate of the gate",
    question="Does the gate stay closed because the slow path is of no use, or because it learns too slowly?",
    source="FastSlow, section 9 and the abstract's closed gate",
    rows=gates("paper"),
    baseline="frozen",
    quantities=(LOSS, GATE, LARGEST_GATE, WORTH),
    probes=(COUPLING_PROBE,),
    scales=SCALES | {"desk": replace(SCALES["desk"], rows=gates("desk"))},
    claims=("F5",),
)
