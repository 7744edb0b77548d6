"""Does the number of integration steps matter? (CoupledQK, table 2)"""

from attractor.attention.presets import preset
from attractor.claims.claim import published
from attractor.study import Axis, Scale, Study, mechanisms

from ...language import desk, language, laptop
from .. import claims as coupled_qk

LEAPFROG = preset("coupled-hamiltonian")

STUDY = Study(
    title="Steps of integration",
    question="Does coupled attention gain anything from more than one step?",
    source="CoupledQK, table 2",
    rows=Axis(
        "attention",
        mechanisms("standard")
        | {f"leapfrog, n = {n}": {"attention": LEAPFROG.replace(n_steps=n)} for n in (1, 5, 7)}
        | {"leapfrog, n = 3": {"attention": "coupled-hamiltonian"}, "euler, n = 1": {"attention": "coupled-euler"}},
    ),
    baseline="standard",
    scales={
        "smoke": Scale(language("smoke"), seeds=(0, 1)),
        "laptop": laptop(4),
        "desk": desk(8),
        "bench": Scale(language("bench"), seeds=(0, 1)),
        "paper": Scale(language("paper"), seeds=(0, 1, 2)),
    },
    published=published(coupled_qk.STEPS),
    claims=("C4",),
)
