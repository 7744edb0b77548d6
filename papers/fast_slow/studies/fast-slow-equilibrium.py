"""Does coming closer to the equilibrium of Post help, or a learned projector? (FastSlow, section 11)

The gate can open in every row, because behind a closed gate no equilibrium depends on the slow state.
"""

from attractor.study import Axis, Study

from ..probes.coupling import COUPLING_PROBE
from ..settings import EQUATION_2, EQUILIBRIA, LOSS, UNINFORMATIVE, WORTH, open_scales

STUDY = Study(
    title="Approximations of the equilibrium",
    question="Does coming closer to the equilibrium help, and does a learned projector?",
    source="FastSlow, section 11",
    rows=Axis("method", EQUILIBRIA | EQUATION_2 | UNINFORMATIVE),
    baseline="single pass",
    quantities=(LOSS, WORTH),
    probes=(COUPLING_PROBE,),
    scales=open_scales(),
)
