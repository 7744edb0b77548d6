"""The claims of the five papers, as data: what each says, the figure that it prints, and the rule that judges it.

C is CoupledQK, F FastSlow, L LogitControl, J Jacobians and P PsiQRH. Rules were written before the runs. Where a paper
prints an effect, the margin is a quarter of it: a lead that is shown to be smaller is not the one that was claimed.
Where it prints none, the margin is MATTERS. A claim without a rule has no study yet.
"""

from dataclasses import dataclass
from math import log

from attractor.evidence.readings import (
    ACCURACY,
    APART,
    AREA,
    BOARDS,
    BOARDS_ELSEWHERE,
    ELSEWHERE,
    EXPONENT,
    FIRST_ORDER,
    FROM_CRITICALITY,
    GAINED_BY_TIME,
    GATE,
    LARGEST_LOGIT,
    LAYERS,
    LEAK,
    LOGIT_CHANGE,
    MEMORY,
    RELIANCE,
    SLOW_MEMORY,
    SPEED,
    STATES,
    Pair,
    equation,
    of_dynamics,
    of_maps,
    rank,
)
from attractor.evidence.rules import (
    AtDip,
    Calmer,
    Costs,
    Counts,
    Differs,
    Equivalent,
    OfTheBest,
    Reaches,
    Reported,
    Stays,
    Steadier,
    Unprobed,
)
from attractor.evidence.verdicts import AllOf, Rule

MATTERS = 0.02  # nats: two per cent of perplexity, below which nobody would change an architecture
SHARE = 1 / 4  # of a published effect, which is the margin


@dataclass(frozen=True)
class Claim:
    id: str
    statement: str
    published: str
    study: str | None = None  # a file in studies/
    rule: Rule | None = None


def pair(of: str, against: str, effect: float, column: str = "") -> Pair:
    return Pair(of, against, effect, SHARE * abs(effect), column)


def by_perplexity(
    table: dict[str, float], of: tuple[str, ...], against: tuple[str, ...], column: str = ""
) -> tuple[Pair, ...]:
    """Every row of `of` against every row of `against`, with the published effect in nats."""
    return tuple(pair(a, b, log(table[a] / table[b]), column) for a in of for b in against)


def better(of: str, *against: str) -> tuple[Pair, ...]:
    """Claimed without a figure: by as much as matters."""
    return tuple(Pair(of, other, -MATTERS, MATTERS) for other in against)


COUPLED = ("coupled-euler", "coupled-hamiltonian")
LEAPFROG = ("coupled-hamiltonian",)
SMALL = {  # table 1: perplexities at 60M
    "standard": 24.22,
    "gqa": 24.66,
    "differential": 23.92,
    "mlp-only": 23.81,
    "coupled-euler": 22.55,
    "coupled-hamiltonian": 22.62,
}
MEDIUM = {"standard": 21.57, "gqa": 21.87, "differential": 21.11, "coupled-hamiltonian": 20.12}
LARGE = {"standard": 19.55, "differential": 18.93, "coupled-hamiltonian": 19.35}
CORPORA = {
    "encyclopedic": {"standard": 24.22, "coupled-hamiltonian": 22.62},
    "scientific": {"standard": 16.84, "coupled-hamiltonian": 16.08},
    "heterogeneous": {"standard": 40.64, "coupled-hamiltonian": 44.85},
}
POSITIONS = {
    "learned": {"standard": 24.22, "coupled-hamiltonian": 22.62},
    "rope": {"standard": 25.84, "coupled-hamiltonian": 24.00},
}
COUPLING = log(SMALL["standard"] / SMALL["coupled-hamiltonian"])
COUNTS = {
    "small": {
        "standard": 60_343_296,
        "gqa": 57_197_568,
        "differential": 60_343_360,
        "mlp-only": 60_408_832,
        "coupled-euler": 60_408_896,
        "coupled-hamiltonian": 60_408_896,
    },
    "medium": {
        "standard": 152_256_000,
        "gqa": 141_639_168,
        "coupled-euler": 152_354_448,
        "coupled-hamiltonian": 152_354_448,
    },
    "large": {"standard": 454_690_816},
}

