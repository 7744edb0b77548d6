"""Does differential attention overtake coupled attention in a still larger model? (CoupledQK, table 4)

The model as specified has 454.7M parameters, not the "~350M" of the table's title.
"""

from attractor.claims.claim import published
from attractor.study import Axis, Scale, Study, mechanisms
from attractor.train.config import RECIPES

from ...language import language
from .. import claims as coupled_qk

WIDER = {"d_model": 128, "n_heads": 4, "n_layers": 6, "d_ff": 384, "lr": 1e-3}

STUDY = Study(
    title="A still larger model (350M)",
    question="Does differential attention overtake coupled attention as models grow?",
    source="CoupledQK, table 4",
    rows=Axis("attention", mechanisms("standard", "coupled-hamiltonian", "differential")),
    baseline="standard",
    scales={
        "smoke": Scale(language("smoke", **WIDER), seeds=(0, 1)),
        "laptop": Scale(language("laptop", **WIDER), seeds=(0, 1, 2)),
        "bench": Scale(
            RECIPES["large"].replace(corpus="encyclopedic-gpt2", n_steps=2_000, warmup_steps=150, eval_batches=64),
            seeds=(0,),
        ),
        "paper": Scale(RECIPES["large"].replace(corpus="wikitext-103"), seeds=(0, 1, 2)),
    },
    published=published(coupled_qk.LARGE),
    claims=("C7", "C24"),
)
