"""Which learning rate is best for each row of PsiQRH's protocol, on a shared grid? (a pilot)"""

from attractor.study import Scale, Study, axis

from ..settings import DESK_ROWS, ROWS, base

STUDY = Study(
    title="PsiQRH's learning rates on a shared grid",
    question="Which learning rate is best for PsiQRH, its parts and the baseline?",
    source="no table of a paper: the pilot before PsiQRH's comparison at equal parameters",
    rows=ROWS,
    columns=axis("lr", 5e-4, 1e-3, 2e-3, 4e-3),
    baseline="standard",
    budget="parameters",
    sized_by="psiqrh",
    scales={
        "smoke": Scale(base("smoke"), seeds=(0,)),
        "desk": Scale(base("desk"), seeds=(100,), rows=DESK_ROWS),
        "bench": Scale(base("bench"), seeds=(100,), columns=axis("lr", 1e-4, 3e-4, 1e-3)),
    },
)
