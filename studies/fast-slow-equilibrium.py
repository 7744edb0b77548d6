"""FastSlow, section 11: ways to come closer to Post's equilibrium, and the learned projector.

The gate can open in every row: behind a shut one no equilibrium depends on the slow state, and the question is empty.
"""

from attractor.study import Axis, Study
from attractor.study.fast_slow import EQUILIBRIA, LOSS, UNINFORMATIVE, WORTH, open_scales

STUDY = Study(
    title="Approximations of the equilibrium",
    question="Does coming closer to the equilibrium help, and does a learned projector?",
    source="FastSlow, section 11",
    rows=Axis("method", EQUILIBRIA | UNINFORMATIVE),
    baseline="single pass",
    quantities=(LOSS, WORTH),
    probes=("coupling",),
    scales=open_scales(),
    claims=("F8",),
)
