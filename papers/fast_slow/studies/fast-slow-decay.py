"""Does the memory of a learned decay collapse to about two tokens? (FastSlow, section 4.2)

Memory is in tokens of the text. A position of a pooled slow path is P tokens, so its memory is never shorter than P.
As we read the paper, a variant without pooling collapsed. The paper does not say where its decay started; here it
starts at 256 and at 16 positions.
"""

from attractor.study import Axis, Quantity, Study

from ..claims import SHORTEST_MEMORY
from ..probes.coupling import COUPLING_PROBE
from ..settings import LOSS, SLOW_PATHS, WORTH, open_scales

STUDY = Study(
    title="Memory of the slow path",
    question="Does a learned decay collapse, and does pooling prevent it?",
    source="FastSlow, section 4.2",
    rows=Axis("slow path", SLOW_PATHS),
    baseline="softmax",
    quantities=(LOSS, Quantity("slow memory (tokens)", "timescales.slow_memory"), SHORTEST_MEMORY, WORTH),
    probes=(COUPLING_PROBE,),
    scales=open_scales(),
    claims=("F10",),
)
