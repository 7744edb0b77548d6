"""LogitControl (QuacK): learning rates of query and key weights that bound how fast attention logits change.

The paper prints its results as curves, so most margins are MATTERS (`claim.py`). Its models have a BPE tokenizer.
"""

from dataclasses import replace
from math import log

from attractor.claims.claim import Claim, Paper
from attractor.claims.comparisons import Pair
from attractor.claims.rules import Costs, Differs, Equivalent, Stays
from attractor.claims.verdicts import all_of
from attractor.runs.quantity import END_LOSS, SPEED, Quantity

from ..published import BYTES_PER_TOKEN, MATTERS

LARGEST_LOGIT = Quantity("largest logit of training", "logits.max", unit="x")
LOGIT_CHANGE = Quantity("mean change of logits in training", "logits.change", unit="x")
FIRST_ORDER = Quantity("change of logits by a step over the lemma's bound", "probes.lemma.share")
# In nats/byte: the least that an unstable run loses, a tenth of perplexity. Stability is judged by END_LOSS, whether
# or not attention matters in the setting, since a run that diverged shows that it is unstable in any setting.
UNSTABLE = 0.1 / BYTES_PER_TOKEN["encyclopedic"]

INTERVENTIONS = ("QK-norm", "QK-clip", "fixed rates", "QuacK")
LOW, MIDDLE, HIGH = "low rate", "middle rate", "high rate"  # 3e-4, 3e-3 and 3e-2 in the paper


def at(column: str, of: str, against: str, effect: float = -MATTERS, margin: float = MATTERS) -> Pair:
    """Return a comparison in one column. Most are claimed without a figure, so that their margin is MATTERS."""
    return Pair(of, against, effect, margin, column)


def stable(row: str, than: str) -> Pair:
    """Return a comparison at the highest rate in which one row is claimed to be stable and the other not."""
    return at(HIGH, row, than, -UNSTABLE, UNSTABLE / 2)


CLAIMS = (
    Claim(
        "L1",
        "smaller rates for W_q, W_k alone stabilise training at 3e-2",
        "figure 1",
        "logit-rates",
        Differs(tuple(Pair(row, "1", -UNSTABLE, UNSTABLE / 2) for row in ("0.1", "0.01")), END_LOSS),
    ),
    Claim(
        "L2",
        "at 3e-4 all interventions are alike",
        "figure 2",
        "logit-control",
        Equivalent(tuple(at(LOW, f"{kind} {name}", kind, 0.0) for kind in ("MHA", "MLA") for name in INTERVENTIONS)),
    ),
    Claim(
        "L3",
        "QK-clip is unstable at 3e-2 and behind at 3e-3 with MLA",
        "figure 2",
        "logit-control",
        all_of(
            Differs(tuple(stable(f"{kind} QuacK", f"{kind} QK-clip") for kind in ("MHA", "MLA")), END_LOSS),
            Differs((at(MIDDLE, "MLA QK-clip", "MLA QuacK", MATTERS),)),
        ),
    ),
    Claim(
        "L4",
        "fixed smaller rates are stable but behind QuacK",
        "figure 2",
        "logit-control",
        all_of(
            Differs(tuple(stable(f"{kind} fixed rates", kind) for kind in ("MHA", "MLA")), END_LOSS),
            Differs(tuple(at(MIDDLE, f"{kind} fixed rates", f"{kind} QuacK", MATTERS) for kind in ("MHA", "MLA"))),
        ),
    ),
    Claim(
        "L5",
        "QuacK is best with MLA, just behind QK-norm with MHA",
        "figure 2",
        "logit-control",
        all_of(
            Differs(tuple(at(MIDDLE, "MLA QuacK", row) for row in ("MLA", "MLA QK-clip", "MLA fixed rates"))),
            Differs((at(MIDDLE, "MHA QuacK", "MHA QK-norm", MATTERS),)),
        ),
    ),
    Claim(
        "L6",
        "QuacK holds down both the change and the maximum of logits",
        "figure 4",
        "logit-control",
        all_of(
            Differs((at(MIDDLE, "MLA QuacK", "MLA", -log(2), log(1.1)),), LOGIT_CHANGE),
            Differs((at(MIDDLE, "MLA QuacK", "MLA", -log(2), log(1.1)),), LARGEST_LOGIT),
        ),
    ),
    Claim(
        "L7",
        "Frobenius and spectral norm are alike",
        "figure 3",
        "logit-norms",
        Equivalent(tuple(Pair("spectral", "frobenius", 0.0, MATTERS, f"tau {tau}") for tau in ("0.1", "1"))),
    ),
    Claim(
        "L8",
        "QuacK is about 10% faster than QK-norm",
        "stated",
        "logit-costs",
        Costs(SPEED, "QK-norm", (("QuacK", 1.1),), 0.05, True),
    ),
    Claim(
        "L9",
        "the lemma: bounded first-order change",
        "appendix A",
        "logit-control",
        all_of(
            Stays(("MHA QuacK", "MLA QuacK"), (LOW, MIDDLE, HIGH), 1.0, FIRST_ORDER),
            # A bound that holds as well without QuacK says nothing of it.
            Differs(
                tuple(at(HIGH, f"{kind} QuacK", kind, -log(2), log(1.1)) for kind in ("MHA", "MLA")),
                replace(FIRST_ORDER, unit="x"),
            ),
        ),
    ),
    Claim(
        "L10",
        "higher base rates are better once stable",
        "figure 2, stated",
        "logit-control",
        Differs(
            tuple(
                Pair(f"{kind} {row}", f"{kind} {row}", -MATTERS, MATTERS, MIDDLE, LOW)
                for kind in ("MHA", "MLA")
                for row in ("QK-norm", "QuacK")
            )
        ),
    ),
    Claim(
        "L11",
        "QuacK is faster than QK-clip",
        "stated",
        "logit-costs",
        all_of(
            *(Costs(SPEED, f"QK-clip, {heads}", (("QuacK", 1.0),), 0.0, True) for heads in ("no head", "every head")),
        ),
    ),
)

PAPER = Paper(
    "LogitControl",
    "Controlling changes to attention logits",
    "Ben Anson and Laurence Aitchison",
    2025,
    "2511.21377",
    "QuacK: rates for query and key weights that bound how fast attention logits change, for MLA too.",
    CLAIMS,
)
