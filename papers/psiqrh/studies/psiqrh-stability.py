"""Does phase activation stabilise training, and are its scores invariant under rotation? (PsiQRH)

The study counts the learning rates at which training stays stable, with and without the phase. A spike that both rows
share says nothing about either. Invariance is measured on the trained weights, by rotating queries and keys.
"""

from attractor.study import PERPLEXITY, Axis, Quantity, Scale, Study

from ..claims import RATES, ROTATION
from ..probes.rotation import ROTATION_PROBE
from ..settings import ROWS, base

STUDY = Study(
    title="Stability of phase activation",
    question="At how many learning rates does training stay stable, with and without the phase?",
    source="PsiQRH, empirical benefits",
    rows=ROWS.only(("psiqrh", "psiqrh without phase")),
    columns=Axis("rate", {rate: {"lr": float(rate)} for rate in RATES}),
    baseline="psiqrh without phase",
    control=False,
    quantities=(PERPLEXITY, Quantity("spikes and skipped steps", "instabilities", "lower"), ROTATION),
    probes=(ROTATION_PROBE,),
    scales={
        "smoke": Scale(base("smoke"), seeds=(0, 1)),
        "laptop": Scale(base("laptop"), seeds=(0, 1, 2, 3)),
        "desk": Scale(base("desk", n_steps=500), seeds=(0, 1, 2, 3)),
        "bench": Scale(base("bench", n_steps=2_000), seeds=(0, 1, 2)),
        "paper": Scale(base("paper"), seeds=(0, 1, 2)),
    },
    claims=("P5",),
)
