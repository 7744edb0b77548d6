"""Every rule reaches every verdict on records whose right verdict is known."""

import itertools
import math
import random
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import fdtri

from attractor.claims.comparisons import Pair
from attractor.claims.rules import Conditional, Costs, Differs, Equivalent, Reaches, Reported, Stays
from attractor.claims.verdicts import AllOf, conjunction, figure
from attractor.runs.quantity import ACCURACY, END_LOSS, LOSS, MEAN_LOSS, MEMORY, SPEED, Quantity, effective_rank
from attractor.runs.study_record import read_record
from attractor.verdict.intervals import summary
from attractor.verdict.power import pairs_needed
from attractor.verdict.t_tests import paired_t_test
from five_papers import CLAIMS, RECORDS
from invented_records import OWN, losses, record, with_outcomes, with_summaries
from papers.coupled_qk.claims import SMALL
from papers.coupled_qk.rules import AtDip, AtOneRate, Counts, Steadier, deepest_dip
from papers.jacobians.rules import OfTheBest, WhereActing
from papers.psiqrh.rules import StableAtMore
from papers.published import BYTES_PER_TOKEN
from papers.quack.claims import FIRST_ORDER

LEAD = Pair("coupled", "standard", effect=-0.08, margin=0.02)
RULES = {claim.id: claim.rule for claim in CLAIMS if claim.rule is not None}


def two_rows(difference, n=8, noise=1.0, **settings):
    """Return a row `standard` at 1.7 with noise of its seeds, and a row `coupled` at `difference` from it with noise of
    its own."""
    return record({"standard": losses(1.7, n, 0.0), "coupled": losses(1.7 + difference, n, noise)}, **settings)


def equal_to_the_digit(n):
    """Return pairs that all have the same difference."""
    return record({row: [x + 0.01 * k for k in range(n)] for row, x in (("standard", 1.7), ("coupled", 1.6))})


def spread(of, against, n=10):
    rows = {"coupled": [1.6 + of * x for x in OWN[:n]], "mlp-only": [1.65 + against * x for x in OWN[:n]]}
    return record({"standard": losses(1.7, n, 0.0)} | rows)


def drawn_alike(n):
    rng = np.random.default_rng(0)
    rows = {row: list(1.6 + 0.002 * rng.standard_normal(n)) for row in ("coupled", "mlp-only")}
    rows |= {"standard": [1.7] * n, "uniform": [2.7 + 0.001 * (seed % 2) for seed in range(n)]}
    return record({row: list(map(float, of_row)) for row, of_row in rows.items()})


def with_an_outlier():
    outlier = {"mlp-only": [1.65 + 0.0005 * OWN[seed] + 0.1 * (seed == 3) for seed in range(10)]}
    cells = {"standard": losses(1.7, 10, 0.0), "coupled": losses(1.6, 10)} | outlier
    level = [x - y for x, y in zip(cells["coupled"], losses(0.0, 10, 0.0), strict=True)]
    return record(cells | {"coupled": level})


def costs(speed=1.0, n=1, memory=1.4):
    """Return the timings of two rows; several timings of a row vary a little."""
    rows = {
        "standard": [{"tokens_per_second": 1000.0 + 40 * OWN[s], "peak_memory_bytes": 100.0} for s in range(n)],
        "coupled": [{"tokens_per_second": 1000.0 * speed, "peak_memory_bytes": 100.0 * memory} for s in range(n)],
    }
    return record(rows, control=None)


def timed(speed, jitter):
    """Return nine rounds of one timing. The machine slows down over the rounds, which slows both rows alike."""

    def timing(speed, jitter):
        seconds = [(1 + n) / speed * (1 + jitter * (n % 3 - 1)) for n in range(9)]
        return {"tokens_per_second": 1000.0 * speed, "step_seconds": seconds}

    return record({"standard": [timing(1.0, 0.0)], "coupled": [timing(speed, jitter)]}, control=None)


def memories(*values):
    rows = {"standard": [{"peak_memory_bytes": 100.0}] * 3}
    return record(rows | {"coupled": [x and {"peak_memory_bytes": x} for x in values]}, control=None)


def of_level(*values, **more):
    """Return runs of a row with these accuracies, and with these shares of a bound."""
    runs = [{"metric": {"value": x}, "probes": {"lemma": {"share": x}}} for x in values]
    return record({("standard", "easy"): [{}], ("coupled", "easy"): runs} | more, control=None)


def probed(standard, coupled, path="entropy", n=5):
    """Return measures of the layers of both rows, with a little noise of each run in every layer."""
    rows = {
        row: [
            {"valid_loss": loss, "probes": {path: [x + (row == "coupled") * OWN[seed] for x in layers]}}
            for seed, loss in enumerate(losses(1.7, n))
        ]
        for row, layers in (("standard", standard), ("coupled", coupled))
    }
    return record(rows | {"uniform": losses(2.7, n)})


