"""Which intervention keeps training stable at high learning rates? (QuacK, figures 2 and 4)

Interventions on attention logits are compared at three learning rates, in MHA and in MLA. At the scales laptop and desk
each has the tau, or the threshold, that studies/logit-control-grid.py found best at that scale and rate
(`settings.py`). At other scales it has a tau of 1 (QuacK), a factor of 0.1 (fixed rates), and a threshold of 30, or 100
at the scale paper (QK-clip). The paper's rates are 3e-4, 3e-3 and 3e-2. A column is named by its place, because a
smaller model diverges at another rate. A non-finite step is skipped and the run continues, so divergence shows as a
loss and not as a missing run.
"""

from attractor.study import PERPLEXITY, Quantity, Scale, Study

from ..probes.lemma import LEMMA_PROBE
from ..settings import RATES, TUNED, base, interventions, methods

SEEDS = {"smoke": (0, 1), "laptop": tuple(range(8)), "desk": (0, 1, 2, 3), "bench": (0,), "paper": (0,)}

STUDY = Study(
    title="Control of attention logits",
    question="Which intervention keeps training stable at high learning rates, and what does it cost at low ones?",
    source="QuacK, figures 2 and 4",
    rows=methods("paper", interventions(fixed=0.1, quack=1.0, clip=100.0)),
    columns=RATES["paper"],
    baseline="MHA QK-norm",
    quantities=(
        PERPLEXITY,
        Quantity("largest logit", "logits.max", "lower"),
        Quantity("mean change of logits", "logits.change", "lower"),
    ),
    probes=(LEMMA_PROBE,),
    scales={
        scale: Scale(
            base(scale),
            seeds,
            rows=methods(scale, interventions(fixed=0.1, quack=1.0, clip=30.0)),
            columns=RATES[scale],
            tuned=TUNED.get(scale, {}),
        )
        for scale, seeds in SEEDS.items()
    },
    claims=("L2", "L3", "L4", "L5", "L6", "L9", "L10", "L12", "L13", "L14"),
)
