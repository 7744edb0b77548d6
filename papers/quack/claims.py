"""LogitControl (QuacK): learning rates of query and key weights that bound how fast attention logits change.

The paper prints its results as curves, so most margins are MATTERS (`claim.py`). Its models have a BPE tokenizer.
"""

from dataclasses import replace
from math import log

from attractor.claims.claim import Claim, Paper
from attractor.claims.comparisons import Pair
from attractor.claims.rules import Costs, Differs, Equivalent, InRegime, Stays, WhereShown
from attractor.claims.verdicts import Rule, all_of
from attractor.runs.quantity import END_LOSS, SPEED, Quantity

from ..published import BYTES_PER_TOKEN, MATTERS
from .rules import AtScales

LARGEST_LOGIT = Quantity("largest logit of training", "logits.max", unit="x")
LOGIT_CHANGE = Quantity("mean change of logits in training", "logits.change", unit="x")
FIRST_ORDER = Quantity("change of logits by a step over the lemma's bound", "probes.lemma.share")
# In nats/byte: the least that an unstable run loses, a tenth of perplexity. Stability is judged by END_LOSS, whether
# or not attention matters in the setting, since a run that diverged shows that it is unstable in any setting.
UNSTABLE = 0.1 / BYTES_PER_TOKEN["encyclopedic"]

INTERVENTIONS = ("QK-norm", "QK-clip", "fixed rates", "QuacK")
KINDS = ("MHA", "MLA")
CLIPPED = 30.0  # the lower of the paper's two thresholds: logits below it need no control
LOW, MIDDLE, HIGH = "low rate", "middle rate", "high rate"  # 3e-4, 3e-3 and 3e-2 in the paper


def at(column: str, of: str, against: str, effect: float = -MATTERS, margin: float = MATTERS) -> Pair:
    """Return a comparison in one column. Most are claimed without a figure, so that their margin is MATTERS."""
    return Pair(of, against, effect, margin, column)


def stable(row: str, than: str) -> Pair:
    """Return a comparison at the highest rate in which one row is claimed to be stable and the other not."""
    return at(HIGH, row, than, -UNSTABLE, UNSTABLE / 2)


def tuned(rule: Rule) -> AtScales:
    """Return a rule on QuacK, clipping or fixed rates for the scales at which tau, threshold and factor were tuned."""
    return AtScales(rule, ("laptop", "desk"), "tau is untuned at this scale: a pilot of it would decide")


# Raising the rate helps the intervention without a tau: where it does not, the low rate is the optimum already.
RATE_HELPS = Differs(
    tuple(Pair(f"{kind} QK-norm", f"{kind} QK-norm", -MATTERS, MATTERS, MIDDLE, LOW) for kind in KINDS)
)


def below_optimum(rule: Rule) -> WhereShown:
    """Return a rule on the low rate, which lies below the optimum in the paper."""
    return WhereShown(rule, RATE_HELPS, "the low rate may be the optimum already; a lower rate would decide")


def growing(rule: Rule, *kinds: str, column: str = HIGH) -> InRegime:
    """Return a rule on logits that grow without an intervention."""
    bare = Quantity("largest logit of training", "logits.max")
    why = f"below {CLIPPED:g} there is little to hold down; a higher rate would decide"
    return InRegime(rule, kinds, bare, why, least=CLIPPED, columns=(column,))


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
        below_optimum(
            Equivalent(tuple(at(LOW, f"{kind} {name}", kind, 0.0) for kind in KINDS for name in INTERVENTIONS))
        ),
    ),
    Claim(
        "L3",
        "QK-clip is unstable at 3e-2 and behind at 3e-3 with MLA",
        "figure 2",
        "logit-control",
        tuned(
            all_of(
                Differs(tuple(stable(f"{kind} QuacK", f"{kind} QK-clip") for kind in KINDS), END_LOSS),
                Differs((at(MIDDLE, "MLA QK-clip", "MLA QuacK", MATTERS),)),
            )
        ),
    ),
    Claim(
        "L4",
        "fixed smaller rates are stable but behind QuacK",
        "figure 2",
        "logit-control",
        tuned(
            all_of(
                Differs(tuple(stable(f"{kind} fixed rates", kind) for kind in KINDS), END_LOSS),
                Differs(tuple(at(MIDDLE, f"{kind} fixed rates", f"{kind} QuacK", MATTERS) for kind in KINDS)),
            )
        ),
    ),
    Claim(
        "L5",
        "QuacK is best with MLA, just behind QK-norm with MHA",
        "figure 2",
        "logit-control",
        tuned(
            all_of(
                Differs(tuple(at(MIDDLE, "MLA QuacK", row) for row in ("MLA", "MLA QK-clip", "MLA fixed rates"))),
                # "Just behind" is at most four per cent of perplexity.
                Equivalent((at(MIDDLE, "MHA QuacK", "MHA QK-norm", 0.0, 2 * MATTERS),), only_above=True),
            )
        ),
    ),
    Claim(
        "L6",
        "QuacK holds down both the change and the maximum of logits",
        "figure 4",
        "logit-control",
        growing(
            all_of(
                *(
                    Differs(tuple(at(HIGH, f"{kind} QuacK", kind, -log(2), log(1.1)) for kind in KINDS), quantity)
                    for quantity in (LOGIT_CHANGE, LARGEST_LOGIT)
                )
            ),
            *KINDS,
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
                tuple(at(HIGH, f"{kind} QuacK", kind, -log(2), log(1.1)) for kind in KINDS),
                replace(FIRST_ORDER, unit="x"),
            ),
        ),
    ),
    Claim(
        "L10",
        "higher base rates are better once stable",
        "figure 2, stated",
        "logit-control",
        below_optimum(
            Differs(
                tuple(Pair(f"{kind} QuacK", f"{kind} QuacK", -MATTERS, MATTERS, MIDDLE, LOW) for kind in KINDS),
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
    Claim(
        "L12",
        "QK-norm is the most performant overall with MHA",
        "figure 2",
        "logit-control",
        tuned(
            Differs(
                tuple(at(MIDDLE, "MHA QK-norm", row) for row in ("MHA", "MHA QK-clip", "MHA fixed rates", "MHA QuacK"))
            )
        ),
    ),
    Claim(
        "L13",
        "without an intervention MLA is unstable at 3e-3",
        "figure 4: never below 4.5 nats in 1,500 steps",
        "logit-control",
        growing(Differs((at(MIDDLE, "MLA QK-norm", "MLA", -UNSTABLE, UNSTABLE / 2),), END_LOSS), "MLA", column=MIDDLE),
    ),
    Claim(
        "L14",
        "the part of second order of the bound is small",
        "appendix A",
        "logit-control",
        Stays(
            ("MHA QuacK", "MLA QuacK"),
            (LOW, MIDDLE, HIGH),
            0.1,
            Quantity(
                "part of second order of a step's change of logits, over the lemma's bound", "probes.lemma.second"
            ),
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
