"""What must a model with windows add to recall what no window sees? Rows of equal parameters (`../hybrids.py`)."""

from attractor.runs.quantity import LOSS_OF_VALIDATION, SPEED
from attractor.study import ACCURACY, Study

from ..hybrids import BENCH, DESK, LAPTOP, SMOKE, recall, rows

STUDY = Study(
    title="Windows, memories and full layers",
    question="What must a model with windows add to recall what no window sees?",
    source="Kimi Linear, arXiv 2510.26692; Gemma 3; FastSlow, sections 9 and 12",
    rows=rows(64, 32),
    columns=recall(32, 16, 32, 64, 128),
    baseline="window",
    control=False,  # "window" knows no more than guessing does
    quantities=(ACCURACY, LOSS_OF_VALIDATION, SPEED),
    scales={"smoke": SMOKE, "laptop": LAPTOP, "desk": DESK, "bench": BENCH},
    claims=("X8", "X9", "X10"),
)
