"""Jacobians: recurrent self-attention, read through the Jacobian of one iteration and Lyapunov exponents.

The paper prints approximate accuracies out of distribution: ItrSA 75%, with 64 iterations 85%; with energies 50%.
"""

from collections.abc import Callable
from functools import partial

from attractor.claims.claim import Claim, Paper, pair
from attractor.claims.comparisons import Pair
from attractor.claims.rules import SHARE, Differs, Equivalent, InRegime, Reaches, Stays
from attractor.claims.verdicts import AllOf, Rule, all_of
from attractor.runs.quantity import Quantity

from .rules import OfTheBest, Shown, WhereActing


def of_dynamics(name: str, path: str) -> Quantity:
    """Return a quantity of a trained recurrent model on boards."""
    return Quantity(name, f"probes.dynamics.{path}")


def of_maps(name: str, path: str) -> Quantity:
    """Return a quantity of untrained iteration maps."""
    return Quantity(name, f"probes.iteration_maps.{path}")


BOARDS = Quantity("boards solved", "measures.board_accuracy")
# A model may need more than the 16 iterations of training for boards that are harder than those of training.
BOARDS_ELSEWHERE = Quantity("boards out of distribution that 16 or 64 iterations solve", "solved_by_time")
GAINED_BY_TIME = Quantity("boards out of distribution that 64 iterations solve beyond 16", "gained_by_time")
EXPONENT = of_dynamics("largest finite-time exponent", "exponents.largest")
FROM_CRITICALITY = Quantity("|largest finite-time exponent|", "distance_from_criticality")
ENTROPY = of_dynamics("entropy / log T along trained orbits", "entropy.mean")
PENALTY = Quantity("how far the penalty can move a weight", "penalty_reach")
NEAR_ZERO = 0.2  # twice the exponent of about .1 that its best models have
SOLVED = 0.02  # of boards, or of an exponent: less would not decide for a model
ANY_SOLVED = 0.1  # of boards: a model that solves fewer shows nothing about solving
UNIFORM = 0.95  # entropy / log T above which attention is an average
# Weights are about 0.1. A penalty whose gradient, under Adam, moves them by less during all of training cannot act.
ACTING = 0.1
ENERGIES = ("ItrSA one energy", "ItrSA energies")
# Of the paper's models, AKOrN with 2,982,412 parameters. Those of the scale desk have a fortieth of them.
PUBLISHED_SIZE = Quantity("number of parameters", "n_parameters")
GAINS = (1, 2, 4)  # of the weights of untrained maps
RECURRENT = (
    "ItrSA",
    "ItrSA spectral",
    "ItrSA RMSNorm",
    "ItrSA RMSNorm spectral",
    "ItrSA E-single",
    "ItrSA E-multi",
    "ItrSA one energy",
    "ItrSA energies",
    "ItrSA pre-norm",
    "AKOrN",
    "AKOrN spectral",
    "AKOrN one sphere",
    "AKOrN one sphere, RMSNorm",
    # The scale desk has penalties at these weights alone.
    "ItrSA spectral 1e-4",
    "ItrSA E-single 1e-2",
    "ItrSA E-multi 1e-2",
    "AKOrN spectral 1e-4",
)


def lower_by(effect: float, of: str, against: str) -> tuple[Pair, ...]:
    return (pair(of, against, -effect),)


def attending(rule: Rule, entropy: Quantity, *rows: str) -> InRegime:
    """Return the rule for rows whose attention is not uniform."""
    why = f"above {UNIFORM:g} attention is an average: larger logits would decide"
    return InRegime(rule, rows, entropy, why, most=UNIFORM)


def solving(rule: Rule, *rows: str, boards: Quantity = BOARDS_ELSEWHERE) -> InRegime:
    """Return the rule for rows that solve boards, by default out of distribution."""
    why = f"below {ANY_SOLVED:g} there is hardly a board to gain or to lose: a better model would decide"
    return InRegime(rule, rows, boards, why, least=ANY_SOLVED)


def acting(rows: tuple[str, ...], rule: Rule) -> WhereActing:
    """Return the rule for a penalty that could have acted, at the weight that solves most validation boards."""
    return WhereActing(rule, rows, PENALTY, ACTING, BOARDS)


