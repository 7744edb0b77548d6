"""CoupledQK: queries and keys evolve jointly, through shared learned dynamics, before they are scored.

The tables are as the paper prints them: a mean, its standard deviation and the number of seeds.
"""

from math import log

from attractor.claims.claim import Claim, Figure, Figures, Paper, by_column, pair
from attractor.claims.comparisons import Pair
from attractor.claims.rules import SHARE, Costs, Differs, Equivalent, InRegime, Reaches, Reported, WhereShown
from attractor.claims.verdicts import Rule, all_of
from attractor.runs.quantity import (
    ACCURACY,
    LOSS_SINCE_A_THIRD,
    MEMORY,
    SPEED,
    TOKENS_PER_PARAMETER,
    Quantity,
    effective_rank,
)

from ..published import BYTES_PER_TOKEN, better, by_perplexity
from .rules import AtDip, AtOneRate, Contrast, Counts, Steadier

STANDARD, HAMILTONIAN, DIFFERENTIAL = (24.22, 0.12, 3), (22.62, 0.04, 3), (23.92, 0.12, 3)
SMALL = {  # table 1: perplexity at 60M parameters
    "standard": STANDARD,
    "gqa": (24.66, 0.07, 3),
    "differential": DIFFERENTIAL,
    "mlp-only": (23.81, 0.31, 10),
    "coupled-euler": (22.55, 0.04, 3),
    "coupled-hamiltonian": HAMILTONIAN,
}
STEPS = {  # table 2: perplexity by the number of leapfrog steps
    "leapfrog, n = 1": (22.58, 0.05, 3),
    "leapfrog, n = 3": HAMILTONIAN,
    "leapfrog, n = 5": (22.56, 0.03, 3),
    "leapfrog, n = 7": (22.61, 0.04, 3),
}
MEDIUM = {  # table 3: perplexity at 150M parameters
    "standard": (21.57, 0.02, 3),
    "gqa": (21.87, 0.04, 3),
    "differential": (21.11, 0.07, 3),
    "coupled-hamiltonian": (20.12, 0.08, 3),
}
LARGE = {  # table 4: perplexity at "350M" parameters
    "standard": (19.55, 0.06, 3),
    "coupled-hamiltonian": (19.35, 0.07, 3),
    "differential": (18.93, 0.02, 3),
}
CORPORA = by_column(  # table 5: WikiText-103, PubMed and OpenWebText, beside the kinds of text that stand for them here
    ("standard", "differential", "coupled-hamiltonian"),
    {
        "encyclopedic": (STANDARD, DIFFERENTIAL, HAMILTONIAN),
        "scientific": ((16.84, 0.09, 3), (16.68, 0.11, 3), (16.08, 0.06, 3)),
        "heterogeneous": ((40.64, 0.23, 3), (40.19, 0.13, 3), (44.85, 0.14, 3)),
    },
)
TEXT = {"encyclopedic": "encyclopedic", "scientific": "medical", "heterogeneous": "heterogeneous"}  # of table 5
RECALL = {  # table 6: accuracy of MQAR
    "easy": {"standard": (0.667,), "coupled-hamiltonian": (1.0,)},
    "medium": {"standard": (0.930,), "coupled-hamiltonian": (1.0,)},
    "hard": {"standard": (0.173,), "coupled-hamiltonian": (0.142,)},
}
GLUE = by_column(  # table 7: accuracy in per cent
    ("standard", "gqa", "differential", "coupled-hamiltonian"),
    {
        "SST-2": ((87.1, 0.3, 3), (87.5, 0.5, 3), (86.4, 0.3, 3), (86.8, 0.5, 3)),
        "MNLI": ((72.9, 0.4, 3), (72.9, 0.4, 3), (73.7, 0.2, 3), (73.1, 0.7, 3)),
        "QNLI": ((81.8, 0.4, 3), (81.2, 0.8, 3), (82.2, 0.2, 3), (81.7, 0.1, 3)),
    },
)
OVERHEAD = {  # table 10: forward and forward + backward tokens a second, peak memory in MB (RTX 2080 Ti, fp16)
    "standard": (61_070, 22_803, 4127),
    "coupled-hamiltonian": (50_225, 18_650, 5855),
    "coupled-euler": (51_102, 19_014, 5712),
    "gqa": (62_277, 23_368, 4115),
    "differential": (50_164, 18_667, 5151),
}
COUNTS = {  # parameters, as counted from tables 8 and 9; table 11 prints those of size small
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
PRINTED_COUNTS: dict[str, Figures] = {  # where the paper rounds, or prints a count that its tables do not give
    "small": {row: (COUNTS["small"][row],) for row in COUNTS["small"] if row != "mlp-only"},
    "medium": {"standard": (152.3e6,), "gqa": (144.4e6,), "coupled-hamiltonian": (152.4e6,)},
    "large": {"standard": (350e6,)},
}
RANKS = {  # table 12: effective rank of attention maps, layer by layer, and their mean
    "standard": ((28.6, 179.5, 200.0, 176.8, 104.1, 100.1, 80.1, 40.4), 113.7),
    "coupled-hamiltonian": ((32.8, 185.0, 178.0, 175.9, 109.5, 111.1, 87.3, 49.8), 116.2),
}
POSITIONS = {  # table 13: perplexity with learned and with rotary positions
    "learned": {"standard": STANDARD, "coupled-hamiltonian": HAMILTONIAN},
    "rope": {"standard": (25.84, 0.07, 3), "coupled-hamiltonian": (24.00, 0.03, 3)},
}
MATCHED_IN_TIME = {"standard, 2.4x": (22.58,)}  # section 3.5: standard attention after 72,000 steps
REPETITION = {  # the columns of studies/repetition.py: rates and passes over the training text; table 8 has 4.9 passes
    f"{rate:g}, {passes}": (rate, passes) for passes in ("one pass", "five passes") for rate in (2e-3, 4e-3)
}
SEPARATED_AT = 164e6  # tokens of a 60M model at which the curves of figure 1 begin to separate: 10,000 of 30,000 steps
DIP = {"coupled-hamiltonian": 2.5, "standard": 1.95, "gqa": 1.65}  # figure 3: entropy at layer 2, in nats

COUPLED = ("coupled-euler", "coupled-hamiltonian")
LEAPFROG = ("coupled-hamiltonian",)
# The premise of equalities: unless this effect is shown, "no difference" says nothing.
COUPLING = by_perplexity(SMALL, LEAPFROG, ("standard",))
MARGIN = SHARE * abs(COUPLING[0].effect)
SPEED_RATIO, MEMORY_RATIO = (
    {row: figures[place] / OVERHEAD["standard"][place] for row, figures in OVERHEAD.items()} for place in (1, 2)
)


def explains_the_lead(where: str) -> Contrast:
    """Return the rule for the question whether a setting explains the published lead of coupled attention.

    Half of the published effect is the least that would explain it. The lead is the mean over the columns whose label
    has `where`, minus the mean over the other columns.
    """
    share = 2 / len(REPETITION)
    weights = tuple((column, share if where in column else -share) for column in REPETITION)
    lead = COUPLING[0].effect
    return Contrast(Pair("coupled-hamiltonian", "standard", lead, abs(lead) / 2), weights, looks=(6, 12))


def printed(figures: Figures) -> str:
    """Return the figures of a table as one line of text."""
    return ", ".join(f"{row} = {mean:.10g}" for row, (mean, *_) in figures.items())


def relative_spread(row: str) -> float:
    mean, sd, _ = SMALL[row]
    return sd / mean


def change(figures: Figures) -> float:
    """Return the share by which coupling changes the perplexity of standard attention."""
    return figures["coupled-hamiltonian"][0] / figures["standard"][0] - 1


def alike(of: str, against: str) -> Pair:
    """Return the comparison of two variants that should be equal, to within a quarter of the effect of coupling."""
    return Pair(of, against, 0.0, MARGIN)


def rank_of(layer: int | None) -> Pair:
    """Compare coupled with standard attention by the ratio of their effective ranks."""
    ours, theirs = (ranks[1] if layer is None else ranks[0][layer] for ranks in (RANKS[LEAPFROG[0]], RANKS["standard"]))
    return pair("coupled-hamiltonian", "standard", log(ours / theirs))


def separated(rule: Rule, *columns: str) -> InRegime:
    """Return the rule for runs as long as those of the paper when the curves of both rows separate."""
    least = SEPARATED_AT / COUNTS["small"]["standard"]
    why = f"the curves separate from {least:.2g} on in the paper; longer runs would decide"
    return InRegime(rule, ("standard",), TOKENS_PER_PARAMETER, why, least=least, columns=columns or ("",))


def of_maps(rule: Rule) -> AtOneRate:
    """Return the rule on attention maps for rows of one learning rate."""
    return AtOneRate(rule, ("coupled-hamiltonian", "standard"))


def across(of: str, against: str, figures: tuple[Figure, Figure]) -> Pair:
    """Return the comparison of a row with rotary positions and a row with learned ones."""
    effect = log(figures[0][0] / figures[1][0]) / BYTES_PER_TOKEN["encyclopedic"]
    return Pair(of, against, effect, SHARE * abs(effect), "rope", "learned")


# Rotary positions alone, which are worse than learned ones in the paper.
ROPE_IS_WORSE = Differs((across("standard", "standard", (POSITIONS["rope"]["standard"], STANDARD)),))
# Table 5: the published lead in heterogeneous text, which is a loss, minus that in scientific text.
BY_CORPUS = sum(
    sign * by_perplexity(CORPORA[corpus], LEAPFROG, ("standard",), corpus, TEXT[corpus])[0].effect
    for corpus, sign in (("heterogeneous", 1), ("scientific", -1))
)
TOP_SHARE = Quantity("top-1 singular share", "probes.top_share", unit="%")
SINK = Quantity("attention on the first position", "probes.sink_mass", unit="%")
MAPS_LAYERS = Quantity("layers with maps", "n_layers_of_maps")
LONGER = log(STANDARD[0] / MATCHED_IN_TIME["standard, 2.4x"][0]) / BYTES_PER_TOKEN["encyclopedic"]

CLAIMS = (
    Claim(
        "C1",
        "coupled beats every uncoupled variant (60M, WikiText-103, perplexity)",
        printed(SMALL),
        "coupling-ablation",
        separated(Differs(by_perplexity(SMALL, COUPLED, ("mlp-only", "differential", "standard", "gqa")))),
    ),
    Claim(
        "C2",
        "Euler equals Hamiltonian: symplecticity is irrelevant",
        f"{printed({row: SMALL[row] for row in COUPLED})} (neither is symplectic; a row of ours is)",
        "coupling-ablation",
        Equivalent(
            (alike(*COUPLED), alike("coupled-symplectic", "coupled-hamiltonian")), premises=(Differs(COUPLING),)
        ),
    ),
    Claim(
        "C3",
        "coupling shrinks seed variance",
        "std .04 vs .31 for MLP-only over 10 seeds (8x)",
        "coupling-ablation",
        Steadier(COUPLED, "mlp-only", published=relative_spread("coupled-hamiltonian") / relative_spread("mlp-only")),
    ),
    Claim(
        "C4",
        "step count is irrelevant",
        printed(STEPS),
        "integration-steps",
        Equivalent(
            tuple(alike(f"leapfrog, n = {n}", "leapfrog, n = 3") for n in (1, 5, 7)),
            premises=(Differs((pair("leapfrog, n = 3", "standard", COUPLING[0].effect),)),),
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
        printed(MEDIUM),
        "scale-150m",
        Differs(by_perplexity(MEDIUM, LEAPFROG, ("differential", "standard", "gqa"))),
    ),
    Claim(
        "C7",
        'differential overtakes at "350M"',
        printed(LARGE),
        "scale-350m",
        all_of(
            Differs(by_perplexity(LARGE, ("differential",), LEAPFROG)),
            Reported(by_perplexity(LARGE, ("differential", *LEAPFROG), ("standard",))),
        ),
    ),
    Claim(
        "C8",
        "the benefit depends on the corpus",
        ", ".join(f"{corpus} {change(table):+.1%}" for corpus, table in CORPORA.items()),
        "corpus-sensitivity",
        all_of(
            Contrast(
                Pair("coupled-hamiltonian", "standard", BY_CORPUS, SHARE * BY_CORPUS),
                (("heterogeneous", 1.0), ("scientific", -1.0)),
            ),
            Reported(tuple(Pair("coupled-hamiltonian", "standard", -1.0, 0.0, column) for column in CORPORA)),
        ),
    ),
    Claim(
        "C9",
        "coupled solves MQAR easy and medium",
        "; ".join(f"{level}: {printed(table)}" for level, table in RECALL.items()),
        "associative-recall",
        all_of(
            Reaches("coupled-hamiltonian", ("easy", "medium"), 0.99, ACCURACY),
            Differs(
                tuple(
                    pair("coupled-hamiltonian", "standard", 1.0 - RECALL[level]["standard"][0], level)
                    for level in ("easy", "medium")
                ),
                ACCURACY,
            ),
            Equivalent(
                (Pair("coupled-hamiltonian", "standard", effect=0.0, margin=0.03, column="hard"),),
                ACCURACY,
                only_above=True,
            ),
        ),
    ),
    Claim(
        "C10",
        "no effect on GLUE (SST-2, MNLI, QNLI)",
        "within noise",
        "glue",
        Equivalent(
            tuple(Pair("coupled-hamiltonian", "standard", effect=0.0, margin=0.01, column=task) for task in GLUE),
            ACCURACY,
            premises=(Reaches("standard", tuple(GLUE), 0.6, ACCURACY),),  # a model that guesses is like any other
        ),
    ),
    Claim(
        "C11",
        "coupling is sample efficiency",
        f"{printed(MATCHED_IN_TIME)} at 72K steps, like coupled at 30K (by throughput alone, 36.6K are matched)",
        "sample-efficiency",
        WhereShown(
            all_of(
                Differs(COUPLING),
                Equivalent((alike("coupled-hamiltonian", "standard, 2.4x"),), premises=(Differs(COUPLING),)),
                Reported((alike("coupled-hamiltonian", "standard, 1.22x"),)),
            ),
            Equivalent((Pair("standard", "standard, 2.4x", 0.0, 2 * LONGER),), only_above=True),
            f"longer training gains {LONGER:.2g} nats/byte in the paper: where curves are steeper, no lead is worth it",
        ),
    ),
    Claim(
        "C12",
        "overhead",
        "fwd+bwd .82x (Hamiltonian), .83x (Euler), 1.02x GQA, .82x differential; peak memory 5855, 5712, 4115, 5151 vs "
        "4127 MB",
        "overhead",
        all_of(
            Costs(SPEED, "standard", tuple((row, SPEED_RATIO[row]) for row in COUPLED), 0.05, True),
            Costs(MEMORY, "standard", tuple((row, MEMORY_RATIO[row]) for row in COUPLED), 0.1, False),
            *(
                Reported(tuple(Pair(row, "standard", 0.0, 0.05) for row in ("gqa", "differential")), quantity)
                for quantity in (SPEED, MEMORY)
            ),
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
        "about " + ", ".join(f"{row} {entropy}" for row, entropy in DIP.items()) + " nats",
        "attention-maps",
        of_maps(
            AtDip(
                pair("coupled-hamiltonian", "standard", DIP["coupled-hamiltonian"] - DIP["standard"]),
                (pair("gqa", "standard", DIP["gqa"] - DIP["standard"]),),
            )
        ),
    ),
    Claim(
        "C15",
        "attention maps have higher effective rank",
        "mean 116.2 vs 113.7; layer 0 +15%, layer 7 +23%, layer 2 lower",
        "attention-maps",
        of_maps(all_of(*(Differs((rank_of(layer),), effective_rank(layer)) for layer in (None, 0, 2, -1)))),
    ),
    Claim(
        "C16",
        "composes with RoPE",
        "; ".join(f"{positions}: {printed(table)}" for positions, table in POSITIONS.items()),
        "positions",
        Differs(
            tuple(
                comparison
                for column, table in POSITIONS.items()
                for comparison in by_perplexity(table, LEAPFROG, ("standard",), column)
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
            (alike("coupled-linear", "coupled-euler"),),
            premises=(Differs(by_perplexity(SMALL, ("coupled-euler",), ("standard",))),),
        ),
    ),
    Claim(
        "C19",
        "(ours) repeated training text explains the lead of coupled attention",
        "standard 24.22, coupled-hamiltonian 22.62 after 4.9 passes over the training text",
        "repetition",
        explains_the_lead("five passes"),
    ),
    Claim(
        "C20",
        "(ours) a low learning rate explains the lead of coupled attention",
        "standard 24.22, coupled-hamiltonian 22.62 at a rate of 6e-4",
        "repetition",
        explains_the_lead("0.002"),
    ),
    Claim(
        "C21",
        "attention maps have a lower top-1 singular share, and the sink is less extreme",
        "share .050 vs .056; the sink without a figure (ours asks for a tenth)",
        "attention-maps",
        of_maps(
            all_of(
                Differs((pair("coupled-hamiltonian", "standard", log(0.050 / 0.056)),), TOP_SHARE),
                Differs((pair("coupled-hamiltonian", "standard", log(0.9)),), SINK),
            )
        ),
    ),
    Claim(
        "C22",
        "differential attention beats standard attention at 60M",
        printed({row: SMALL[row] for row in ("differential", "standard")}),
        "coupling-ablation",
        separated(Differs(by_perplexity(SMALL, ("differential",), ("standard",)))),
    ),
    *(
        Claim(
            id,
            f"differential attention beats standard attention at {size}",
            printed({row: table[row] for row in ("differential", "standard")}),
            study,
            Differs(by_perplexity(table, ("differential",), ("standard",))),
        )
        for id, size, table, study in (
            ("C23", "150M", MEDIUM, "scale-150m"),
            ("C24", '"350M"', LARGE, "scale-350m"),
        )
    ),
    Claim(
        "C25",
        "rotary positions are worse than learned ones at 60M",
        "standard 25.84 vs 24.22",
        "positions",
        separated(ROPE_IS_WORSE, *POSITIONS),
    ),
    Claim(
        "C26",
        "coupled attention with rotary positions beats standard attention with learned ones",
        "24.00 vs 24.22",
        "positions",
        WhereShown(
            Differs((across("coupled-hamiltonian", "standard", (POSITIONS["rope"]["coupled-hamiltonian"], STANDARD)),)),
            ROPE_IS_WORSE,
            "where rotary positions are better by themselves, coupling has nothing to make up for",
        ),
    ),
    Claim(
        "C27",
        "the curves of coupled and standard attention separate in the last two thirds of training",
        "from step 10,000 of 30,000 on",
        "coupling-ablation",
        separated(Differs(COUPLING, LOSS_SINCE_A_THIRD)),
    ),
    Claim(
        "C28",
        "attention maps have a higher effective rank in 6 of 8 layers",
        "all but layers 2 and 3",
        "attention-maps",
        InRegime(
            of_maps(all_of(*(Differs((rank_of(layer),), effective_rank(layer)) for layer in range(8)))),
            ("standard",),
            MAPS_LAYERS,
            "the pattern is one of 8 layers: the scale bench would decide",
            least=8,
        ),
    ),
    Claim(
        "C29",
        "the entropy dip of standard attention persists at 150M",
        "figure 3",
        "scale-150m",
        AtDip(pair("coupled-hamiltonian", "standard", DIP["coupled-hamiltonian"] - DIP["standard"])),
    ),
    Claim(
        "C30",
        "overhead of the forward pass alone",
        ", ".join(f"{row} {OVERHEAD[row][0] / OVERHEAD['standard'][0]:.2f}x" for row in (*COUPLED, "differential")),
        "overhead",
        Costs(
            Quantity("forward throughput", "forward_tokens_per_second", "higher", unit="x"),
            "standard",
            tuple((row, OVERHEAD[row][0] / OVERHEAD["standard"][0]) for row in COUPLED),
            0.05,
            True,
        ),
    ),
)

PAPER = Paper(
    "CoupledQK",
    "Coupled Query-Key Dynamics for Attention",
    "Barak Gahtan and Alex M. Bronstein",
    2026,
    "2604.01683",
    "Queries and keys that evolve jointly before they are scored, with an ablation of what in it does the work.",
    CLAIMS,
)