def converging(rate, n_points=20):
    """Return two rows that end at the same loss; the loss of one of them falls at this rate, the other's at .3."""

    def rows(rate, noise, n_points=20):
        curves = {x: [(1000 * k, x + math.exp(-rate * k)) for k in range(20)] for x in losses(1.7, 4, noise)}
        return [{"valid_loss": x, "curve": curve[-n_points:]} for x, curve in curves.items()]

    return record({"standard": rows(0.3, 0.0), "uniform": losses(3.0, 4), "coupled": rows(rate, 1.0, n_points)})


def swept(stable_rates, n=4):
    """Return both rows at four rates. A row is stable at the given number of lowest rates. At higher rates its runs end
    without a finite loss, with a spike, or far above the best loss, in turn."""
    beyond = ({"valid_loss": None}, {"loss_spikes": [7]}, {"valid_loss": 2.6})
    calm = {"valid_loss": 1.7, "loss_spikes": [], "skipped_steps": 0}
    cells = {
        (row, rate): [calm | (beyond[(seed + place) % 3] if place >= counts[seed] else {}) for seed in range(n)]
        for row, counts in stable_rates.items()
        for place, rate in enumerate(RATES)
    }
    return record(cells, control=None)


def at_two_rates(**runs):
    cells = {(row, rate): of_row for row, of_row in runs.items() for rate in RATES[:2]}
    return record(cells, control=None)


def columns_of_one_row():
    """Return losses of 2.0 and 1.5 in two sensitive columns."""
    cells = {
        (row, column): [{"valid_loss": loss + 0.001 * seed * loss + (row == "uniform")} for seed in range(3)]
        for column, loss in {"low": 2.0, "high": 1.5}.items()
        for row in ("standard", "uniform")
    }
    return record(cells)


def all_guesses():
    """Return runs in which attention is worth nothing, and all runs of the row `standard` diverged."""
    cells = {
        ("standard", ""): [{"valid_loss": None} for _ in range(3)],
        ("calm", ""): [{"valid_loss": 2.0 + 0.01 * seed} for seed in range(3)],
        ("uniform", ""): [{"valid_loss": 2.0} for _ in range(3)],
    }
    return record(cells)


def penalised():
    """Return runs of a penalty of which the scale has the second weight alone."""
    plain = [{"valid_loss": 1.7 + 0.001 * n, "boards": 0.1 + 0.001 * n} for n in range(4)]
    acting = [{"valid_loss": 1.6 + 0.001 * n, "boards": 0.5 + 0.0011 * n, "effort": 0.5} for n in range(4)]
    return record({"standard": plain, "coupled 1e-4": acting}, control=None)


def with_shares(runs, share):
    """Return the record with a share of a bound in every run of the coupled row."""
    probes = {"lemma": {"share": share}}
    return with_outcomes(runs, lambda row, _, run: replace(run, probes=probes) if row == "coupled" else run)


def at_rates(runs, **rates):
    cells = [replace(cell, config=cell.config | {"lr": rates.get(cell.row, 1e-3)}) for cell in runs.cells]
    return replace(runs, cells=tuple(cells))


RATES = ("1e-3", "3e-3", "1e-2", "3e-2")
BASE, COUPLED = {"standard": losses(1.7, 8, 0.0)}, {"coupled": losses(1.6)}
STEPS = BASE | {"one step": losses(1.6), "three steps": losses(1.6, 8, -1.0)}
FEW = {"standard": losses(1.7, 10, 0.0), "coupled": losses(1.6, 3), "mlp-only": losses(1.65, 10)}
COUNTS = {("standard", "small"): [{"n_parameters": 100}], ("coupled", "small"): [{"n_parameters": 120}]}
EASY = {(row, "easy"): [{"metric": {"value": 1.0}}] * 3 for row in ("standard", "coupled")}
SLOW, QUICK = ({"tokens_per_second": 1 / s, "step_seconds": [s, 1.01 * s, 0.99 * s]} for s in (1.0, 0.1))
DIPPED, LESS = [3.0, 3.1, 2.0, 3.2, 3.0], [3.0, 3.1, 2.5, 3.2, 3.0]
EFFORT, BOARDS = Quantity("effort", "effort"), Quantity("boards", "boards")