COUPLED_QK = (
    Claim(
        "C1",
        "coupled beats every uncoupled variant (60M, WikiText-103, perplexity)",
        "Euler 22.55, Hamiltonian 22.62; MLP-only 23.81, differential 23.92, standard 24.22, GQA 24.66",
        "coupling-ablation",
        Differs(by_perplexity(SMALL, COUPLED, ("mlp-only", "differential", "standard", "gqa"))),
    ),
    Claim(
        "C2",
        "Euler equals Hamiltonian: symplecticity is irrelevant",
        "22.55 ± .04 vs 22.62 ± .04",
        "coupling-ablation",
        Equivalent(
            (Pair(*COUPLED, effect=0.0, margin=SHARE * COUPLING),),
            presence=pair("coupled-hamiltonian", "standard", -COUPLING),
        ),
    ),
    Claim(
        "C3",
        "coupling shrinks seed variance",
        "std .04 vs .31 for MLP-only over 10 seeds (8x)",
        "coupling-ablation",
        Steadier(COUPLED, "mlp-only", published=(0.04 / 22.62) / (0.31 / 23.81)),
    ),
    Claim(
        "C4",
        "step count is irrelevant",
        "n = 1, 3, 5, 7: 22.58, 22.62, 22.56, 22.61",
        "integration-steps",
        Equivalent(
            tuple(
                Pair(f"leapfrog, n = {n}", "leapfrog, n = 3", effect=0.0, margin=SHARE * COUPLING) for n in (1, 5, 7)
            ),
            presence=pair("leapfrog, n = 3", "standard", -COUPLING),
        ),
    ),
    Claim(
        "C5",
        "coupling beats MLP-only capacity",
        "two-sample t-test p < .001 (10 vs 3 seeds)",
        "coupling-ablation",
        Differs(by_perplexity(SMALL, COUPLED, ("mlp-only",))),
    ),
    Claim(
        "C6",
        "the lead holds at 150M",
        "coupled 20.12, differential 21.11, standard 21.57, GQA 21.87",
        "scale-150m",
        Differs(by_perplexity(MEDIUM, LEAPFROG, ("differential", "standard", "gqa"))),
    ),
    Claim(
        "C7",
        'differential overtakes at "350M"',
        "18.93 vs coupled 19.35 vs standard 19.55",
        "scale-350m",
        AllOf(
            (
                Differs(by_perplexity(LARGE, ("differential",), LEAPFROG)),
                Reported(by_perplexity(LARGE, ("differential", *LEAPFROG), ("standard",))),
            )
        ),
    ),
    Claim(
        "C8",
        "the benefit depends on the corpus",
        "WikiText -6.6%, PubMed -4.5%, OpenWebText +10.3%",
        "corpus-sensitivity",
        Differs(
            tuple(
                each
                for column, table in CORPORA.items()
                for each in by_perplexity(table, LEAPFROG, ("standard",), column)
            )
        ),
    ),
    Claim(
        "C9",
        "coupled solves MQAR easy and medium",
        "1.000, 1.000, hard .142 vs standard .667, .930, .173",
        "associative-recall",
        AllOf(
            (
                Reaches("coupled-hamiltonian", ("easy", "medium"), 0.99, ACCURACY),
                Differs(
                    (
                        pair("coupled-hamiltonian", "standard", 1.0 - 0.667, "easy"),
                        pair("coupled-hamiltonian", "standard", 1.0 - 0.930, "medium"),
                    ),
                    ACCURACY,
                ),
                Equivalent(
                    (Pair("coupled-hamiltonian", "standard", effect=0.0, margin=0.03, column="hard"),),
                    ACCURACY,
                    only_above=True,
                ),
            )
        ),
    ),
    Claim(
        "C10",
        "no effect on GLUE (SST-2, MNLI, QNLI)",
        "within noise",
        "glue",
        Equivalent(
            tuple(
                Pair("coupled-hamiltonian", "standard", effect=0.0, margin=0.01, column=task)
                for task in ("SST-2", "MNLI", "QNLI")
            ),
            ACCURACY,
        ),
    ),
    Claim(
        "C11",
        "coupling is sample efficiency",
        "standard at 72K steps 22.58 = coupled at 30K (by throughput alone the matched budget is 36.6K: both)",
        "sample-efficiency",
        AllOf(
            (
                Differs(by_perplexity(SMALL, LEAPFROG, ("standard",))),
                Equivalent((Pair("coupled-hamiltonian", "standard, 2.4x", effect=0.0, margin=SHARE * COUPLING),)),
                Reported((Pair("coupled-hamiltonian", "standard, 1.22x", effect=0.0, margin=SHARE * COUPLING),)),
            )
        ),
    ),
    Claim(
        "C12",
        "overhead",
        "fwd+bwd .82x (Hamiltonian), .83x (Euler), 1.02x GQA, .82x differential; peak memory 5855, 5712, 4115, 5151 vs "
        "4127 MB",
        "overhead",
        AllOf(
            (
                Costs(SPEED, "standard", (("coupled-hamiltonian", 0.82), ("coupled-euler", 0.83)), 0.05, True),
                Costs(
                    MEMORY,
                    "standard",
                    (("coupled-hamiltonian", 5855 / 4127), ("coupled-euler", 5712 / 4127)),
                    0.1,
                    False,
                ),
                *(
                    Reported(tuple(Pair(row, "standard", 0.0, 0.05) for row in ("gqa", "differential")), reading)
                    for reading in (SPEED, MEMORY)
                ),
            )
        ),
    ),
    Claim(
        "C13",
        "parameter counts (of tables 8, 9 and 11; the 144.4M of the medium GQA model and the ~350M are not reached)",
        "small 60.34M, coupled +65,600; medium 152.3M, coupled 152.4M",
        "parameters",
        Counts(tuple((row, column, count) for column, rows in COUNTS.items() for row, count in rows.items())),
    ),
    Claim(
        "C14",
        "coupling mitigates the entropy dip at layer 2",
        "about 2.5 nats vs 1.95 standard, 1.65 GQA",
        "attention-maps",
        AtDip(pair("coupled-hamiltonian", "standard", 2.5 - 1.95), (pair("gqa", "standard", 1.65 - 1.95),)),
    ),
    Claim(
        "C15",
        "attention maps have higher effective rank",
        "mean 116.2 vs 113.7; layer 0 +15%, layer 7 +23%, layer 2 lower",
        "attention-maps",
        AllOf(
            (
                Differs((pair("coupled-hamiltonian", "standard", log(116.2 / 113.7)),), rank(None)),
                *(
                    Reported((pair("coupled-hamiltonian", "standard", log(ours / standard)),), rank(layer))
                    for layer, ours, standard in ((0, 32.8, 28.6), (2, 178.0, 200.0), (-1, 49.8, 40.4))
                ),
            )
        ),
    ),
    Claim(
        "C16",
        "composes with RoPE",
        "learned 24.22 -> 22.62; RoPE 25.84 -> 24.00",
        "positions",
        Differs(
            tuple(
                each
                for column, table in POSITIONS.items()
                for each in by_perplexity(table, LEAPFROG, ("standard",), column)
            )
        ),
    ),
    Claim(
        "C17",
        "(open) coupled + differential combine",
        "not measured there",
        "open-questions",
        Differs(better("coupled-differential", "coupled-euler", "differential")),
    ),
    Claim(
        "C18",
        "(open) linear coupling suffices",
        "not measured there",
        "open-questions",
        Equivalent(
            (Pair("coupled-linear", "coupled-euler", effect=0.0, margin=SHARE * COUPLING),),
            presence=pair("coupled-euler", "standard", log(SMALL["coupled-euler"] / SMALL["standard"])),
        ),
    ),
)

