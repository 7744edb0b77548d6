"""FastSlow, section 4.2: a slow path with a learned decay, whose memory the paper saw collapse to about 2 tokens.

Memory is in tokens of the text: a position of the slow path is one, or P where it is pooled, so that a pooled path
never has less than P. What collapsed was, as we read it, a variant without pooling. The paper does not tell where its
decay started; it is tried from 256 and from 16 positions.
"""

from attractor.papers.fast_slow import SHORTEST_MEMORY
from attractor.study import Axis, Quantity, Study
from attractor.study.fast_slow import LOSS, SLOW_PATHS, WORTH, open_scales

STUDY = Study(
    title="Memory of the slow path",
    question="Does a learned decay collapse, and does pooling prevent it?",
    source="FastSlow, section 4.2",
    rows=Axis("slow path", SLOW_PATHS),
    baseline="softmax",
    quantities=(LOSS, Quantity("slow memory (tokens)", "timescales.slow_memory"), SHORTEST_MEMORY, WORTH),
    probes=("coupling",),
    scales=open_scales(),
    claims=("F10",),
)
