"""CoupledQK, table 12 and figures 3 to 5: entropy, effective rank and pictures of attention maps.

The runs are those of coupling-ablation.py: whichever of the two studies is run first trains them.
"""

from attractor.study import Axis, Published, Quantity, Scale, Study, language, laptop, mechanisms

RANK = "effective rank"
LAYERS_OF_STANDARD = (28.6, 179.5, 200.0, 176.8, 104.1, 100.1, 80.1, 40.4)
LAYERS_OF_COUPLED = (32.8, 185.0, 178.0, 175.9, 109.5, 111.1, 87.3, 49.8)

STUDY = Study(
    title="What coupling does to attention maps",
    question="Are the maps of coupled attention of higher rank, and less collapsed where standard attention collapses?",
    source="CoupledQK, table 12 and figures 3 to 5",
    rows=Axis("attention", mechanisms("standard", "gqa", "differential", "mlp-only", "coupled-hamiltonian")),
    baseline="standard",
    probes=("attention maps",),
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
        "bench": Scale(language("bench"), seeds=(0, 1)),
        "paper": Scale(language("paper"), seeds=(0, 1, 2)),
    },
    published=(
        Published("standard", "mean", 113.7, quantity=RANK),
        Published("coupled-hamiltonian", "mean", 116.2, quantity=RANK),
        *(Published("standard", f"layer {n}", x, quantity=RANK) for n, x in enumerate(LAYERS_OF_STANDARD)),
        *(Published("coupled-hamiltonian", f"layer {n}", x, quantity=RANK) for n, x in enumerate(LAYERS_OF_COUPLED)),
    ),
    claims=("C14", "C15"),
)
