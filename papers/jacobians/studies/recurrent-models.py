"""Which recurrent models solve harder boards than those of training? (Jacobians, section 6, tables 1 and 2)

The rows are models without a constraint, with a penalty, with an energy, and of oscillators. E-single and E-multi are
penalties; "one energy" and "energies" have their constraint built in. The published figures are approximate and were
measured on other boards, so `attractor evaluate` shows them, and not the report of this study.
"""

from attractor.study import Study

from ..probes.dynamics import DYNAMICS_PROBE
from ..probes.penalty import PENALTY_PROBE, TRAINED_PENALTY_PROBE
from ..settings import (
    BOARDS,
    BOARDS_ELSEWHERE,
    BOARDS_LONGER,
    CELLS_ELSEWHERE,
    CORRELATION,
    ENTROPY,
    EXPONENT,
    LONGER,
    NORM,
    PENALTY,
    kinds,
    rows,
)

STUDY = Study(
    title="Recurrent attention on Sudoku",
    question="Which recurrent models solve boards that are harder than those they learned from, and what marks them?",
    source="Jacobians, section 6",
    rows=rows("paper"),
    baseline="ItrSA",
    control=False,  # what guessing reaches is known here
    quantities=(
        BOARDS,
        BOARDS_LONGER,
        BOARDS_ELSEWHERE,
        LONGER,
        CELLS_ELSEWHERE,
        EXPONENT,
        NORM,
        ENTROPY,
        CORRELATION,
        PENALTY,
    ),
    probes=(DYNAMICS_PROBE, PENALTY_PROBE, TRAINED_PENALTY_PROBE),
    scales=kinds(),
    claims=("J2", "J3", "J4", "J5", "J6", "J7", "J9", "J12", "J13", "J14"),
)
