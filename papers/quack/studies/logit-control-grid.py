"""Which tau of QuacK and of fixed rates, and which threshold of QK-clip, is best? (QuacK, section 4)

This grid is behind studies/logit-control.py: tau 1e-2, 1e-1, 1 and 10, thresholds 30 and 100. It has one seed, as in
the paper, whose text prints the grid with a misprint (papers/quack/page.md). No other study of interventions has this
seed, so that what is chosen with it is judged on runs that it did not see.

Written before its first run at desk: of each method, in each kind and at each rate, the setting with the lowest
validation loss of the seed is chosen; where that is the largest or the smallest tau, the next power of ten is tried,
once. Then eight seeds (0 to 7) of studies/logit-control.py are judged at the middle and the high rate. Its first three
pairs were looked at with the tau of laptop, so that looks are at 3 and at 8 pairs.
"""

from typing import Any

from attractor.study import PERPLEXITY, Quantity, Scale, Study

from ..settings import RATES, base, methods

GRID: dict[str, dict[str, Any]] = {
    "QK-norm": {"qk_norm": True},
    **{f"QK-clip {threshold:g}": {"qk_clip": threshold} for threshold in (30.0, 100.0)},
    **{f"fixed {tau:g}": {"qk_rate": tau} for tau in (0.01, 0.1, 10.0)},  # at 1 nothing is done
    **{f"QuacK {tau:g}": {"quack": tau} for tau in (0.01, 0.1, 1.0, 10.0)},
}

STUDY = Study(
    title="Control of attention logits: the grid",
    question="Which tau, and which threshold, suits each method at each learning rate?",
    source="QuacK, section 4",
    rows=methods("paper", GRID),
    columns=RATES["paper"],
    baseline="MHA QK-norm",
    control=False,
    quantities=(PERPLEXITY, Quantity("largest logit", "logits.max", "lower")),
    scales={scale: Scale(base(scale), (100,), rows=methods(scale, GRID), columns=RATES[scale]) for scale in RATES},
)
