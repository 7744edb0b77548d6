"""CoupledQK, tables 8, 9 and 11: the models' parameters, counted exactly at every scale.

Our counts are exact; the paper's 144.4M for the medium GQA model, and "~350M" for the large one as specified, are not
reached by any reading of its tables (docs/attention.md).
"""

from attractor.models import SIZES
from attractor.study import Axis, Published, Quantity, Scale, Study, mechanisms
from attractor.train.config import RECIPES

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
    published=(
        Published("standard", "small", 60_343_296),
        Published("coupled-hamiltonian", "small", 60_408_896),
        Published("coupled-euler", "small", 60_408_896),
        Published("gqa", "small", 57_197_568),
        Published("differential", "small", 60_343_360),
        Published("standard", "medium", 152.3e6),
        Published("gqa", "medium", 144.4e6),
        Published("coupled-hamiltonian", "medium", 152.4e6),
        Published("standard", "large", 350e6),
    ),
    claims=("C13",),
)
