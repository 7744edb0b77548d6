"""FastSlow, section 5: doubly stochastic mixing of residual streams (M1) and a slow state on the unit sphere (M2).

Under a linear phi the sphere changes nothing but rounding, since the norm behind phi does not know the size of the
state; so it is tried before a projector, too.
"""

from attractor.papers.fast_slow import CONSTRAINED
from attractor.study import Axis, Study
from attractor.study.fast_slow import CONSTRAINTS, LOSS, UNINFORMATIVE, WORTH, open_scales

STUDY = Study(
    title="Manifold constraints",
    question="Do constraints of norm on mixing or on the slow state help or harm?",
    source="FastSlow, section 5, remark 24",
    rows=Axis("constraint", CONSTRAINTS | UNINFORMATIVE),
    baseline="none",
    quantities=(LOSS, WORTH, CONSTRAINED),
    probes=("coupling",),
    scales=open_scales(),
    claims=("F9",),
)
