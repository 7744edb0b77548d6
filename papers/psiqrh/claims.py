"""PsiQRH: phase-activated attention over a shared latent. The document asserts its claims without valid figures."""

from attractor.claims.claim import Claim, Paper
from attractor.claims.comparisons import Pair
from attractor.claims.rules import Costs, Differs, Reported, Stays
from attractor.claims.verdicts import all_of
from attractor.runs.quantity import GAP_ELSEWHERE, LOSS_ELSEWHERE, MEAN_LOSS, MEMORY, SPEED, Quantity

from ..published import better
from .rules import StableAtMore

RATES = ("1e-3", "3e-3", "1e-2", "3e-2")  # the sweep over which stability is judged
ROTATION = Quantity("largest change of scores under a common rotation of queries and keys", "probes.rotation.change")
INVARIANT = 1e-3  # of the scores' size, which rounding stays far below

CLAIMS = (
    Claim(
        "P1",
        "PsiQRH beats a parameter-matched baseline in perplexity and converges faster",
        "asserted, no valid figure",
        "psiqrh",
        all_of(Differs(better("psiqrh", "standard")), Differs(better("psiqrh", "standard"), MEAN_LOSS)),
    ),
    Claim(
        "P2",
        "PsiQRH generalises better out of distribution",
        "asserted",
        "psiqrh",
        all_of(
            Differs(better("psiqrh", "standard"), LOSS_ELSEWHERE),
            # A model that is better everywhere has no smaller gap. A worse one can have it, as the control shows.
            Differs(better("psiqrh", "standard"), GAP_ELSEWHERE),
            Reported(better("uniform", "standard"), GAP_ELSEWHERE),
        ),
    ),
    Claim(
        "P3",
        "phase costs about 2x per head, complex tensors 2x memory",
        "asserted; the real form needs neither",
        "psiqrh-overhead",
        all_of(
            Costs(SPEED, "psiqrh without phase", (("psiqrh", 0.5),), 0.1, True),
            Costs(MEMORY, "psiqrh without phase", (("psiqrh", 2.0),), 0.25, False),
            *(Reported((Pair("psiqrh", "standard", 0.0, 0.05),), quantity) for quantity in (SPEED, MEMORY)),
        ),
    ),
    Claim(
        "P4",
        "each part matters (phase off, shared latent off)",
        "implied",
        "psiqrh",
        Differs(better("psiqrh", "psiqrh without phase", "psiqrh without shared latent")),
    ),
    Claim(
        "P5",
        "phase activation stabilises training and is rotation invariant",
        "asserted",
        "psiqrh-stability",
        all_of(
            StableAtMore(Pair("psiqrh", "psiqrh without phase", effect=1.0, margin=0.5), RATES),
            Stays(("psiqrh",), RATES[:1], INVARIANT, ROTATION),
        ),
    ),
)

PAPER = Paper(
    "PsiQRH",
    "PsiQRH: Phase-Activated Attention with Latent Coupling",
    "A research proposal without named authors",
    None,
    None,
    "One latent from which queries, keys and values are read, and a phase that turns queries and keys before scoring.",
    CLAIMS,
)
