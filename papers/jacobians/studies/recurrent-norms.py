"""What keeps the Jacobian of iterated attention small: the norm or the injection? (Jacobians, proposition 5.1)

Maps are measured trained and untrained, the untrained ones with weights of several gains. Without injection a state can
only start as its stimulus. So one more row has this start but keeps the injection, which tells the two changes apart.
"""

from attractor.study import Axis, Quantity, Study

from ..probes.dynamics import DYNAMICS_PROBE
from ..probes.iteration_maps import ITERATION_MAPS_PROBE
from ..settings import BOARDS, BOARDS_ELSEWHERE, ENTROPY, EXPONENT, NORM, scales


def of_maps(name: str, path: str) -> Quantity:
    return Quantity(name, f"probes.iteration_maps.{path}")


STUDY = Study(
    title="Norm and injection",
    question="What keeps the Jacobian of iterated attention small, and does the stimulus have to be seen again?",
    source="Jacobians, proposition 5.1 and section 5",
    rows=Axis(
        "model",
        {
            "ItrSA": {},
            "starts as its stimulus": {"blank": None},
            "no injection": {"blank": None, "inject": False},
            "no norm": {"norm": "none"},
        },
    ),
    baseline="ItrSA",
    control=False,
    quantities=(
        BOARDS,
        BOARDS_ELSEWHERE,
        EXPONENT,
        NORM,
        ENTROPY,
        *(
            of_maps(f"{name}, {norm}, gain {gain}", f"tokens.gain-{gain}.{key}.{path}")
            for gain in (1, 2, 4)
            for norm, key in (("norm", "unit"), ("no norm", "none"))
            for name, path in (("|J| with tokens", "growth"), ("entropy / log T", "mean_entropy"))
        ),
        of_maps("outside the circle, no norm", "turning.before.outside"),
        of_maps("outside the circle, one norm", "turning.one.later.outside"),
        of_maps("outside the circle, a norm for each token", "turning.rows.later.outside"),
    ),
    probes=(DYNAMICS_PROBE, ITERATION_MAPS_PROBE),
    scales=scales(),
    claims=("J1", "J10", "J11", "J15", "J16"),
)
