"""Do the attention maps of coupled attention have a higher effective rank? (CoupledQK, table 12)

The study also measures entropy and draws maps (figures 3 to 5). Its runs are those of coupling-ablation.py: the study
that runs first trains them.
"""

from attractor.study import ATTENTION_MAPS, Axis, Published, Quantity, Scale, Study, mechanisms

from ...language import desk, language, laptop
from .. import claims as coupled_qk

RANK = "effective rank"

STUDY = Study(
    title="What coupling does to attention maps",
    question="Are the maps of coupled attention of higher rank, and less collapsed where standard attention collapses?",
    source="CoupledQK, table 12 and figures 3 to 5",
    rows=Axis("attention", mechanisms("standard", "gqa", "differential", "mlp-only", "coupled-hamiltonian")),
    baseline="standard",
    probes=(ATTENTION_MAPS,),
    quantities=(
        Quantity(RANK, "probes.effective_rank", "higher"),
        Quantity("entropy (nats)", "probes.entropy"),
        Quantity("leading share", "probes.top_share"),
        Quantity("spectral gap", "probes.spectral_gap"),
        Quantity("sink mass", "probes.sink_mass"),
    ),
    scales={
        "smoke": Scale(language("smoke"), seeds=(0, 1)),
        "laptop": laptop(8),
        "desk": desk(8),
        "bench": Scale(language("bench"), seeds=(0, 1)),
        "paper": Scale(language("paper"), seeds=(0, 1, 2)),
    },
    published=tuple(
        Published(row, place, rank, quantity=RANK)
        for row, (layers, mean) in coupled_qk.RANKS.items()
        for place, rank in (("mean", mean), *((f"layer {n}", rank) for n, rank in enumerate(layers)))
    ),
    claims=("C14", "C15", "C21", "C28"),
)