LOWER, EQUAL = Differs((LEAD,)), Equivalent((LEAD,))
HIGHER = Differs((replace(LEAD, effect=0.1),))
BOTH = Differs((LEAD, replace(LEAD, against="gqa")))
NO_HIGHER = Equivalent((replace(LEAD, margin=0.03),), only_above=True)
AT_ONE_RATE = AtOneRate(LOWER, ("coupled", "standard"))
ALIKE = Equivalent(
    (replace(LEAD, of="three steps", against="one step"),), premises=(Differs((replace(LEAD, of="one step"),)),)
)
BY_COLUMN = Differs(tuple(replace(LEAD, column=column) for column in ("near", "far")))
STEADY = Steadier(("coupled",), "mlp-only", published=1 / 8)
FAST = Costs(SPEED, "standard", (("coupled", 0.82),), 0.05, more_is_better=True)
AS_FAST = Costs(SPEED, "standard", (("coupled", 1.0),), 0.05, more_is_better=True)
SMALL_MEMORY = Costs(MEMORY, "standard", (("coupled", 1.4),), 0.1, more_is_better=False)
REACHED, BOUNDED = Reaches("coupled", ("easy",), 0.99, ACCURACY), Stays(("coupled",), ("easy",), 1.0, FIRST_ORDER)
OF_ALL = Stays(("coupled",), ("",), 1000.0, FIRST_ORDER)
CALM = Pair("calm", "standard", -0.02, 0.01)
LEAD_WHEN_EASY = Pair("coupled", "standard", effect=0.3, margin=0.08, column="easy")
HIGH = Pair("standard", "standard", effect=-0.1, margin=0.02, column="high", against_column="low")
EXACT = Counts((("standard", "small", 100), ("coupled", "small", 120)))
AT_DIP = AtDip(Pair("coupled", "standard", effect=0.5, margin=0.12))
RANK = Pair("coupled", "standard", effect=math.log(1.02), margin=math.log(1.02) / 4)
OF_RANKS = AllOf(
    (Differs((RANK,), effective_rank(None)), *(Reported((RANK,), effective_rank(layer)) for layer in (0, 7)))
)
SOONER = Differs((Pair("coupled", "standard", effect=-0.02, margin=0.02),), MEAN_LOSS)
STABLE = StableAtMore(Pair("with", "without", effect=1.0, margin=0.5), RATES)
STABLE_AT_TWO = replace(STABLE, columns=RATES[:2])
ACTING = WhereActing(Differs((replace(LEAD, effect=0.4),), BOARDS), ("coupled", "coupled 1e-4"), EFFORT, 0.1, BOARDS)

