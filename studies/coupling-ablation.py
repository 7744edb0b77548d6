"""CoupledQK, table 1 and figure 1: which part of coupled attention does the work?

Both integrators take three steps, as in the paper's table 9. At `paper` scale ten seeds, so that C3 and C5 can be
tested.
"""

from attractor.attention.presets import preset
from attractor.study import Axis, Published, Scale, Study, language, laptop, mechanisms

ROWS = Axis(
    "attention",
    mechanisms("standard", "gqa", "differential", "mlp-only")
    | {"coupled-euler": {"attention": preset("coupled-euler").replace(n_steps=3)}}
    | mechanisms("coupled-hamiltonian"),
)

STUDY = Study(
    title="Coupling, capacity or symplecticity",
    question="Do coupled queries and keys beat every uncoupled variant, and does it matter how they are integrated?",
    source="CoupledQK, table 1 and figure 1",
    rows=ROWS,
    baseline="standard",
    probes=("attention maps",),
    scales={
        "smoke": Scale(language("smoke"), seeds=(0, 1)),
        "laptop": laptop(8),
        "bench": Scale(language("bench"), seeds=(0, 1)),
        "paper": Scale(language("paper"), seeds=tuple(range(10))),
    },
    published=(
        Published("standard", "", 24.22, 0.12, 3),
        Published("gqa", "", 24.66, 0.07, 3),
        Published("differential", "", 23.92, 0.12, 3),
        Published("mlp-only", "", 23.81, 0.31, 10),
        Published("coupled-euler", "", 22.55, 0.04, 3),
        Published("coupled-hamiltonian", "", 22.62, 0.04, 3),
    ),
    claims=("C1", "C2", "C3", "C5"),
)
