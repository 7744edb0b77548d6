"""Which part of coupled attention does the work? (CoupledQK, table 1 and figure 1)

All integrators take three steps, as in the paper's table 9. The paper's Hamiltonian variant preserves volume but is
not symplectic, because its force is not a gradient. `coupled-symplectic` is symplectic, so C2 can be tested. The scale
`paper` has ten seeds, because C3 and C5 compare spreads and need many.
"""

from dataclasses import replace

from attractor.attention.presets import preset
from attractor.claims.claim import published
from attractor.study import ATTENTION_MAPS, Axis, Scale, Study, mechanisms

from ...language import desk, language, laptop
from .. import claims as coupled_qk

ROWS = Axis(
    "attention",
    mechanisms("standard", "gqa", "differential", "mlp-only")
    | {"coupled-euler": {"attention": preset("coupled-euler").replace(n_steps=3)}}
    | mechanisms("coupled-hamiltonian", "coupled-symplectic"),
)

STUDY = Study(
    title="Coupling, capacity or symplecticity",
    question="Do coupled queries and keys beat every uncoupled variant, and does it matter how they are integrated?",
    source="CoupledQK, table 1 and figure 1",
    rows=ROWS,
    baseline="standard",
    probes=(ATTENTION_MAPS,),
    scales={
        "smoke": Scale(language("smoke"), seeds=(0, 1)),
        "laptop": laptop(8),
        "desk": replace(desk(8), rows=Axis("attention", dict(ROWS.values) | mechanisms("gated"))),
        "bench": Scale(language("bench"), seeds=(0, 1)),
        "paper": Scale(language("paper"), seeds=tuple(range(10))),
    },
    published=published(coupled_qk.SMALL),
    claims=("C1", "C2", "C3", "C5", "C22", "C27"),
)
