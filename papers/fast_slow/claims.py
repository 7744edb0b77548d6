"""FastSlow: a fast path at the rate of the tokens, and a slow path that is updated once in P tokens and fed back.

The paper's losses are in nats per byte, of one seed each, on a text of its own.
"""

import math

from attractor.claims.claim import Claim, Paper
from attractor.claims.comparisons import Control, Pair
from attractor.claims.rules import SHARE, Costs, Differs, Equivalent, Reaches, Reported, Stays
from attractor.claims.verdicts import all_of
from attractor.runs.quantity import LOSS_OF_VALIDATION, MEMORY, SPEED, Quantity

TWO_TIMESCALES = {  # table 2: validation loss in nats per byte, one seed
    "frozen": (2.238,),
    "coupled": (2.231,),
    "dense-minimind": (2.16,),
    "dense-gemma": (2.39,),
}
FAST_SLOW_TIME = 0.97  # of the dense model of its width in the same table, whose MLP has three matrices
LAYER_EQUIVALENTS = {"fast-slow": (3.25,), "dense-minimind": (4.0,)}
_METHODS = ("2 passes", "4 passes", "Anderson 4", "fixed-point loss")
FIDELITY = (*_METHODS, "DEQ 4")  # with a window, so many evaluations see no further than the window allows
BUILT = ("single pass", *_METHODS, "DEQ 8", "projector", "4 streams", "projector and unit slow state", "decay")
# "unit slow state" is no constraint: a norm follows the linear projector, so the length of its input changes nothing.
CONSTRAINTS = ("4 streams", "both")
PROJECTED = "projector and unit slow state"
OPENED = "single pass"  # the row of the window's study whose gate has the highest rate
OPEN = 0.1  # of |tanh gamma|: ten times what the paper saw, and above the 0.065 of a steady gradient at its rate
BEHIND = TWO_TIMESCALES["frozen"][0] - TWO_TIMESCALES["dense-minimind"][0]  # the largest difference that it discusses
MATTERS, CLOSE = SHARE * BEHIND, (1 + SHARE) * BEHIND
NEUTRAL = TWO_TIMESCALES["frozen"][0] - TWO_TIMESCALES["coupled"][0]  # which it calls no difference
RECALLED = SHARE * math.log(16)  # nats an answer: a quarter of what the slow path can carry in the window's study
CONVERGED = 0.01  # |F(z) - z| / |z| of a solver that has found its equilibrium
CHANGES = 0.01  # of |logits|: a constraint whose removal changes less has nothing to be neutral about

LAYERS = Quantity("layers over all positions", "layer_equivalents")
GATE = Quantity("|tanh gamma| at the end", "gate_opening")
RELIANCE = Quantity("loss added by shutting the gate", "probes.coupling.worth", unit="nats")
RESIDUAL = Quantity("relative residual of the equilibrium", "timescales.residual")
CONSTRAINED = Quantity("change of logits without the constraint, as a share", "probes.coupling.constrained")
SHORTEST_MEMORY = Quantity("effective memory in tokens of the slow layer that remembers least", "shortest_slow_memory")
LEAK = Quantity("change of logits before a changed token, the gate forced open", "probes.structure.leak")
STATES = Quantity("slow states read by one block", "probes.structure.states")
APART = Quantity("difference of logits between shut and frozen", "probes.structure.apart")


def equation(name: str, path: str) -> Quantity:
    """Return a quantity of the master equation, which does not depend on any corpus."""
    return Quantity(name, f"probes.equations.{path}")


# Claims about the slow path are judged where the fast path cannot see everything (studies/fast-slow-window.py), and
# need the model whose slow path sees no text to be worse.
BEYOND_WINDOW = "fast-slow-window"
JUDGED_THERE = "(judged with a window, on recall, which the paper does not have)"
WITHOUT_TEXT = Control("uninformative slow path", OPENED, "what the slow path knows")


def neutral(*pairs: tuple[str, str], **settings: object) -> Equivalent:
    """Return the rule that rows differ by less than RECALLED, where the slow path matters."""
    compared = tuple(Pair(of, against, 0.0, RECALLED) for of, against in pairs)
    return Equivalent(compared, LOSS_OF_VALIDATION, control=WITHOUT_TEXT, **settings)  # type: ignore[arg-type]


def helps(of: str, against: str) -> Pair:
    return Pair(of, against, -RECALLED, RECALLED)


