"""Which learning rate is best for each mechanism, and can the setting tell mechanisms apart? (a pilot)

A comparison at a single learning rate also compares learning rates. At laptop, each row of the other studies uses the
rate that is best here. At desk, all rows use 4e-3. This rate is the best of every row but coupled-hamiltonian, whose
loss at its best rate is less than .001 nats a byte lower.
"""

from attractor.study import Axis, Scale, Study, axis, mechanisms

from ...language import language

STUDY = Study(
    title="Learning rates on a shared grid",
    question="Which learning rate is best for each mechanism, and is the setting sensitive there?",
    source="no table of a paper: the pilot before C1, C4 and C8 of CoupledQK",
    rows=Axis(
        "attention",
        mechanisms("standard", "gqa", "differential", "mlp-only", "coupled-euler", "coupled-hamiltonian", "gated"),
    ),
    columns=axis("lr", 1e-3, 2e-3, 4e-3),
    baseline="standard",
    scales={
        "smoke": Scale(language("smoke"), seeds=(0,)),
        "laptop": Scale(language("laptop"), seeds=(100, 101)),
        "desk": Scale(language("desk"), seeds=(100,), columns=axis("lr", 1e-3, 2e-3, 4e-3, 8e-3)),
        "bench": Scale(language("bench"), seeds=(100,), columns=axis("lr", 6e-4, 1.2e-3, 2.4e-3)),
    },
)
