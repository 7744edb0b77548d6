"""Which learning rate is best for each recurrent model on boards, on a shared grid? (a pilot, a quarter as long)"""

from attractor.runs.quantity import LOSS_OF_VALIDATION
from attractor.study import Scale, Study, axis
from attractor.tasks.sudoku import Sudoku

from ..settings import BOARDS, CELLS, base, rows

FAMILIES = {"ItrSA", "ItrSA RMSNorm", "ItrSA unit norm", "ItrSA energies", "ItrSA pre-norm", "AKOrN", "recursive"}
DESK = base("desk").replace(task=Sudoku(augment=True), n_steps=1_000, warmup_steps=50, eval_every=500)
BENCH = base("bench").replace(n_steps=750, eval_every=375)

STUDY = Study(
    title="Learning rates of recurrent models",
    question="Which learning rate is best for each recurrent model on Sudoku?",
    source="no table of a paper: the pilot before the recurrent models at desk",
    rows=rows("desk").only(FAMILIES),
    columns=axis("lr", 1e-3, 2e-3, 4e-3, 8e-3, 16e-3),
    baseline="ItrSA",
    control=False,  # what guessing reaches is known here
    quantities=(LOSS_OF_VALIDATION, CELLS, BOARDS),
    scales={
        "smoke": Scale(base("smoke"), seeds=(0,), rows=rows("smoke").only(FAMILIES)),
        "desk": Scale(DESK, seeds=(100,)),
        "bench": Scale(BENCH, (100,), rows("bench").only(FAMILIES), axis("lr", 2.5e-4, 5e-4, 1e-3, 2e-3)),
    },
)