def untrained(norm: str, gain: int, rule: Callable[[Quantity], Rule]) -> InRegime:
    """Return a rule on the growth of |J| with the number of tokens, at weights of one gain."""
    where, path = f"at gain {gain}, {norm}", f"tokens.gain-{gain}.{'unit' if norm == 'with a norm' else 'none'}"
    growth = of_maps(f"d log |J| / d log tokens {where}", f"{path}.growth")
    return attending(rule(growth), of_maps(f"entropy / log T {where}", f"{path}.mean_entropy"), "ItrSA")


def growth(gains: tuple[int, ...]) -> AllOf:
    """Return the rule that |J| does not grow with the number of tokens under a norm, and does without one."""
    return all_of(
        *(untrained("with a norm", gain, partial(Stays, ("ItrSA",), ("",), 0.1)) for gain in gains),
        *(untrained("without", gain, partial(Reaches, "ItrSA", ("",), 0.25)) for gain in gains),
    )


CLAIMS = (
    Claim(
        "J1",
        "normalisation keeps the Jacobian's spectral norm O(1); without it, it grows with tokens",
        "stated",
        "recurrent-norms",
        growth(GAINS[:1]),
    ),
    Claim(
        "J2",
        "the bound of proposition 5.1 holds and is loose: at least 2 |J|, with R the shortest row of each state before "
        "the norm",
        "stated",
        "recurrent-models",
        all_of(
            Reaches("ItrSA", ("",), 1.0, of_dynamics("share of states where the bound holds", "bound.holds")),
            Reaches("ItrSA", ("",), 2.0, of_dynamics("bound / |J|, R of each state", "bound.ratio")),
            Shown("ItrSA", of_dynamics("mean R", "bound.least_length")),
            Shown("ItrSA", of_dynamics("bound / |J|, one R for all states", "bound.one_radius.ratio")),
            Shown("ItrSA", of_dynamics("this R", "bound.one_radius.radius")),
        ),
    ),
    Claim(
        "J3",
        "the best models have a largest exponent near 0 (about .1)",
        "stated",
        "recurrent-models",
        OfTheBest(RECURRENT, BOARDS_ELSEWHERE, ANY_SOLVED, NEAR_ZERO, SOLVED, FROM_CRITICALITY),
    ),
    Claim(
        "J4",
        "energy constraints give negative exponents and worse accuracy",
        "table",
        "recurrent-models",
        attending(
            all_of(
                # A negative exponent of a model that solves nothing would be no finding about energies.
                solving(Stays(ENERGIES, ("",), 0.0, EXPONENT), *ENERGIES, boards=BOARDS),
                solving(
                    Differs(
                        lower_by(0.25, "ItrSA one energy", "ItrSA") + lower_by(0.25, "ItrSA energies", "ItrSA"),
                        BOARDS_ELSEWHERE,
                    ),
                    "ItrSA",
                ),
            ),
            ENTROPY,
            *ENERGIES,
        ),
    ),
    Claim(
        "J5",
        "E-single fails, E-multi is below the baseline",
        "table",
        "recurrent-models",
        all_of(
            acting(("ItrSA E-single", "ItrSA E-single 1e-2"), Stays(("ItrSA E-single",), ("",), 0.5, BOARDS)),
            acting(
                ("ItrSA E-multi", "ItrSA E-multi 1e-2"),
                solving(Differs((Pair("ItrSA E-multi", "ItrSA", -SOLVED, SOLVED),), BOARDS_ELSEWHERE), "ItrSA"),
            ),
        ),
    ),
    Claim(
        "J6",
        "spectral regularisation improves out-of-distribution accuracy and moves exponents to 0",
        "table",
        "recurrent-models",
        all_of(
            *(
                acting(tuple(f"{row} spectral{weight}" for weight in ("", " 1e-4", " 1e-2")), rule)
                for row in ("ItrSA", "AKOrN")
                for rule in (
                    solving(Differs((Pair(f"{row} spectral", row, SOLVED, SOLVED),), BOARDS_ELSEWHERE), row),
                    Differs((Pair(f"{row} spectral", row, -SOLVED, SOLVED),), FROM_CRITICALITY),
                )
            )
        ),
    ),
    Claim(
        "J7",
        "more iterations at test time help ItrSA; AKOrN with large N fails, with RMSNorm recovers",
        "table",
        "recurrent-models",
        all_of(
            solving(Reaches("ItrSA", ("",), SHARE * 0.10, GAINED_BY_TIME), "ItrSA"),
            solving(Stays(("AKOrN one sphere",), ("",), 0.0, GAINED_BY_TIME), "AKOrN one sphere"),
            solving(
                Reaches("AKOrN one sphere, RMSNorm", ("",), SHARE * 0.05, GAINED_BY_TIME), "AKOrN one sphere, RMSNorm"
            ),
        ),
    ),
    Claim(
        "J8",
        "more heads raise the exponents",
        "stated",
        "recurrent-heads",
        all_of(
            Differs((Pair("8", "1", SOLVED, SOLVED),), EXPONENT),
            *(
                attending(
                    Reaches(
                        "1", ("",), SOLVED / 2, of_maps(f"rise a doubling, untrained, gain {gain}", f"{path}.rise")
                    ),
                    of_maps(f"entropy / log T, untrained, gain {gain}", f"{path}.mean_entropy"),
                    "1",
                )
                for gain, path in ((gain, f"heads.gain-{gain}") for gain in GAINS)
            ),
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
        all_of(
            Reaches("ItrSA", ("",), 0.9, of_maps("share outside the circle, no norm", "turning.before.outside")),
            Stays(
                ("ItrSA",),
                ("",),
                0.0,
                of_maps("share outside, a norm for each token", "turning.rows.later.outside"),
                near=0.1,
            ),
            solving(
                Differs((Pair("no injection", "starts as its stimulus", -SOLVED, SOLVED),), BOARDS_ELSEWHERE),
                "starts as its stimulus",
            ),
        ),
    ),
    Claim(
        "J11",
        "(ours) normalisation keeps the Jacobian's spectral norm O(1) also where attention is sharp: at gains 2 and 4, "
        "and along trained orbits",
        "not stated",
        "recurrent-norms",
        all_of(
            growth(GAINS[1:]),
            attending(
                Stays(("ItrSA",), ("",), 10.0, of_dynamics("largest |J| along trained orbits", "norm.largest")),
                ENTROPY,
                "ItrSA",
            ),
        ),
    ),
    Claim(
        "J12",
        "AKOrN with N = 4 degrades out of distribution from 16 to 64 iterations",
        "70% to 60%",
        "recurrent-models",
        solving(Stays(("AKOrN",), ("",), -SHARE * 0.10, GAINED_BY_TIME), "AKOrN"),
    ),
    Claim(
        "J13",
        "ItrSA at least equals AKOrN out of distribution",
        "75% and 70%",
        "recurrent-models",
        solving(
            Equivalent((Pair("AKOrN", "ItrSA", 0.0, SOLVED),), BOARDS_ELSEWHERE, only_above=True), "ItrSA", "AKOrN"
        ),
    ),
    Claim(
        "J14",
        "accuracies in distribution",
        "AKOrN 97%, ItrSA 98%",
        "recurrent-models",
        InRegime(
            all_of(Reaches("ItrSA", ("",), 0.98 - SOLVED, BOARDS), Reaches("AKOrN", ("",), 0.97 - SOLVED, BOARDS)),
            ("ItrSA", "AKOrN"),
            PUBLISHED_SIZE,
            "the paper's models are larger: the scale paper would decide",
            least=1e6,
        ),
    ),
    Claim(
        "J15",
        "more iterations at test time help because of the norm",
        "stated",
        "recurrent-norms",
        solving(
            Differs((Pair("ItrSA", "no norm", SHARE * 0.10, SOLVED),), GAINED_BY_TIME),
            "ItrSA",
            "no norm",
        ),
    ),
    Claim(
        "J16",
        "under a norm the Jacobian stays O(1) for a step size without bound",
        "stated",
        "recurrent-norms",
        Stays(("ItrSA",), ("",), 10.0, of_maps("largest |J| of any step size, gain 1", "steps.gain-1.unit.largest")),
    ),
)

PAPER = Paper(
    "Jacobians",
    "Recurrent Self-Attention Dynamics: An Energy-Agnostic Perspective from Jacobians",
    "Akiyoshi Tomihari and Ryo Karakida",
    2025,
    "2505.19458",
    "What normalisation does to the Jacobian of recurrent attention, and Lyapunov exponents near zero in good models.",
    CLAIMS,
)
