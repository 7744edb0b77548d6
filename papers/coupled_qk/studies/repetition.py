"""Does repeated text, or the learning rate, explain the published lead of coupled attention? (CoupledQK, table 1)

The paper trains for 4.9 passes over its text; the other studies here train for an eighth of a pass. So this study
crosses the learning rate with the number of passes. Runs of five passes use the first 1,638,400 bytes of the training
documents, and all runs are validated on the same documents. `benchmarks/cut_corpus.py` writes the shorter corpus.

Written before the first run: looks at 6 and 12 pairs of seeds, all pairs of one device; the lead is explained where the
interaction is shown to be below zero, and not explained where it is shown to be smaller than half of the published
lead (.0149 nats a byte). The control has two seeds: `--rows uniform --seeds 0 1`.
"""

from attractor.study import Axis, Scale, Study, mechanisms

from ...language import language
from ..claims import REPETITION


def columns(suffix: str = "") -> Axis:
    corpora = {"one pass": f"encyclopedic{suffix}", "five passes": f"encyclopedic{suffix}-5-passes"}
    changes = {label: {"lr": rate, "corpus": corpora[passes]} for label, (rate, passes) in REPETITION.items()}
    return Axis("rate and passes", changes)


STUDY = Study(
    title="Repeated text and learning rates",
    question="Does coupling lead where training text is repeated, or at a low learning rate?",
    source="CoupledQK, table 1 and table 8",
    rows=Axis("attention", mechanisms("standard", "coupled-hamiltonian")),
    columns=columns(),
    baseline="standard",
    scales={
        "smoke": Scale(
            language("smoke"),
            seeds=(0, 1),
            columns=Axis("rate", {f"{rate:g}, one pass": {"lr": rate} for rate in (2e-3, 4e-3)}),
        ),
        "desk": Scale(language("desk"), seeds=tuple(range(12))),
        "bench": Scale(language("bench"), seeds=tuple(range(6)), columns=columns("-gpt2")),
    },
    claims=("C19", "C20"),
)
