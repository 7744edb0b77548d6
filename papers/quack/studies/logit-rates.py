"""What do smaller rates of the query and key weights alone do at the highest learning rate? (QuacK, figure 1)

Rows are multiples of the learning rate. QK-norm is the stable reference.
"""

from attractor.study import PERPLEXITY, Axis, Quantity, Scale, Study

from ..settings import RATES, base

HIGH = "high rate"
ROWS = Axis(
    "rate of W_q and W_k",
    {"1": {}, "0.1": {"qk_rate": 0.1}, "0.01": {"qk_rate": 0.01}, "QK-norm": {"qk_norm": True}},
)

STUDY = Study(
    title="Rates of query and key weights",
    question="Do smaller rates of the query and key weights alone make training stable?",
    source="QuacK, figure 1",
    rows=ROWS,
    baseline="QK-norm",
    quantities=(PERPLEXITY, Quantity("largest logit", "logits.max", "lower")),
    scales={
        scale: Scale(base(scale).replace(**RATES[scale].values[HIGH]), seeds)
        for scale, seeds in {"smoke": (0, 1), "laptop": tuple(range(8)), "bench": (0,), "paper": (0,)}.items()
    },
    claims=("L1",),
)
