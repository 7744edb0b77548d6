"""PsiQRH's protocol: phase-activated attention over a shared latent against a baseline with as many parameters.

Every row's MLP is resized to PsiQRH's parameters within 0.1%. Two rows take one part away: the phase, the shared
latent. The protocol's own sizes are those of scale `paper`; its "~7M parameters" cannot be met with GPT-2's vocabulary.
"""

from attractor.attention.config import AttentionConfig
from attractor.attention.output.plain import Plain
from attractor.attention.project.shared import Shared
from attractor.study import Axis, Scale, Study, language
from attractor.train.config import RECIPES

WITHOUT_PHASE = AttentionConfig(project=Shared(), output=Plain(out_bias=True))
SMALL = {"d_ff": 64, "schedule": "constant", "warmup_steps": 0, "clip": None, "lr": 1e-3, "weight_decay": 0.01}

STUDY = Study(
    title="PsiQRH against a matched baseline",
    question="Is PsiQRH better than standard attention at equal parameters, and which of its parts matters?",
    source="PsiQRH, experimental protocol",
    rows=Axis(
        "attention",
        {
            "standard": {"attention": "standard"},
            "psiqrh": {"attention": "psiqrh"},
            "psiqrh without phase": {"attention": WITHOUT_PHASE},
            "psiqrh without shared latent": {"attention": "phase"},
        },
    ),
    baseline="standard",
    budget="parameters",
    sized_by="psiqrh",
    scales={
        "smoke": Scale(language("smoke", **SMALL), seeds=(0, 1), elsewhere=("stdlib-docs",)),
        "laptop": Scale(language("laptop", **SMALL), seeds=(0, 1, 2), elsewhere=("scientific", "heterogeneous")),
        "bench": Scale(
            RECIPES["psiqrh"].replace(corpus="encyclopedic-gpt2", n_steps=5_000),
            seeds=(0, 1),
            elsewhere=("scientific-gpt2", "heterogeneous-gpt2"),
        ),
        "paper": Scale(
            RECIPES["psiqrh"].replace(corpus="wikitext-103"), seeds=(0, 1, 2), elsewhere=("pubmed", "openwebtext")
        ),
    },
    claims=("P1", "P2", "P4"),
)
