"""Is PsiQRH better than a baseline with as many parameters? (PsiQRH, experimental protocol)

Two rows take one part away: the phase, or the shared latent. At the scale `desk` a third row has a latent as wide as
the model.
"""

from attractor.study import Scale, Study

from ..settings import DESK_RATES, DESK_ROWS, ROWS, base

STUDY = Study(
    title="PsiQRH against a matched baseline",
    question="Is PsiQRH better than standard attention at equal parameters, and which of its parts matters?",
    source="PsiQRH, experimental protocol",
    rows=ROWS,
    baseline="standard",
    budget="parameters",
    sized_by="psiqrh",
    scales={
        "smoke": Scale(base("smoke"), seeds=(0, 1), elsewhere=("stdlib-docs",)),
        "laptop": Scale(base("laptop"), seeds=(0, 1, 2), elsewhere=("scientific", "heterogeneous")),
        "desk": Scale(
            base("desk"),
            seeds=tuple(range(8)),
            rows=DESK_ROWS,
            rates=DESK_RATES,
            elsewhere=("scientific", "heterogeneous"),
        ),
        "bench": Scale(base("bench"), seeds=(0, 1), elsewhere=("scientific-gpt2", "heterogeneous-gpt2")),
        "paper": Scale(base("paper"), seeds=(0, 1, 2), elsewhere=("pubmed", "openwebtext")),
    },
    claims=("P1", "P2", "P4"),
)