TWO_TIMESCALES = {"frozen": 2.238, "coupled": 2.231, "dense-minimind": 2.16, "dense-gemma": 2.39}  # table 2, in nats
FAST_SLOW_TIME = 0.97  # of the dense model of its width in the same table, whose MLP has three matrices
FIDELITY = ("2 passes", "4 passes", "Anderson 4", "fixed-point loss", "DEQ 8")
BUILT = ("single pass", *FIDELITY, "projector", "4 streams", "projector and unit slow state", "decay")
OPENED = "gate 1e-2"
OPEN = 0.1  # of |tanh gamma|: ten times what the paper saw, and above the 0.065 that its rate allows
CLOSE = (1 + SHARE) * (TWO_TIMESCALES["frozen"] - TWO_TIMESCALES["dense-minimind"])


def alike(*pairs: tuple[str, str]) -> Equivalent:
    """Within what matters, either way."""
    return Equivalent(tuple(Pair(of, against, 0.0, MATTERS) for of, against in pairs))


FAST_SLOW = (
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
        AllOf(
            (
                Costs(SPEED, "dense-minimind", (("fast-slow", 1 / FAST_SLOW_TIME),), 0.05, True),
                Stays(("fast-slow",), ("",), 3.25, LAYERS),
                *(Reported((Pair("fast-slow", "dense", 0.0, 0.05),), reading) for reading in (SPEED, MEMORY)),
            )
        ),
    ),
    Claim(
        "F5",
        "coupling is neutral at 500k tokens, the gate stays closed",
        "2.231 vs 2.238 nats, abs(tanh gamma) < .01",
        "fast-slow-baseline",
        AllOf((alike(("coupled", "frozen")), Stays(("coupled",), ("",), 0.01, GATE))),
    ),
    Claim(
        "F6",
        "frozen 0.78M (of which it uses 0.40M) is close to a dense 1.03M",
        "2.238 vs 2.16 nats",
        "fast-slow-baseline",
        AllOf(
            (
                Equivalent((Pair("frozen", "dense-minimind", 0.0, CLOSE),), only_above=True),
                Reported((Pair("frozen", "dense-gemma", 0.0, MATTERS),)),
            )
        ),
    ),
    Claim(
        "F7",
        "equilibrium = stationary distribution",
        "9.7e-8, residual 1.2e-7, projector error .031, column sums .892 to 1.096",
        "fast-slow-equations",
        AllOf(
            (
                Stays(("coupled",), ("",), 9.7e-8, equation("distance of Euler's end from the null vector", "error")),
                Stays(("coupled",), ("",), 1.2e-7, equation("|A p|", "residual")),
                Stays(("coupled",), ("",), 0.0, equation("growth of the relative entropy", "growth")),
                Stays(("coupled",), ("",), 1e-12, equation("|column sum - 1| of a generator's step", "conserved")),
                Reaches("coupled", ("",), 0.01, equation("|column sum - 1| of a random map", "lost")),
                Stays(("coupled",), ("",), 0.031, equation("held-out error of the projector", "projector")),
            )
        ),
    ),
    Claim(
        "F8",
        "fidelity-only methods do not help, a learned projector may",
        "open",
        "fast-slow-equilibrium",
        AllOf(
            (
                Equivalent(tuple(Pair("single pass", row, 0.0, MATTERS) for row in FIDELITY), only_above=True),
                Reported((Pair("projector", "single pass", 0.0, MATTERS),)),
            )
        ),
    ),
    Claim(
        "F9",
        "norm constraints (Sinkhorn, sphere) are neutral",
        "stated",
        "fast-slow-constraints",
        alike(
            *((row, "none") for row in ("4 streams", "unit slow state", "both")),
            ("projector and unit slow state", "projector"),
        ),
    ),
    Claim(
        "F10",
        "a learned-decay slow path collapses to a memory of about 2 tokens",
        "stated",
        "fast-slow-decay",
        Stays(
            ("decay without pooling", "decay without pooling from 16"),
            ("",),
            (1 + SHARE) * 2,
            SLOW_MEMORY,
        ),
    ),
    Claim(
        "F11",
        "at 10M tokens, T 1024, BPE, the projector extracts a signal",
        "open",
        "fast-slow-long",
        AllOf(
            (
                Differs(better("projector", "frozen")),
                Reported(better("projector", "linear") + better("linear", "frozen")),
            )
        ),
    ),
    Claim(
        "F12",
        "(ours) the closed gate is a learning-rate artefact",
        "not measured there",
        "fast-slow-gate",
        AllOf(
            (
                Stays(("gate 1e-4",), ("",), OPEN, GATE),
                Reaches(OPENED, ("",), OPEN, GATE),
                Reaches(OPENED, ("",), MATTERS, RELIANCE),
                Reported(tuple(Pair(row, "frozen", 0.0, MATTERS) for row in ("gate 1e-4", OPENED))),
            )
        ),
    ),
)

