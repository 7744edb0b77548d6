"""Do more heads make recurrent attention less stable, trained and untrained? (Jacobians, section 5)"""

from attractor.study import Quantity, Study, axis

from ..probes.dynamics import DYNAMICS_PROBE
from ..probes.iteration_maps import ITERATION_MAPS_PROBE
from ..settings import BOARDS, BOARDS_ELSEWHERE, ENTROPY, EXPONENT, NORM, scales

STUDY = Study(
    title="Heads and exponents",
    question="Do more heads of less width make recurrent attention less stable?",
    source="Jacobians, section 5",
    rows=axis("n_heads", 1, 2, 4, 8),
    baseline="1",
    control=False,
    quantities=(
        BOARDS,
        BOARDS_ELSEWHERE,
        EXPONENT,
        NORM,
        ENTROPY,
        *(
            Quantity(f"{name}, untrained, gain {gain}", f"probes.iteration_maps.heads.gain-{gain}.{path}")
            for gain in (1, 2, 4)
            for name, path in (("rise a doubling", "rise"), ("entropy / log T", "mean_entropy"))
        ),
    ),
    probes=(DYNAMICS_PROBE, ITERATION_MAPS_PROBE),
    scales=scales(),
    claims=("J8",),
)
