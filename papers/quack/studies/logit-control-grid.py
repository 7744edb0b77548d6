"""Which tau of QuacK and of fixed rates, and which threshold of QK-clip, is best? (QuacK, section 4)

This grid is behind studies/logit-control.py: tau 1e-2, 1e-1, 1 and 10, thresholds 30 and 100. It has one seed, as in
the paper, whose text prints the grid with a misprint (papers/quack/page.md). No other study of interventions has this
seed, so that what is chosen with it is judged on runs that it did not see.
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
