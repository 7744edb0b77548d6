"""Which learning rate is best for each disputed mechanism? (a pilot, on a seed that judges nothing)"""

from attractor.study import Axis, Scale, Study, axis

from ..settings import ROWS, setting

STUDY = Study(
    title="Learning rates of disputed mechanisms",
    question="Which learning rate is best for each mechanism?",
    source="no table: the pilot before X1 to X7",
    rows=Axis("attention", ROWS),
    columns=axis("lr", 2e-3, 4e-3, 8e-3),
    baseline="standard",
    scales={
        "smoke": Scale(setting("smoke"), seeds=(0,), columns=axis("lr", 2e-3, 4e-3)),
        "laptop": Scale(setting("laptop"), seeds=(100,), columns=axis("lr", 1e-3, 2e-3, 4e-3, 8e-3, 16e-3)),
        "desk": Scale(setting("desk"), seeds=(100,)),
        "bench": Scale(setting("bench"), seeds=(100,), columns=axis("lr", 6e-4, 1.2e-3, 2.4e-3)),
    },
)
