"""Does coupling also help with rotary positions? (CoupledQK, table 13)"""

from attractor.claims.claim import published
from attractor.study import Axis, Scale, Study, axis, mechanisms

from ...language import desk, language, laptop
from .. import claims as coupled_qk

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
        "desk": desk(8),
        "bench": Scale(language("bench"), seeds=(0, 1)),
        "paper": Scale(language("paper"), seeds=(0, 1, 2)),
    },
    published=sum((published(table, column) for column, table in coupled_qk.POSITIONS.items()), ()),
    claims=("C16", "C25", "C26"),
)
