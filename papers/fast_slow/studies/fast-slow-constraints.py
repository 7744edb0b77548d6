"""Do constraints on mixing (M1) or on the slow state (M2) help? (FastSlow, section 5)

M1 mixes residual streams by doubly stochastic matrices, and M2 puts the slow state on the unit sphere. With a linear
phi, M2 changes nothing but rounding, because the norm behind phi removes the length of the state. So M2 is tested with
a projector, too.
"""

from attractor.study import Axis, Study

from ..claims import CONSTRAINED
from ..probes.coupling import COUPLING_PROBE
from ..settings import CONSTRAINTS, LOSS, UNINFORMATIVE, WORTH, open_scales

STUDY = Study(
    title="Manifold constraints",
    question="Do constraints of norm on mixing or on the slow state help or harm?",
    source="FastSlow, section 5, remark 24",
    rows=Axis("constraint", CONSTRAINTS | UNINFORMATIVE),
    baseline="none",
    quantities=(LOSS, WORTH, CONSTRAINED),
    probes=(COUPLING_PROBE,),
    scales=open_scales(),
)
