"""FastSlow, table 2: the coupled model against the frozen one, and against two dense models.

The frozen model holds 779,777 parameters as the coupled one does, and uses 402,176 of them: its slow path neither runs
nor learns. "Trained" counts what learns. The paper's figures are of one seed, and on a text of its own.
"""

from attractor.models import SIZES
from attractor.papers import fast_slow
from attractor.papers.claim import published
from attractor.study import Axis, Study
from attractor.study.fast_slow import GATE, LOSS, TRAINED, UNINFORMATIVE, scales

STUDY = Study(
    title="FastSlow and dense models",
    question="Does a slow path help, and does the gate to it open?",
    source="FastSlow, table 2",
    rows=Axis(
        "model",
        {
            "frozen": {"frozen": True},
            "coupled": {},
            **UNINFORMATIVE,
            "dense-minimind": {"model": SIZES["dense-minimind"]},
            "dense-gemma": {"model": SIZES["dense-gemma"]},
        },
    ),
    baseline="frozen",
    quantities=(LOSS, GATE, TRAINED),
    probes=("coupling",),
    scales=scales(),
    published=published({row: (*figure, None, 1) for row, figure in fast_slow.TWO_TIMESCALES.items()}),
    claims=("F5", "F6"),
)