# The rule, the runs, the verdict, and parts of its reason; a part with ~ is absent.
VERDICTS = {
    "better than has every verdict": [
        (LOWER, two_rows(-0.080), "holds", "shown", "(-0.080"),
        (LOWER, two_rows(-0.030), "holds", "shown", "(-0.030"),  # half of the published difference, and shown
        (LOWER, two_rows(-0.005), "fails", "within 0.02 nats/byte", "(-0.005"),  # shown, but too small for the claim
        (LOWER, two_rows(0.000), "fails", "within 0.02 nats/byte", "0.0000 "),
        (LOWER, two_rows(0.050), "fails", "opposite", "(+0.050"),
        (LOWER, two_rows(-0.030, noise=40), "unclear", "not shown", "(-0.030"),
        (LOWER, two_rows(0.030, noise=40), "unclear", "not shown", "(+0.030"),
    ],
    "the sign of the published effect is the direction": [
        (HIGHER, two_rows(0.1), "holds"),
        (HIGHER, two_rows(-0.1), "fails"),
    ],
    "two pairs that agree to the last digit decide nothing, which counts of boards often do; eight do": [
        (rule, equal_to_the_digit(n), status)
        for n, status in ((2, "unclear"), (8, "holds"))
        for rule in (LOWER, Equivalent((replace(LEAD, margin=0.2),)))
    ],
    "a quantity of trained models is compared at one rate, however large the difference": [
        (AT_ONE_RATE, at_rates(two_rows(-0.1)), "holds"),
        (AT_ONE_RATE, at_rates(two_rows(-0.1), coupled=2e-3), "unclear", "the learning rates are 0.001 and 0.002"),
    ],
    "all comparisons must hold, one failure is enough, and the weakest part represents the claim": [
        (BOTH, record(BASE | COUPLED | {"gqa": losses(1.7, 8, 0.5)}), "holds"),
        (BOTH, record(BASE | COUPLED | {"gqa": losses(1.5, 8, 0.5)}), "fails", "coupled below gqa (+0.100"),
        (BOTH, record(BASE | COUPLED | {"gqa": [None] * 8}), "unclear", "coupled below gqa: no finished run of gqa"),
        (BOTH, record(BASE | COUPLED | {"gqa": losses(1.65, 8, 5.0)}), "holds", "weakest is coupled below gqa (-0.05"),
    ],
    "where attention as a whole is worth less than the margin, nothing is decided whatever the p value": [
        (LOWER, two_rows(x, twin_gap=0.015), "unclear", "not sensitive", f"({x:+.2f}") for x in (-0.08, 0.0, 0.08)
    ],
    "without a control sensitivity is unknown": [
        (LOWER, two_rows(-0.08, control=None), "unclear", "sensitivity unknown"),
        (LOWER, two_rows(-0.08, twin_gap=math.nan), "unclear", "sensitivity unknown"),
    ],
    "one pair of seeds decides nothing, and a row without runs is not run": [
        (LOWER, two_rows(-0.5, n=1), "unclear", "a second"),
        (LOWER, record(BASE), "not run"),
        (LOWER, record(BASE | {"coupled": [None] * 8}), "not run"),
        (LOWER, record({"standard": [*losses(1.7, 4, 0.0), None, None], "coupled": [None] * 4 + [1.6, 1.6]},
            control=None), "unclear", "no seed in common"),
    ],
    "a run that diverged is named": [
        (rule, record(BASE | {"coupled": [lost, *losses(1.6)[1:]]}), "unclear", "diverged: coupled (seed 0)")
        for rule in (LOWER, EQUAL)
        for lost in (math.nan, {"valid_loss": None})
    ],
    "no difference has every verdict": [
        (EQUAL, two_rows(0.0), "holds", "~would show that there is none"),
        (EQUAL, two_rows(0.010), "holds"),  # shown, but too small to matter
        (EQUAL, two_rows(0.050), "fails", "~would show that there is none"),
        (EQUAL, two_rows(-0.050), "fails"),
        # as large as the margin, where the noise would need fewer pairs than there are
        (EQUAL, two_rows(0.025, noise=5), "unclear", "~would show that there is none"),
        (EQUAL, two_rows(0.0, noise=40), "unclear", "would show that there is none"),
    ],
    "no advantage is one-sided": [
        (NO_HIGHER, two_rows(-0.2), "holds", "at most 0.03 nats/byte higher", "~within"),
        (NO_HIGHER, two_rows(0.01), "holds"),
        (NO_HIGHER, two_rows(0.2), "fails"),
        (NO_HIGHER, two_rows(0.03, noise=20), "unclear"),
    ],
    "no difference needs a premise that the part has an effect; two rows that differ need none": [
        (ALIKE, record(STEPS), "holds"),
        (ALIKE, record(STEPS | {"standard": losses(1.6, 8, 0.0)}), "unclear", "but the premise is not shown: one step"),
        (ALIKE, record(STEPS | {"standard": losses(1.6, 8, 0.0), "three steps": losses(1.7)}), "fails"),
    ],
    "spread has every verdict": [
        (STEADY, spread(1, 8), "holds", "(0.12", "shown with 10 seeds each"),
        (STEADY, spread(8, 1), "fails"),
        (STEADY, spread(1, 1.5), "unclear", "seeds each would show the published ratio"),
        (STEADY, spread(1, 8, n=1), "unclear"),
        (STEADY, spread(1, 8, n=2), "unclear"),  # Brown and Forsythe's test is undefined here
        (STEADY, spread(math.nan, 8), "unclear"),
        (STEADY, record(BASE), "not run"),
        (STEADY, record(FEW), "unclear", "not shown with 3 and 10 seeds"),
        (STEADY, record(FEW | {"mlp-only": [*losses(1.65, 9), math.nan]}), "unclear", "diverged: mlp-only (seed 9)"),
        (STEADY, drawn_alike(10), "unclear"),
        (STEADY, drawn_alike(60), "fails"),  # or two rows of equal spread would stay unclear with any number of seeds
        (STEADY, spread(0.8, 1), "unclear"),
        (STEADY, with_an_outlier(), "unclear"),
    ],
    "costs have every verdict": [
        (FAST, costs(0.80), "holds", "(0.80x)", "one timing", "~better than published"),
        (FAST, costs(0.80, n=3), "holds", "3 pairs", "~better than published"),
        *((FAST, costs(0.95, n), "holds", "better than published", "~one timing") for n in (1, 3)),
        (FAST, costs(0.7), "fails", "worse", "one timing"),
        (FAST, costs(0.7, n=3), "fails", "worse", "~one timing"),
        (SMALL_MEMORY, costs(memory=1.1), "holds", "better than published"),
        (SMALL_MEMORY, costs(memory=1.9), "fails"),
        (SMALL_MEMORY, memories(120.0, 140.0, 165.0), "unclear"),
        (SMALL_MEMORY, memories(None, None, None), "not run"),
    ],
    "the rounds of a single timing are the pairs, at the seed that both rows have": [
        (FAST, timed(0.8, 0.01), "holds", "9 rounds", "(0.80"),
        (FAST, timed(0.8, 0.3), "unclear"),
        (FAST, timed(0.5, 0.01), "fails"),
        (AS_FAST, record({"standard": [QUICK, SLOW], "coupled": [None, SLOW]}, control=None), "holds", "(1.00"),
    ],
    "a row reaches a level with every seed": [
        (REACHED, of_level(1.0, 0.999, 0.995), "holds"),
        (REACHED, of_level(1.0, 1.0, 0.6), "unclear"),
        (REACHED, of_level(0.5, 0.6, 0.55), "fails"),
        (REACHED, of_level(1.0), "unclear"),
        (REACHED, of_level(1.0, math.nan), "unclear"),
        (REACHED, of_level(), "not run"),
    ],
    "one run decides about a bound, since it must hold in every run": [
        (BOUNDED, of_level(0.2, 1.0), "holds"),
        (BOUNDED, of_level(0.2), "holds"),
        (BOUNDED, of_level(0.2, 1.01), "fails"),
        (BOUNDED, of_level(0.2, math.nan), "fails", "diverged: seed 1"),
        (BOUNDED, of_level(), "not run"),
    ],
    "a number that is not finite is stored as null, and may be the one that breaks the bound": [
        (BOUNDED, of_level(0.2, 0.3, None), "unclear", "seed 2 finished without this number"),
        (replace(REACHED, level=0.1, quantity=FIRST_ORDER), of_level(0.2, 0.3, None), "unclear", "seed 2 finished"),
        (replace(BOUNDED, level=0.25), of_level(0.2, 0.3, None), "fails"),
    ],
    "the weakest part is named only among numbers of one kind: a share of a bound is no p value": [
        (AllOf((OF_ALL, LOWER)), with_shares(two_rows(-0.08), 900.0), "holds",
            "all 2 parts hold, the weakest test is coupled below standard"),
        (AllOf((LOWER, Differs((replace(LEAD, margin=0.001),)))), two_rows(-0.08), "holds",
            "all 2 parts hold, the weakest is coupled below standard"),
        (AllOf((OF_ALL, Reaches("coupled", ("",), 1.0, FIRST_ORDER))), with_shares(two_rows(-0.08), 900.0), "holds",
            "all 2 parts hold, the first is"),
    ],
    # Where all runs of a row diverged, its loss is that of a guess, 8 bits a byte.
    "stability is judged without context": [
        (Differs((CALM,)), all_guesses(), "unclear"),
        (Differs((CALM,), END_LOSS), all_guesses(), "holds", f"({2.01 - 8 * math.log(2):+.3f}"),
        (Differs((Pair("standard", "calm", -0.02, 0.01),), END_LOSS), all_guesses(), "fails"),
    ],
    "a row may be compared with itself in another column, by the sign of the first": [
        (Differs((HIGH,)), columns_of_one_row(), "holds", "high against low", "(-0.500"),
        (Differs((replace(HIGH, column="low", against_column="high"),)), columns_of_one_row(), "fails"),
    ],
    "accuracies that are all equal are no advantage": [
        (Differs((LEAD_WHEN_EASY,), ACCURACY), record(EASY, control=None), "fails"),
        (Equivalent((LEAD_WHEN_EASY,), ACCURACY), record(EASY, control=None), "holds"),
    ],
    "counts are exact": [
        (EXACT, record(COUNTS, control=None), "holds"),
        (EXACT, record(COUNTS | {("coupled", "small"): [{"n_parameters": 121}]}, control=None), "fails",
            "coupled, small (121): 120 was expected"),
        (EXACT, record({("standard", "small"): [{"n_parameters": 100}]}, control=None), "unclear"),
    ],
    "the dip is found where the baseline has it": [
        (AT_DIP, probed(DIPPED, LESS), "holds", "layer 2"),
        (AT_DIP, probed(DIPPED, [9.0, 9.1, 2.0, 9.2, 9.0]), "fails"),  # a dip in another layer does not count
        (AT_DIP, probed([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 2.5, 4.0]), "unclear", "no dip",
            "beside it: entropy of layer 2 of coupled - standard -0.499"),  # where the paper has it
        (AT_DIP, probed([3.0, 2.0, 3.0], [3.0, 2.5, 3.0]), "unclear", "no inner layer 2"),
        (AT_DIP, two_rows(0.0), "not run"),
    ],
    "ranks are compared as ratios in per cent": [
        (OF_RANKS, probed([100.0, 200.0], [110.0, 206.0], "effective_rank"), "holds", "(+5.3",
            "%", "beside it: effective rank (layer 0) of coupled - standard +10", "~layer 7"),
    ],
    "converging faster is less area under the validation curve": [
        (SOONER, converging(0.9), "holds"),
        (SOONER, converging(0.1), "fails"),
        (replace(SOONER, quantity=LOSS), converging(0.9), "fails"),
        (SOONER, converging(0.9, n_points=1), "not run"),
    ],
    "stability is counted over a sweep of rates": [
        (STABLE, swept({"without": (2, 2, 1, 2), "with": (3, 3, 3, 3)}), "holds"),
        (STABLE, swept({"without": (3, 3, 3, 3), "with": (2, 2, 1, 2)}), "fails"),
        (STABLE, swept({"without": (2, 2, 2, 2), "with": (2, 2, 2, 2)}), "fails"),  # no further rate is stable
        (STABLE, swept({"without": (2, 2, 1, 3), "with": (3, 1, 3, 2)}), "unclear"),
        (STABLE, swept({"without": (4, 4, 4, 4), "with": (4, 4, 4, 4)}), "unclear"),  # all rates are stable anyway
        (replace(STABLE, columns=(*RATES[:2], "1", "3e-2")), swept({"without": (1,) * 4, "with": (2,) * 4}), "not run"),
        (STABLE_AT_TWO, at_two_rates(**{"with": [{"valid_loss": None}] * 3, "without": [{"valid_loss": None}] * 3}),
            "unclear"),
        (STABLE_AT_TWO, at_two_rates(**{"with": [{}], "without": [{}]}), "unclear",
            "did not record losses or instabilities"),
        (STABLE_AT_TWO, record({("with", "3e-3"): [None, {}], ("with", "1e-3"): [{}, None],
            **{("without", rate): [{}] for rate in RATES[:2]}}, control=None), "unclear",
            "no seed of with ran at all rates"),
    ],
    "a weight of a penalty that a scale has alone is judged": [
        (ACTING, penalised(), "holds", "(as coupled 1e-4)"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("what", VERDICTS)
def test_a_rule_gives_the_verdict_that_is_right(what):
    for place, (rule, runs, status, *parts) in enumerate(VERDICTS[what]):
        verdict = rule.judge(runs)
        assert verdict.status == status, (place, verdict.reason)
        for part in parts:
            assert (part.removeprefix("~") in verdict.reason) == (not part.startswith("~")), (place, verdict.reason)


def test_a_verdict_shows_the_figures_that_there_are():
    """Criterion: seeds that only one row has do not count, and nothing is shown without an interval or a mean."""
    shown = LOWER.judge(two_rows(-0.03))
    assert (shown.seeds, shown.size) == (8, (900_000, 900_000))
    assert (shown.scale, shown.corpus) == ("laptop", "encyclopedic")
    assert shown.interval.mean == pytest.approx(-0.03)
    assert LOWER.judge(record(BASE | {"coupled": [None, *losses(1.6)[1:5], None, None, None]})).seeds == 4
    assert LOWER.judge(two_rows(-0.5, n=1)).bounds == ""
    lost = LOWER.judge(record(BASE | {"coupled": [math.nan, *losses(1.6)[1:]]}))
    never = LOWER.judge(record(BASE | {"coupled": [None] * 8}))
    assert (lost.ours, never.ours, never.interval) == ("", "", None)
    cheaper = SMALL_MEMORY.judge(costs(memory=1.1))
    assert (cheaper.remark, FAST.judge(costs(0.8)).remark) == ("better than published", "")
    rounds = FAST.judge(timed(0.8, 0.01))
    assert rounds.interval.low < 0.8 < rounds.interval.high
    assert (rounds.seeds, rounds.ours) == (1, figure(rounds.interval, "x"))
    assert STEADY.judge(spread(1, 8)).interval.mean == pytest.approx(1 / 8)
    assert STEADY.judge(with_an_outlier()).interval.high < 1  # by the F test alone


def test_an_unclear_verdict_names_the_pairs_that_would_decide():
    verdict = Differs((LEAD,)).judge(two_rows(-0.03, noise=40))
    differences = [40 * x for x in OWN[:8]]
    sd = math.sqrt(sum((x - sum(differences) / 8) ** 2 for x in differences) / 7)
    assert f"{pairs_needed(sd, 0.08)} pairs would show the effect in question" in verdict.reason
    assert f"{pairs_needed(sd, 0.02, power=0.9, level=0.05)} pairs would show that there is none" in verdict.reason


@pytest.mark.parametrize(
    ("difference", "noise", "n_tests", "excluded"),
    [(0.03, 40, 1, True), (-0.03, 60, 1, False), (-0.3, 40, 10_000, False)],
)
def test_an_unclear_verdict_says_whether_the_interval_excludes_the_effect(difference, noise, n_tests, excluded):
    """Criterion: no number of pairs is named that would show an excluded effect. A lead beyond the effect, which the
    correction for many comparisons leaves open, excludes nothing."""
    verdict = replace(LOWER, n_tests=n_tests).judge(two_rows(difference, noise=noise))
    assert (verdict.status, verdict.interval.low > LEAD.effect) == ("unclear", excluded)
    assert ("excludes the effect in question" in verdict.reason) is excluded
    assert ("would show the effect in question" in verdict.reason) is not excluded


def test_the_pairs_that_would_show_that_there_is_no_lead_show_it_in_four_of_five_studies():
    needed = LOWER.parts(two_rows(-0.03, noise=40))[0].to_exclude
    sd = summary([40 * x for x in OWN[:8]]).standard_deviation
    drawn = np.random.default_rng(0).normal(0.0, sd, (400, needed))
    shown = sum(paired_t_test(row.tolist(), margin=LEAD.margin).p_within < 0.025 for row in drawn)
    assert 0.75 < shown / 400 < 0.92


def test_the_command_runs_a_number_of_seeds_that_the_reason_names():
    """Criterion: of two open comparisons the one that needs more seeds decides how many are run."""
    quiet, loud = (two_rows(-0.03, noise=noise) for noise in (20, 40))
    louder = record(  # on another level, or the second baseline would be the first one again
        {f"loud {cell.row}": [x + 0.1 for x in cell.compared(LOSS).values()] for cell in loud.cells}
    )
    cells = (*quiet.cells, *louder.cells)
    pairs = (LEAD, replace(LEAD, of="loud coupled", against="loud standard"))
    design = replace(quiet.design, rows=tuple(cell.row for cell in cells), command="attractor study run x.py")
    verdict = Differs(pairs).judge(replace(quiet, design=design, cells=cells))
    (n_to_show,) = re.findall(r"(\d+) pairs would show the effect", verdict.reason)
    (last,) = re.findall(r"run: attractor study run x.py --seeds 0-(\d+)", verdict.reason)
    assert int(last) + 1 == int(n_to_show)


def test_one_comparison_of_many_is_held_to_holms_level():
    """Criterion: a difference that is shown as the only comparison is not shown among seven others."""
    rivals = {f"rival {n}": losses(1.7, 4, 30.0 * (1 + n)) for n in range(7)}
    cells = {"standard": losses(1.7, 4, 0.0), "coupled": losses(1.655, 4, 9.0)} | rivals
    pairs = [replace(LEAD, against="standard", of=row) for row in rivals]
    assert Differs((LEAD,)).parts(record(cells))[0].status == "holds"
    assert Differs((LEAD, *pairs)).parts(record(cells))[0].status == "unclear"


def test_sensitivity_is_tested_column_by_column():
    pairs = tuple(replace(LEAD, column=column) for column in ("near", "far"))
    cells = {(row, column): losses(m) for row, m in (("standard", 1.7), ("coupled", 1.6)) for column in ("near", "far")}
    cells[("standard", "near")] = cells[("standard", "far")] = losses(1.7, 8, 0.0)
    cells[("uniform", "far")] = losses(1.72)
    near, far = Differs(pairs).parts(record(cells))
    assert near.status == "holds"
    assert (far.status, "not sensitive in far" in far.reason) == ("unclear", True)
    cells[("coupled", "near")] = losses(1.8)
    assert Differs(pairs).judge(record(cells)).status == "fails"


def test_no_difference_fails_exactly_where_the_interval_is_outside_the_margin():
    statuses = set()
    for difference in np.linspace(0.02, 0.03, 41):
        for sign in (1, -1):
            verdict = Equivalent((LEAD,)).judge(two_rows(sign * difference, noise=3))
            nearer = min(abs(verdict.interval.low), abs(verdict.interval.high))
            assert (verdict.status == "fails") == (nearer > LEAD.margin)
            statuses.add(verdict.status)
    assert statuses == {"fails", "unclear"}


def test_a_one_sided_test_is_told_and_planned_as_one():
    assert "within" not in NO_HIGHER.words
    sd = summary([20 * x for x in OWN[:8]]).standard_deviation
    assert NO_HIGHER.parts(two_rows(0.03, noise=20))[0].to_exclude == pairs_needed(sd, 0.03, power=0.8, level=0.05)


def test_two_quantities_of_one_comparison_are_told_apart():
    rule = AllOf((Differs((LEAD,)), Differs((LEAD,), MEAN_LOSS), Differs((replace(LEAD, effect=0.1),))))
    statements = [part.statement for part in rule.parts(two_rows(-0.03))]
    assert statements == [
        "validation loss of coupled below standard",
        "mean validation loss of training of coupled below standard",
        "coupled above standard",
    ]


def test_the_recommended_number_of_seeds_has_the_stated_power():
    for published in (0.136, 0.3, 0.5):
        n = int(Steadier(("coupled",), "mlp-only", published)._seeds_needed().split()[0])
        assert power_of_f(n, published) >= 0.8 > power_of_f(n - 1, published)


def power_of_f(n, ratio):
    """Return the share of F statistics below the lower critical value, for two groups with this ratio of deviations."""
    draws = np.random.default_rng(n).chisquare(n - 1, (2, 1_000_000)) / (n - 1)
    return (ratio**2 * draws[0] / draws[1] < fdtri(n - 1, n - 1, 0.025)).mean()


def test_only_an_inner_layer_below_both_neighbours_is_a_dip():
    assert deepest_dip([3.0, 2.9, 3.0, 1.0, 3.0]) == 3
    assert deepest_dip([1.0, 5.0, 4.0, 6.0, 2.0, 3.0]) in (2, 4)
    for profile in ([1.0, 2.0, 3.0], [3.0, 1.0], []):
        assert deepest_dip(profile) is None


def test_a_claim_is_the_conjunction_of_its_parts():
    for parts in itertools.product(("holds", "fails", "partly", "unclear", "not run"), repeat=3):
        found = conjunction(parts)
        assert (found == "fails") == ("fails" in parts)
        assert (found == "holds") == (set(parts) == {"holds"})
        assert (found == "not run") == (set(parts) == {"not run"})
        assert (found == "partly") == ("partly" in parts and set(parts) <= {"holds", "partly"})


STORED = {name.rpartition("-")[0] for name in RECORDS}
STUDY_OF = {claim.id: f"study-{claim.study}" for claim in CLAIMS if claim.rule is not None}


@cache
def stored_of(study):
    return [read_record(path) for name, path in RECORDS.items() if name.rpartition("-")[0] == study]


def simple_rules(rule):
    parts = getattr(rule, "rules", None) or ([rule.rule] if isinstance(rule, Conditional) else [])
    return [simple for part in parts for simple in simple_rules(part)] or [rule]


def changed(stored, n_runs, share, rng):
    """Return the record with at most so many runs of each cell, of which a share diverged."""
    lost = {"valid_loss": None, "metric": {"value": None}}
    few = replace(stored, cells=tuple(replace(cell, outcomes=cell.outcomes[:n_runs]) for cell in stored.cells))
    return with_summaries(few, lambda *_: lost if rng.random() < share else {})


@pytest.mark.parametrize(("n_runs", "share"), [(None, 0.0), (1, 0.0), (4, 0.2), (2, 1.0)])
def test_every_rule_gives_a_verdict_on_any_runs(n_runs, share):
    """Criterion: every verdict on a stored record has a reason, also with diverged runs and single seeds, and one pair
    never decides a comparison. Runs of the scale smoke decide nothing."""
    needs_no_pairs, statuses = Counts | Costs | OfTheBest | Stays | StableAtMore, set()
    for claim, study in STUDY_OF.items():
        rule = RULES[claim]
        for runs in (changed(record_of, n_runs, share, random.Random(claim)) for record_of in stored_of(study)):
            verdict = rule.judge(runs)
            statuses.add(verdict.status)
            assert verdict.reason, claim
            if n_runs == 1 and not any(isinstance(part, needs_no_pairs) for part in simple_rules(rule)):
                assert verdict.status in ("unclear", "not run"), claim
            smoke = rule.judge(replace(runs, design=replace(runs.design, scale="smoke")))
            assert verdict.status == smoke.status == "not run" or smoke.reason.startswith("smoke scale"), claim
    assert statuses >= {"unclear", "fails"}


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(sorted(claim for claim, study in STUDY_OF.items() if study in STORED)), st.integers(0, 1000))
def test_a_verdict_does_not_depend_on_the_order_of_cells_or_runs(claim, order):
    rng = random.Random(order)
    stored = changed(rng.choice(stored_of(STUDY_OF[claim])), None, 0.02, rng)
    cells = [replace(cell, outcomes=tuple(rng.sample(cell.outcomes, len(cell.outcomes)))) for cell in stored.cells]
    rng.shuffle(cells)
    assert RULES[claim].judge(replace(stored, cells=tuple(cells))) == RULES[claim].judge(stored)


def test_the_published_results_would_hold():
    """Criterion: runs with the paper's results get the paper's verdicts."""
    runs = {}
    for row, (mean, sd, _) in (SMALL | {"coupled-symplectic": SMALL["coupled-hamiltonian"]}).items():
        noise = random.Random(row).sample(OWN, 10)  # the standard deviation is .0021
        per_byte = BYTES_PER_TOKEN["encyclopedic"]
        runs[row] = [(math.log(mean) + sd / mean * x / 0.0021) / per_byte for x in noise]
    runs["uniform"] = [x + 1 for x in runs["standard"]]
    found = record({row: [{"valid_loss": x, "tokens": 491_500_000} for x in of_row] for row, of_row in runs.items()})
    ids = ("C1", "C2", "C3", "C5")
    assert [RULES[claim].judge(found).status for claim in ids] == ["holds"] * len(ids)
