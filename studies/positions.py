"""CoupledQK, table 13: does coupling compose with rotary positions?"""

from attractor.study import Axis, Published, Scale, Study, axis, language, laptop, mechanisms

STUDY = Study(
    title="Learned and rotary positions",
    question="Does coupled attention keep its lead under RoPE?",
    source="CoupledQK, table 13",
    rows=Axis("attention", mechanisms("standard", "coupled-hamiltonian")),
    columns=axis("positions", "learned", "rope"),
    baseline="standard",
    scales={
        "smoke": Scale(language("smoke"), seeds=(0, 1)),
        "laptop": laptop(3),
        "bench": Scale(language("bench"), seeds=(0, 1)),
        "paper": Scale(language("paper"), seeds=(0, 1, 2)),
    },
    published=(
        Published("standard", "learned", 24.22, 0.12, 3),
        Published("standard", "rope", 25.84, 0.07, 3),
        Published("coupled-hamiltonian", "learned", 22.62, 0.04, 3),
        Published("coupled-hamiltonian", "rope", 24.00, 0.03, 3),
    ),
    claims=("C16",),
)
