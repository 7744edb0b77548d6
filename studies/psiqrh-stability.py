"""PsiQRH's assertion that phase activation stabilises training, over a sweep of learning rates; and that its scores do
not change under a rotation of queries and keys, on the trained weights.

One spike that both rows share says nothing about either; rates at which one of them still trains and the other does not
do.
"""

from attractor.attention.config import AttentionConfig
from attractor.attention.output.plain import Plain
from attractor.attention.project.shared import Shared
from attractor.papers.psiqrh import RATES, ROTATION
from attractor.study import PERPLEXITY, Axis, Quantity, Scale, Study, language
from attractor.train.config import RECIPES

WITHOUT_PHASE = AttentionConfig(project=Shared(), output=Plain(out_bias=True))
UNCLIPPED = {"schedule": "constant", "warmup_steps": 0, "clip": None, "weight_decay": 0.01}
SMALL = {"d_ff": 64, **UNCLIPPED}

STUDY = Study(
    title="Stability of phase activation",
    question="At how many learning rates does training stay stable, with and without the phase?",
    source="PsiQRH, stated",
    rows=Axis("attention", {"psiqrh without phase": {"attention": WITHOUT_PHASE}, "psiqrh": {"attention": "psiqrh"}}),
    columns=Axis("rate", {rate: {"lr": float(rate)} for rate in RATES}),
    baseline="psiqrh without phase",
    control=False,
    quantities=(PERPLEXITY, Quantity("spikes and skipped steps", "instabilities", "lower"), ROTATION),
    probes=("rotation",),
    scales={
        "smoke": Scale(language("smoke", **SMALL), seeds=(0, 1)),
        "laptop": Scale(language("laptop", **SMALL), seeds=(0, 1, 2, 3)),
        "bench": Scale(RECIPES["psiqrh"].replace(corpus="encyclopedic-gpt2", n_steps=2_000), seeds=(0, 1, 2)),
        "paper": Scale(RECIPES["psiqrh"].replace(corpus="wikitext-103"), seeds=(0, 1, 2)),
    },
    claims=("P5",),
)
