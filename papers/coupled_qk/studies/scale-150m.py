"""Does the lead of coupled attention hold in a larger model? (CoupledQK, table 3, figures 2 and 3)

No whole number of key heads gives the paper's 144.4M parameters of GQA; ours has 141.6M.
"""

from attractor.claims.claim import published
from attractor.study import ATTENTION_MAPS, Axis, Scale, Study, mechanisms
from attractor.train.config import RECIPES

from ...language import language
from .. import claims as coupled_qk

WIDER = {"d_model": 96, "n_heads": 4, "n_layers": 4, "d_ff": 256, "lr": 1.5e-3}

STUDY = Study(
    title="A larger model (150M)",
    question="Does coupled attention keep its lead in a larger model?",
    source="CoupledQK, table 3 and figure 2",
    rows=Axis("attention", mechanisms("standard", "gqa", "differential", "coupled-hamiltonian")),
    baseline="standard",
    probes=(ATTENTION_MAPS,),
    scales={
        "smoke": Scale(language("smoke", **WIDER), seeds=(0, 1)),
        "laptop": Scale(language("laptop", **WIDER), seeds=(0, 1, 2)),
        "bench": Scale(
            RECIPES["medium"].replace(corpus="encyclopedic-gpt2", n_steps=5_000, warmup_steps=350, eval_batches=64),
            seeds=(0,),
        ),
        "paper": Scale(RECIPES["medium"].replace(corpus="wikitext-103"), seeds=(0, 1, 2)),
    },
    published=published(coupled_qk.MEDIUM),
    claims=("C6", "C23", "C29"),
)
