"""Does a slow path help, against a frozen model and two dense models? (FastSlow, table 2)

The frozen model has 779,777 parameters like the coupled one, and uses 402,176 of them: its slow path neither runs nor
learns. The column "trained" counts what learns. The paper's figures come from one seed and another text.
"""

from attractor.claims.claim import published
from attractor.models import SIZES
from attractor.study import Axis, Study

from .. import claims as fast_slow
from ..probes.coupling import COUPLING_PROBE
from ..settings import GATE, LOSS, TRAINED, UNINFORMATIVE, scales

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
    probes=(COUPLING_PROBE,),
    scales=scales(),
    published=published({row: (*figure, None, 1) for row, figure in fast_slow.TWO_TIMESCALES.items()}),  # type: ignore[misc]
    claims=("F6",),
)
