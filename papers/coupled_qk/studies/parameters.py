"""How many parameters do the models have? (CoupledQK, tables 8, 9 and 11)

Our counts are exact at every scale. No reading of the paper's tables gives its 144.4M for the medium GQA model, or its
"~350M" for the large model (papers/coupled_qk/page.md).
"""

from attractor.claims.claim import published
from attractor.models import SIZES
from attractor.study import Axis, Quantity, Scale, Study, mechanisms
from attractor.train.config import RECIPES

from .. import claims as coupled_qk

SIZE = Axis("size", {name: {"model": SIZES[name]} for name in ("small", "medium", "large", "large-354m")})
PAPER = RECIPES["small"].replace(corpus="stdlib-code", vocab_size=50_257)

STUDY = Study(
    title="Parameters",
    question="How many parameters does each mechanism add?",
    source="CoupledQK, tables 8, 9 and 11",
    rows=Axis(
        "attention",
        mechanisms("standard", "gqa", "differential", "mlp-only", "coupled-euler", "coupled-hamiltonian"),
    ),
    columns=SIZE,
    baseline="standard",
    control=False,
    kind="counts",
    quantities=(Quantity("parameters", "n_parameters"),),
    scales={name: Scale(PAPER, seeds=(0,)) for name in ("smoke", "laptop", "bench", "paper")},
    published=sum((published(table, size) for size, table in coupled_qk.PRINTED_COUNTS.items()), ()),
    claims=("C13",),
)