INTERVENTIONS = ("QK-norm", "QK-clip", "fixed rates", "QuacK")
LOW, MIDDLE, HIGH = "low rate", "middle rate", "high rate"  # 3e-4, 3e-3 and 3e-2 in the paper


def at(column: str, of: str, against: str, effect: float = -MATTERS) -> Pair:
    """In both kinds of attention rows bear its name first; claimed without a figure."""
    return Pair(of, against, effect, MATTERS, column)


LOGIT_CONTROL = (
    Claim(
        "L1",
        "smaller rates for W_q, W_k alone stabilise training at 3e-2",
        "figure 1",
        "logit-rates",
        Differs(tuple(Pair(row, "1", -0.1, 0.05) for row in ("0.1", "0.01"))),
    ),
    Claim(
        "L2",
        "at 3e-4 all interventions are alike",
        "figure 2",
        "logit-control",
        Equivalent(
            tuple(at(LOW, f"{kind} {name}", kind, 0.0) for kind in ("MHA", "MLA") for name in INTERVENTIONS),
        ),
    ),
    Claim(
        "L3",
        "QK-clip is unstable at 3e-2 and behind at 3e-3 with MLA",
        "figure 2",
        "logit-control",
        Differs(
            (
                *(at(HIGH, f"{kind} QK-clip", f"{kind} QuacK", MATTERS) for kind in ("MHA", "MLA")),
                at(MIDDLE, "MLA QK-clip", "MLA QuacK", MATTERS),
            )
        ),
    ),
    Claim(
        "L4",
        "fixed smaller rates are stable but behind QuacK",
        "figure 2",
        "logit-control",
        AllOf(
            (
                Differs(tuple(at(HIGH, f"{kind} fixed rates", kind) for kind in ("MHA", "MLA"))),
                Differs(tuple(at(MIDDLE, f"{kind} fixed rates", f"{kind} QuacK", MATTERS) for kind in ("MHA", "MLA"))),
            )
        ),
    ),
    Claim(
        "L5",
        "QuacK is best with MLA, just behind QK-norm with MHA",
        "figure 2",
        "logit-control",
        AllOf(
            (
                Differs(
                    tuple(at(MIDDLE, "MLA QuacK", row) for row in ("MLA", "MLA QK-clip", "MLA fixed rates")),
                ),
                Differs((at(MIDDLE, "MHA QuacK", "MHA QK-norm", MATTERS),)),
            )
        ),
    ),
    Claim(
        "L6",
        "QuacK holds down both the change and the maximum of logits",
        "figure 4",
        "logit-control",
        AllOf(
            tuple(
                Differs((Pair("MLA QuacK", "MLA", -log(2), log(1.1), MIDDLE),), reading)
                for reading in (LOGIT_CHANGE, LARGEST_LOGIT)
            )
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
        Stays(("MHA QuacK", "MLA QuacK"), (LOW, MIDDLE, HIGH), 1.0, FIRST_ORDER),
    ),
    Claim(
        "L10",
        "higher base rates are better once stable; QuacK is faster than QK-clip",
        "figure 2, stated (the second half beside L8)",
        "logit-control",
        Differs(
            tuple(
                Pair(f"{kind} {row}", f"{kind} {row}", -MATTERS, MATTERS, MIDDLE, LOW)
                for kind in ("MHA", "MLA")
                for row in ("QK-norm", "QuacK")
            )
        ),
    ),
)

# Jacobians prints approximate accuracies out of distribution: ItrSA 75%, with 64 iterations 85%; with energies 50%.
NEAR_ZERO = 0.2  # twice the exponent of about .1 that its best models have
SOLVED = 0.02  # of boards, or of an exponent: less would not decide for a model
RECURRENT = (
    "ItrSA",
    "ItrSA spectral",
    "ItrSA RMSNorm",
    "ItrSA RMSNorm spectral",
    "ItrSA E-multi",
    "ItrSA energies",
    "ItrSA pre-norm",
    "AKOrN",
    "AKOrN spectral",
    "AKOrN one sphere",
    "AKOrN one sphere, RMSNorm",
)


def lower_by(effect: float, of: str, against: str) -> tuple[Pair, ...]:
    return (pair(of, against, -effect),)


JACOBIANS = (
    Claim(
        "J1",
        "normalisation keeps the Jacobian's spectral norm O(1); without it, it grows with tokens",
        "stated",
        "recurrent-norms",
        AllOf(
            (
                Stays(("ItrSA",), ("",), 0.1, of_maps("d log |J| / d log tokens, with a norm", "tokens.growth.unit")),
                Reaches("ItrSA", ("",), 0.25, of_maps("d log |J| / d log tokens, without", "tokens.growth.none")),
                Stays(("ItrSA",), ("",), 10.0, of_dynamics("largest |J| along trained orbits", "norm.largest")),
            )
        ),
    ),
    Claim(
        "J2",
        "the bound of proposition 5.1 holds and is loose",
        "stated",
        "recurrent-models",
        AllOf(
            (
                Reaches("ItrSA", ("",), 1.0, of_dynamics("share of states where the bound holds", "bound.holds")),
                Reaches("ItrSA", ("",), 2.0, of_dynamics("bound / |J|", "bound.ratio")),
            )
        ),
    ),
    Claim(
        "J3",
        "the best models have a largest exponent near 0 (about .1)",
        "stated",
        "recurrent-models",
        OfTheBest(RECURRENT, BOARDS_ELSEWHERE, NEAR_ZERO, FROM_CRITICALITY),
    ),
    Claim(
        "J4",
        "energy constraints give negative exponents and worse accuracy",
        "table",
        "recurrent-models",
        AllOf(
            (
                Stays(("ItrSA one energy", "ItrSA energies"), ("",), 0.0, EXPONENT),
                Differs(
                    lower_by(0.25, "ItrSA one energy", "ItrSA") + lower_by(0.25, "ItrSA energies", "ItrSA"),
                    BOARDS_ELSEWHERE,
                ),
            )
        ),
    ),
    Claim(
        "J5",
        "E-single fails, E-multi is below the baseline",
        "table",
        "recurrent-models",
        AllOf(
            (
                Stays(("ItrSA E-single",), ("",), 0.5, BOARDS),
                Differs((Pair("ItrSA E-multi", "ItrSA", -SOLVED, SOLVED),), BOARDS_ELSEWHERE),
            )
        ),
    ),
    Claim(
        "J6",
        "spectral regularisation improves out-of-distribution accuracy and moves exponents to 0",
        "table",
        "recurrent-models",
        AllOf(
            tuple(
                Differs((Pair(f"{row} spectral", row, effect, SOLVED),), reading)
                for row in ("ItrSA", "AKOrN")
                for effect, reading in ((SOLVED, BOARDS_ELSEWHERE), (-SOLVED, FROM_CRITICALITY))
            )
        ),
    ),
    Claim(
        "J7",
        "more iterations at test time help ItrSA; AKOrN with large N fails, with RMSNorm recovers",
        "table",
        "recurrent-models",
        AllOf(
            (
                Reaches("ItrSA", ("",), SHARE * 0.10, GAINED_BY_TIME),
                Stays(("AKOrN one sphere",), ("",), 0.0, GAINED_BY_TIME),
                Reaches("AKOrN one sphere, RMSNorm", ("",), SHARE * 0.05, GAINED_BY_TIME),
            )
        ),
    ),
    Claim(
        "J8",
        "more heads raise the exponents",
        "stated",
        "recurrent-heads",
        AllOf(
            (
                Differs((Pair("8", "1", SOLVED, SOLVED),), EXPONENT),
                Reaches(
                    "1", ("",), SOLVED / 2, of_maps("rise of the exponent a doubling, untrained", "heads.rise.gain-2")
                ),
            )
        ),
    ),
    Claim(
        "J9",
        "pseudo-energy follows the quadratic form of the symmetric part of the Jacobian",
        "stated",
        "recurrent-models",
        Reaches(
            "ItrSA", ("",), 0.9, of_dynamics("correlation of -x'y with -x'Sx over time", "pseudo_energy.correlation")
        ),
    ),
    Claim(
        "J10",
        "normalisation pulls the eigenvalues of discretised skew-symmetric maps inside the unit circle; input "
        "injection matters (ablation)",
        "stated",
        "recurrent-norms",
        AllOf(
            (
                Reaches("ItrSA", ("",), 0.9, of_maps("share outside the circle, no norm", "turning.before.outside")),
                Stays(("ItrSA",), ("",), 0.0, of_maps("share outside, one sphere", "turning.one.later.outside")),
                Differs((Pair("no injection", "starts as its stimulus", -SOLVED, SOLVED),), BOARDS_ELSEWHERE),
            )
        ),
    ),
)

PSIQRH = (
    Claim(
        "P1",
        "PsiQRH beats a parameter-matched baseline in perplexity and converges faster",
        "asserted, no valid figure",
        "psiqrh",
        AllOf((Differs(better("psiqrh", "standard")), Differs(better("psiqrh", "standard"), AREA))),
    ),
    Claim(
        "P2",
        "PsiQRH generalises better out of distribution",
        "asserted",
        "psiqrh",
        Differs(better("psiqrh", "standard"), ELSEWHERE),
    ),
    Claim(
        "P3",
        "phase costs about 2x per head, complex tensors 2x memory",
        "asserted; the real form needs neither",
        "psiqrh-overhead",
        AllOf(
            (
                Costs(SPEED, "psiqrh without phase", (("psiqrh", 0.5),), 0.1, True),
                Costs(MEMORY, "psiqrh without phase", (("psiqrh", 2.0),), 0.25, False),
                *(Reported((Pair("psiqrh", "standard", 0.0, 0.05),), reading) for reading in (SPEED, MEMORY)),
            )
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
        "psiqrh",
        AllOf(
            (
                Calmer(Pair("psiqrh", "psiqrh without phase", effect=-1.0, margin=0.5)),
                Unprobed("rotation invariance"),
            )
        ),
    ),
)

PAPERS = {
    "CoupledQK": COUPLED_QK,
    "FastSlow": FAST_SLOW,
    "LogitControl": LOGIT_CONTROL,
    "Jacobians": JACOBIANS,
    "PsiQRH": PSIQRH,
}
CLAIMS = tuple(claim for claims in PAPERS.values() for claim in claims)
