"""Do trained FastSlow models have the properties that the paper proves? (FastSlow, propositions 21 to 23)

The study measures the kinds of FastSlow whose equilibria, constraints or slow paths other studies compare, on the runs
of those studies.
"""

from attractor.study import Axis, Quantity, Study

from ..claims import BUILT
from ..probes.structure import STRUCTURE_PROBE
from ..settings import CONSTRAINTS, EQUILIBRIA, LOSS, SLOW_PATHS, open_scales

KINDS = {**EQUILIBRIA, **CONSTRAINTS, **SLOW_PATHS}

STUDY = Study(
    title="What FastSlow promises by construction",
    question="Is it causal, is its slow state slow, and is a closed gate no coupling?",
    source="FastSlow, propositions 21 to 23",
    rows=Axis("kind", {name: KINDS[name] for name in BUILT}),
    baseline="single pass",
    control=False,
    quantities=(
        Quantity("earlier logits moved by", "probes.structure.leak", "lower"),
        Quantity("slow states a block", "probes.structure.states", "lower"),
        Quantity("shut gate apart from frozen", "probes.structure.apart", "lower"),
        LOSS,
    ),
    probes=(STRUCTURE_PROBE,),
    scales=open_scales(),
    claims=("F1", "F2", "F3"),
)
