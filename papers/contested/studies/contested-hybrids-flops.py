"""Do hybrids recall more than a window at equal FLOPs? The rows of `contested-hybrids`, each with steps of its own."""

from attractor.runs.quantity import LOSS_OF_VALIDATION, SPEED
from attractor.study import ACCURACY, Study

from ..hybrids import BENCH, DESK, LAPTOP, SMOKE, recall, rows

STUDY = Study(
    title="Windows, memories and full layers at equal FLOPs",
    question="Do hybrids recall more than a window at equal FLOPs?",
    source="Kimi Linear, arXiv 2510.26692; Gemma 3; FastSlow, sections 9 and 12",
    rows=rows(64, 32),
    columns=recall(32, 16, 32, 64, 128),
    baseline="window",
    budget="flops",
    control=False,  # "window" knows no more than guessing does
    quantities=(ACCURACY, LOSS_OF_VALIDATION, SPEED),
    scales={"smoke": SMOKE, "laptop": LAPTOP, "desk": DESK, "bench": BENCH},
)
