"""Is linear coupling enough, and does coupling add to differential or gated attention? (CoupledQK, section 5)

Linear coupling and coupled differential attention are the paper's future work. Gated attention is the rival that an
engineer would choose today.
"""

from attractor.study import Axis, Scale, Study, mechanisms

from ...language import desk, language, laptop

STUDY = Study(
    title="Coupling made simpler, and combined",
    question="Is linear coupling enough, and do coupled and differential or gated attention add up?",
    source="CoupledQK, future work (section 5)",
    rows=Axis(
        "attention",
        mechanisms(
            "standard",
            "coupled-euler",
            "coupled-linear",
            "differential",
            "coupled-differential",
            "gated",
            "coupled-gated",
        ),
    ),
    baseline="standard",
    scales={
        "smoke": Scale(language("smoke"), seeds=(0, 1)),
        "laptop": laptop(5),
        "desk": desk(8),
        "bench": Scale(language("bench"), seeds=(0, 1)),
        "paper": Scale(language("paper"), seeds=(0, 1, 2)),
    },
    claims=("C17", "C18"),
)