CLAIMS = (
    Claim(
        "F1",
        "causality with the gate forced open",
        "change in earlier outputs < 1e-4",
        "fast-slow-structure",
        Stays(BUILT, ("",), 1e-4, LEAK),
    ),
    Claim(
        "F2",
        "slow state changes at most once in P tokens",
        "by construction",
        "fast-slow-structure",
        Stays(BUILT, ("",), 1.0, STATES),
    ),
    Claim(
        "F3",
        "zero-initialised gate is the frozen model",
        "identical",
        "fast-slow-structure",
        Stays(BUILT, ("",), 0.0, APART),
    ),
    Claim(
        "F4",
        "cost",
        "L_eq 3.25 vs 4; wall clock .97x of dense",
        "fast-slow-costs",
        all_of(
            Costs(SPEED, "dense-minimind", (("fast-slow", 1 / FAST_SLOW_TIME),), 0.05, True),
            Stays(("fast-slow",), ("",), 3.25, LAYERS),
            *(Reported((Pair("fast-slow", "dense", 0.0, 0.05),), reading) for reading in (SPEED, MEMORY)),
        ),
    ),
    Claim(
        "F5",
        "coupling is neutral at 500k tokens, the gate stays closed",
        "2.231 vs 2.238 nats, abs(tanh gamma) < .01, at a rate of 1e-4 for the gate",
        "fast-slow-gate",
        all_of(
            Equivalent((Pair("gate 1e-4", "frozen", 0.0, NEUTRAL),)),
            Stays(("gate 1e-4",), ("",), 0.01, GATE),
            Reported((Pair("gate 1e-3", "frozen", 0.0, NEUTRAL),)),
        ),
    ),
    Claim(
        "F6",
        "frozen 0.78M (of which it uses 0.40M) is close to a dense 1.03M",
        "2.238 vs 2.16 nats",
        "fast-slow-baseline",
        all_of(
            Equivalent((Pair("frozen", "dense-minimind", 0.0, CLOSE),), only_above=True),
            Reported((Pair("frozen", "dense-gemma", 0.0, MATTERS),)),
        ),
    ),
    Claim(
        "F7",
        "equilibrium = stationary distribution",
        "9.7e-8, residual 1.2e-7, projector error .031, column sums .892 to 1.096",
        "fast-slow-equations",
        all_of(
            Stays(
                ("coupled",), ("",), 9.7e-8, equation("largest distance of Euler's end from the null vector", "error")
            ),
            Stays(("coupled",), ("",), 1.2e-7, equation("|A p|", "residual")),
            Stays(("coupled",), ("",), 0.0, equation("growth of the relative entropy", "growth")),
            Stays(("coupled",), ("",), 1e-12, equation("|column sum - 1| of a generator's step", "conserved")),
            # Column sums of 4 states all lie within 1 +- .01 s once in 2e8 random maps; within 1 +- .5 s, once in 50.
            Reaches(
                "coupled",
                ("",),
                0.01,
                equation("least |column sum - 1| of random maps over their strength", "lost_share"),
            ),
            Stays(("coupled",), ("",), 0.031, equation("held-out error of the projector", "projector")),
        ),
    ),
    Claim(
        "F8",
        "fidelity-only methods do not help, a learned projector may",
        "open",
        BEYOND_WINDOW,
        all_of(
            neutral(
                *((OPENED, row) for row in FIDELITY),
                premises=(Stays(("4 passes", "Anderson 4", "DEQ 4"), ("",), CONVERGED, RESIDUAL),),
                only_above=True,
            ),
            Reported((helps("projector", OPENED),), LOSS_OF_VALIDATION),
        ),
    ),
    Claim(
        "F9",
        "norm constraints (Sinkhorn, sphere) are neutral",
        "stated",
        BEYOND_WINDOW,
        neutral(
            *((row, OPENED) for row in CONSTRAINTS),
            (PROJECTED, "projector"),
            premises=tuple(Reaches(row, ("",), CHANGES, CONSTRAINED) for row in (*CONSTRAINTS, PROJECTED)),
        ),
    ),
    Claim(
        "F10",
        "a learned-decay slow path collapses to a memory of about 2 tokens",
        "stated",
        "fast-slow-decay",
        all_of(
            Stays(("decay without pooling from 16",), ("",), (1 + SHARE) * 2, SHORTEST_MEMORY, near=2 * 2),
            # From the 256 tokens of the other row the way is so long that the rate of the decay decides.
            Reported((Pair("decay without pooling", "decay without pooling from 16", -1.0, 0.0),), SHORTEST_MEMORY),
        ),
    ),
    Claim(
        "F11",
        f"at 10M tokens, T 1024, BPE, the projector extracts a signal {JUDGED_THERE}",
        "open",
        BEYOND_WINDOW,
        all_of(
            Differs((helps("projector", OPENED),), LOSS_OF_VALIDATION, WITHOUT_TEXT),
            Reported((helps("projector", "windowed"), helps(OPENED, "windowed")), LOSS_OF_VALIDATION),
        ),
    ),
    Claim(
        "F12",
        "(ours) the closed gate is a learning-rate artefact",
        "not measured there",
        BEYOND_WINDOW,
        all_of(
            Stays(("gate 1e-4",), ("",), OPEN, GATE),
            Reaches(OPENED, ("",), OPEN, GATE),
            Reaches(OPENED, ("",), RECALLED, RELIANCE),
            Reported(
                tuple(helps(row, "windowed") for row in ("gate 1e-4", "gate 1e-3", "gate 1e-2", OPENED)),
                LOSS_OF_VALIDATION,
            ),
        ),
    ),
    Claim(
        "F13",
        f"(ours) coupling is neutral and the gate stays closed also where the fast path needs it {JUDGED_THERE}",
        "not measured there",
        BEYOND_WINDOW,
        all_of(
            neutral(("gate 1e-3", "windowed")),
            Stays(("gate 1e-3",), ("",), 0.01, GATE),
            Reported((helps(OPENED, "windowed"), helps("dense", "windowed")), LOSS_OF_VALIDATION),
        ),
    ),
)

PAPER = Paper(
    "FastSlow",
    "Attention is just another name for coupling? A Fast-Slow ODE Perspective on Hierarchical Pretraining",
    "Zhengyuan Gao",
    2026,
    "2606.16730",
    "A transformer of two timescales, and the equilibria of the fast one as stationary distributions.",
    CLAIMS,
)
