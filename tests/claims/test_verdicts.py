"""Every rule reaches every verdict on records whose right verdict is known."""

import itertools
import math
import random
import re
from dataclasses import replace

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
from invented_records import OWN, losses, record
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


@pytest.mark.parametrize(
    ("difference", "noise", "status", "word"),
    [
        (-0.080, 1, "holds", "shown"),
        (-0.030, 1, "holds", "shown"),  # half of the published difference, and shown
        (-0.005, 1, "fails", "within 0.02 nats/byte"),  # shown, but too small for the claim
        (0.000, 1, "fails", "within 0.02 nats/byte"),
        (0.050, 1, "fails", "opposite"),
        (-0.030, 40, "unclear", "not shown"),
        (0.030, 40, "unclear", "not shown"),
    ],
)
def test_better_than_has_every_verdict(difference, noise, status, word):
    verdict = Differs((LEAD,)).judge(two_rows(difference, noise=noise))
    assert verdict.status == status
    assert word in verdict.reason
    assert verdict.interval.mean == pytest.approx(difference)
    assert (verdict.seeds, verdict.size, verdict.scale, verdict.corpus) == (
        8,
        (900_000, 900_000),
        "laptop",
        "encyclopedic",
    )


def test_the_sign_of_the_published_effect_is_the_direction():
    worse = replace(LEAD, effect=0.1)
    assert Differs((worse,)).judge(two_rows(0.1)).status == "holds"
    assert Differs((worse,)).judge(two_rows(-0.1)).status == "fails"


def test_an_unclear_verdict_names_the_pairs_that_would_decide():
    verdict = Differs((LEAD,)).judge(two_rows(-0.03, noise=40))
    differences = [40 * x for x in OWN[:8]]
    sd = math.sqrt(sum((x - sum(differences) / 8) ** 2 for x in differences) / 7)
    assert f"{pairs_needed(sd, 0.08)} pairs would show the effect in question" in verdict.reason
    assert f"{pairs_needed(sd, 0.02, power=0.9, level=0.05)} pairs would show that there is none" in verdict.reason


@pytest.mark.parametrize(("difference", "noise", "excluded"), [(0.03, 40, True), (-0.03, 60, False)])
def test_an_unclear_verdict_says_whether_the_interval_excludes_the_effect(difference, noise, excluded):
    """Criterion: no number of pairs is named that would show an excluded effect."""
    verdict = Differs((LEAD,)).judge(two_rows(difference, noise=noise))
    assert verdict.status == "unclear"
    assert (verdict.interval.low > LEAD.effect) is excluded
    assert ("excludes the effect in question" in verdict.reason) is excluded
    assert ("would show the effect in question" in verdict.reason) is not excluded


def test_the_pairs_that_would_show_that_there_is_no_lead_show_it_in_four_of_five_studies():
    needed = Differs((LEAD,)).parts(two_rows(-0.03, noise=40))[0].to_exclude
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
    (command,) = re.findall(r"run: attractor study run x.py --seeds ([\d ]+)", verdict.reason)
    assert len(command.split()) == int(n_to_show)


def test_equal_differences_show_no_more_than_their_signs():
    """Criterion: two pairs that agree to the last digit decide nothing, which counts of boards often do; eight do."""

    def judged(n):
        cells = {"standard": [1.7 + 0.01 * k for k in range(n)], "coupled": [1.6 + 0.01 * k for k in range(n)]}
        return Differs((LEAD,)).judge(record(cells)), Equivalent((replace(LEAD, margin=0.2),)).judge(record(cells))

    assert [verdict.status for verdict in judged(2)] == ["unclear", "unclear"]
    assert [verdict.status for verdict in judged(8)] == ["holds", "holds"]


def test_one_comparison_of_many_is_held_to_holms_level():
    """Criterion: a difference that is shown as the only comparison is not shown among seven others."""
    rivals = {f"rival {n}": losses(1.7, 4, 30.0 * (1 + n)) for n in range(7)}
    cells = {"standard": losses(1.7, 4, 0.0), "coupled": losses(1.655, 4, 9.0)} | rivals
    pairs = [replace(LEAD, against="standard", of=row) for row in rivals]
    assert Differs((LEAD,)).parts(record(cells))[0].status == "holds"
    assert Differs((LEAD, *pairs)).parts(record(cells))[0].status == "unclear"


def test_a_quantity_of_trained_models_is_compared_at_one_rate():
    """Criterion: rows of two rates tell nothing, though their difference is large; rows of one rate are judged."""
    rule, runs = AtOneRate(Differs((LEAD,)), ("coupled", "standard")), two_rows(-0.1)

    def judged(rates):
        cells = [replace(cell, config=cell.config | {"lr": rates.get(cell.row, 1e-3)}) for cell in runs.cells]
        return rule.judge(replace(runs, cells=tuple(cells)))

    assert judged({}).status == "holds"
    assert judged({"coupled": 2e-3}).status == "unclear"
    assert "cannot tell: the learning rates are 0.001 and 0.002" in judged({"coupled": 2e-3}).reason


def test_all_comparisons_must_hold_and_one_failure_is_enough():
    both = Differs((LEAD, replace(LEAD, against="gqa")))
    cells = {"standard": losses(1.7, 8, 0.0), "coupled": losses(1.6)}
    assert both.judge(record(cells | {"gqa": losses(1.7, 8, 0.5)})).status == "holds"
    fails = both.judge(record(cells | {"gqa": losses(1.5, 8, 0.5)}))
    assert fails.status == "fails"
    assert fails.reason.startswith("coupled below gqa (+0.100")
    open_one = both.judge(record(cells | {"gqa": [None] * 8}))
    assert (open_one.status, open_one.reason) == ("unclear", "coupled below gqa: no finished run of gqa")


def test_the_weakest_part_that_holds_represents_the_claim():
    both = Differs((LEAD, replace(LEAD, against="gqa")))
    verdict = both.judge(record({"standard": losses(1.7, 8, 0.0), "coupled": losses(1.6), "gqa": losses(1.65, 8, 5.0)}))
    assert verdict.status == "holds"
    assert verdict.interval.mean == pytest.approx(-0.05)
    assert "coupled below gqa" in verdict.reason


def test_a_setting_that_is_not_sensitive_decides_nothing_whatever_the_p_value():
    """The control is worse by less than the margin of .02, so attention as a whole is worth less than the margin."""
    for difference in (-0.08, 0.0, 0.08):
        assert Differs((LEAD,)).judge(two_rows(difference)).status != "unclear"
        verdict = Differs((LEAD,)).judge(two_rows(difference, twin_gap=0.015))
        assert verdict.status == "unclear"
        assert "not sensitive" in verdict.reason
        assert verdict.interval.mean == pytest.approx(difference)


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


@pytest.mark.parametrize("settings", [{"control": None}, {"control": "uniform", "twin_gap": math.nan}])
def test_without_a_control_sensitivity_is_unknown_and_nothing_is_decided(settings):
    verdict = Differs((LEAD,)).judge(two_rows(-0.08, **settings))
    assert verdict.status == "unclear"
    assert "sensitivity unknown" in verdict.reason


def test_one_pair_of_seeds_decides_nothing():
    verdict = Differs((LEAD,)).judge(two_rows(-0.5, n=1))
    assert verdict.status == "unclear"
    assert "a second" in verdict.reason
    assert verdict.bounds == ""


def test_rows_without_runs_give_the_verdict_not_run():
    assert Differs((LEAD,)).judge(record({"standard": losses(1.7)})).status == "not run"
    never = Differs((LEAD,)).judge(record({"standard": losses(1.7), "coupled": [None] * 8}))
    assert (never.status, never.ours, never.interval) == ("not run", "", None)


def test_seeds_that_only_one_row_has_do_not_count():
    cells = {"standard": losses(1.7, 8, 0.0), "coupled": [None, *losses(1.6)[1:5], None, None, None]}
    assert Differs((LEAD,)).judge(record(cells)).seeds == 4
    apart = {"standard": [*losses(1.7, 4, 0.0), None, None], "coupled": [None] * 4 + [1.6, 1.6]}
    verdict = Differs((LEAD,)).judge(record(apart, control=None))
    assert (verdict.status, "no seed in common" in verdict.reason) == ("unclear", True)


@pytest.mark.parametrize("lost", [math.nan, {"valid_loss": None}])
def test_a_run_that_diverged_is_named_and_decides_nothing(lost):
    cells = {"standard": losses(1.7, 8, 0.0), "coupled": [lost, *losses(1.6)[1:]]}
    for rule in (Differs((LEAD,)), Equivalent((LEAD,))):
        verdict = rule.judge(record(cells))
        assert verdict.status == "unclear"
        assert "diverged: coupled (seed 0)" in verdict.reason
        assert verdict.ours == ""


@pytest.mark.parametrize(
    ("difference", "noise", "status", "more_pairs_help"),
    [
        (0.000, 1, "holds", False),
        (0.010, 1, "holds", False),  # shown, but too small to matter
        (0.050, 1, "fails", False),
        (-0.050, 1, "fails", False),
        (0.025, 5, "unclear", False),  # as large as the margin, where the noise would need fewer pairs than there are
        (0.000, 40, "unclear", True),
    ],
)
def test_no_difference_has_every_verdict(difference, noise, status, more_pairs_help):
    verdict = Equivalent((LEAD,)).judge(two_rows(difference, noise=noise))
    assert verdict.status == status
    assert ("would show that there is none" in verdict.reason) == more_pairs_help


def test_no_difference_fails_exactly_where_the_interval_is_outside_the_margin():
    statuses = set()
    for difference in np.linspace(0.02, 0.03, 41):
        for sign in (1, -1):
            verdict = Equivalent((LEAD,)).judge(two_rows(sign * difference, noise=3))
            nearer = min(abs(verdict.interval.low), abs(verdict.interval.high))
            assert (verdict.status == "fails") == (nearer > LEAD.margin)
            statuses.add(verdict.status)
    assert statuses == {"fails", "unclear"}


def test_no_advantage_is_one_sided():
    rule = Equivalent((replace(LEAD, margin=0.03),), only_above=True)
    assert rule.judge(two_rows(-0.2)).status == "holds"
    assert rule.judge(two_rows(0.01)).status == "holds"
    assert rule.judge(two_rows(0.2)).status == "fails"
    assert rule.judge(two_rows(0.03, noise=20)).status == "unclear"


def test_a_one_sided_test_is_told_and_planned_as_one():
    """Criterion: a row that is far lower is not said to lie within the margin."""
    rule = Equivalent((replace(LEAD, margin=0.03),), only_above=True)
    far_lower = rule.judge(two_rows(-0.2))
    assert "at most 0.03 nats/byte higher" in far_lower.reason
    assert "within" not in far_lower.reason + rule.words
    sd = summary([20 * x for x in OWN[:8]]).standard_deviation
    assert rule.parts(two_rows(0.03, noise=20))[0].to_exclude == pairs_needed(sd, 0.03, power=0.8, level=0.05)


def test_two_quantities_of_one_comparison_are_told_apart():
    rule = AllOf((Differs((LEAD,)), Differs((LEAD,), MEAN_LOSS), Differs((replace(LEAD, effect=0.1),))))
    statements = [part.statement for part in rule.parts(two_rows(-0.03))]
    assert statements == [
        "validation loss of coupled below standard",
        "mean validation loss of training of coupled below standard",
        "coupled above standard",
    ]


def test_no_difference_needs_a_premise_that_the_part_has_an_effect():
    premise = Differs((replace(LEAD, of="one step"),))
    rule = Equivalent((replace(LEAD, of="three steps", against="one step"),), premises=(premise,))
    present = {"standard": losses(1.7, 8, 0.0), "one step": losses(1.6), "three steps": losses(1.6, 8, -1.0)}
    absent = present | {"standard": losses(1.6, 8, 0.0)}
    assert rule.judge(record(present)).status == "holds"
    verdict = rule.judge(record(absent))
    assert verdict.status == "unclear"
    assert "but the premise is not shown: one step below standard" in verdict.reason
    beyond = absent | {"three steps": losses(1.7)}
    assert rule.judge(record(beyond)).status == "fails"  # two rows that differ need no premise


def spread(of, against, n=10):
    return record(
        {
            "standard": losses(1.7, n, 0.0),
            "coupled": [1.6 + of * x for x in OWN[:n]],
            "mlp-only": [1.65 + against * x for x in OWN[:n]],
        }
    )


def test_spread_has_every_verdict():
    rule = Steadier(("coupled",), "mlp-only", published=1 / 8)
    holds = rule.judge(spread(1, 8))
    assert (holds.status, holds.seeds, holds.unit) == ("holds", 10, "x")
    assert holds.interval.mean == pytest.approx(1 / 8)
    assert rule.judge(spread(8, 1)).status == "fails"
    unclear = rule.judge(spread(1, 1.5))
    assert (unclear.status, "seeds each would show the published ratio" in unclear.reason) == ("unclear", True)
    assert rule.judge(spread(1, 8, n=1)).status == "unclear"
    assert rule.judge(spread(1, 8, n=2)).status == "unclear"  # Brown and Forsythe's test is undefined here
    assert rule.judge(spread(math.nan, 8)).status == "unclear"
    assert rule.judge(record({"standard": losses(1.7)})).status == "not run"


def test_a_spread_names_the_seeds_of_both_rows_and_one_that_diverged():
    rule = Steadier(("coupled",), "mlp-only", published=1 / 8)
    few = {"standard": losses(1.7, 10, 0.0), "coupled": losses(1.6, 3), "mlp-only": losses(1.65, 10)}
    assert "not shown with 3 and 10 seeds" in rule.judge(record(few)).reason
    lost = few | {"mlp-only": [*losses(1.65, 9), math.nan]}
    assert "diverged: mlp-only (seed 9)" in rule.judge(record(lost)).reason


def test_equal_spread_is_a_counter_example_once_it_is_known_well_enough():
    """Without this verdict, two rows of equal spread would stay unclear with any number of seeds."""
    rule = Steadier(("coupled",), "mlp-only", published=1 / 8)
    rng = np.random.default_rng(0)
    for n, status in ((10, "unclear"), (60, "fails")):
        rows = {row: list(1.6 + 0.002 * rng.standard_normal(n)) for row in ("coupled", "mlp-only")}
        rows |= {"standard": [1.7] * n, "uniform": [2.7 + 0.001 * (seed % 2) for seed in range(n)]}
        assert rule.judge(record({row: list(map(float, of_row)) for row, of_row in rows.items()})).status == status
    assert 0 < rule.least < 1


def test_spread_is_not_shown_by_one_outlier_nor_by_a_ratio_that_may_be_chance():
    rule = Steadier(("coupled",), "mlp-only", published=1 / 8)
    assert rule.judge(spread(0.8, 1)).status == "unclear"
    outlier = {"mlp-only": [1.65 + 0.0005 * OWN[seed] + 0.1 * (seed == 3) for seed in range(10)]}
    cells = {"standard": losses(1.7, 10, 0.0), "coupled": losses(1.6, 10)} | outlier
    level = {row: [x - y for x, y in zip(xs, losses(0.0, 10, 0.0), strict=True)] for row, xs in cells.items()}
    verdict = rule.judge(record(cells | {"coupled": level["coupled"]}))
    assert (verdict.interval.high < 1, verdict.status) == (True, "unclear")


def test_the_recommended_number_of_seeds_has_the_stated_power():
    for published in (0.136, 0.3, 0.5):
        n = int(Steadier(("coupled",), "mlp-only", published)._seeds_needed().split()[0])
        assert power_of_f(n, published) >= 0.8 > power_of_f(n - 1, published)


def power_of_f(n, ratio):
    """Return the share of F statistics below the lower critical value, for two groups with this ratio of deviations."""
    draws = np.random.default_rng(n).chisquare(n - 1, (2, 1_000_000)) / (n - 1)
    return (ratio**2 * draws[0] / draws[1] < fdtri(n - 1, n - 1, 0.025)).mean()


def costs(speed, n=1, memory=1.4):
    """Return the timings of two rows; several timings of a row vary a little."""
    return record(
        {
            "standard": [{"tokens_per_second": 1000.0 + 40 * OWN[s], "peak_memory_bytes": 100.0} for s in range(n)],
            "coupled": [{"tokens_per_second": 1000.0 * speed, "peak_memory_bytes": 100.0 * memory} for s in range(n)],
        },
        control=None,
    )


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize(
    ("speed", "status", "word"),
    [(0.80, "holds", ""), (0.95, "holds", "better than published"), (0.7, "fails", "worse")],
)
def test_costs_have_every_verdict(speed, status, word, n):
    verdict = Costs(SPEED, "standard", (("coupled", 0.82),), 0.05, more_is_better=True).judge(costs(speed, n))
    assert verdict.status == status
    assert word in verdict.reason
    assert verdict.ours == f"{speed:.2f}x" or n > 1
    assert verdict.remark == ("better than published" if speed > 0.9 else "")
    assert ("one timing" in verdict.reason) == (n == 1 and not verdict.remark)


def test_the_rounds_of_a_single_timing_are_the_pairs():
    """A machine that slows down over the rounds slows both rows, so only ratios within a round count."""

    def timing(speed, jitter):
        seconds = [(1 + n) / speed * (1 + jitter * (n % 3 - 1)) for n in range(9)]
        return {"tokens_per_second": 1000.0 * speed, "step_seconds": seconds}

    rule = Costs(SPEED, "standard", (("coupled", 0.82),), 0.05, more_is_better=True)
    cells = {"standard": [timing(1.0, 0.0)]}
    verdict = rule.judge(record(cells | {"coupled": [timing(0.8, 0.01)]}, control=None))
    assert (verdict.status, verdict.seeds, "9 rounds" in verdict.reason) == ("holds", 1, True)
    assert verdict.interval.low < 0.8 < verdict.interval.high
    assert verdict.ours == figure(verdict.interval, "x")
    assert rule.judge(record(cells | {"coupled": [timing(0.8, 0.3)]}, control=None)).status == "unclear"
    assert rule.judge(record(cells | {"coupled": [timing(0.5, 0.01)]}, control=None)).status == "fails"


def test_rounds_are_compared_at_the_seed_that_both_rows_have():
    """The row 'standard' has another seed, too, whose timing is ten times faster."""
    slow, fast = ({"tokens_per_second": 1 / s, "step_seconds": [s, 1.01 * s, 0.99 * s]} for s in (1.0, 0.1))
    rule = Costs(SPEED, "standard", (("coupled", 1.0),), 0.05, more_is_better=True)
    verdict = rule.judge(record({"standard": [fast, slow], "coupled": [None, slow]}, control=None))
    assert (verdict.status, verdict.interval.mean) == ("holds", pytest.approx(1.0))


def test_less_memory_holds_and_an_interval_over_the_margin_is_unclear():
    rule = Costs(MEMORY, "standard", (("coupled", 1.4),), 0.1, more_is_better=False)
    cheaper = rule.judge(costs(1.0, memory=1.1))
    assert (cheaper.status, cheaper.remark) == ("holds", "better than published")
    assert rule.judge(costs(1.0, memory=1.9)).status == "fails"
    noisy = {"standard": [{"peak_memory_bytes": 100.0}] * 3}
    noisy["coupled"] = [{"peak_memory_bytes": x} for x in (120.0, 140.0, 165.0)]
    assert rule.judge(record(noisy, control=None)).status == "unclear"
    assert rule.judge(record(noisy | {"coupled": [None] * 3}, control=None)).status == "not run"
    assert rule.judge(record(noisy | {"coupled": [{}] * 3}, control=None)).status == "not run"


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ((1.0, 0.999, 0.995), "holds"),
        ((1.0, 1.0, 0.6), "unclear"),
        ((0.5, 0.6, 0.55), "fails"),
        ((1.0,), "unclear"),
        ((1.0, math.nan), "unclear"),
        ((), "not run"),
    ],
)
def test_a_claim_that_a_row_reaches_a_level(values, status):
    cells = {("standard", "easy"): [{}], ("coupled", "easy"): [{"metric": {"value": x}} for x in values]}
    rule = Reaches("coupled", ("easy",), 0.99, ACCURACY)
    assert rule.judge(record(cells, control=None)).status == status


@pytest.mark.parametrize(
    ("values", "status"),
    [((0.2, 1.0), "holds"), ((0.2,), "holds"), ((0.2, 1.01), "fails"), ((0.2, math.nan), "fails"), ((), "not run")],
)
def test_staying_within_a_bound(values, status):
    """Criterion: one run decides, since a bound must hold in every run."""
    cells = {("standard", "low"): [{}], ("bound", "low"): [{"probes": {"lemma": {"share": x}}} for x in values]}
    rule = Stays(("bound",), ("low",), 1.0, FIRST_ORDER)
    assert rule.judge(record(cells, control=None)).status == status


def test_a_run_whose_number_is_missing_may_be_the_one_that_breaks_the_bound():
    """Criterion: a number that is not finite is stored as null, which must not read as keeping to the bound."""
    share = [{"probes": {"lemma": {"share": x}}} for x in (0.2, 0.3, None)]
    cells = {("standard", ""): [{}], ("bound", ""): share}
    for rule in (Stays(("bound",), ("",), 1.0, FIRST_ORDER), Reaches("bound", ("",), 0.1, FIRST_ORDER)):
        verdict = rule.judge(record(cells, control=None))
        assert (verdict.status, "seed 2 finished without this number" in verdict.reason) == ("unclear", True)
    assert Stays(("bound",), ("",), 0.25, FIRST_ORDER).judge(record(cells, control=None)).status == "fails"
    diverged = record({("bound", ""): [*share[:2], {"probes": {"lemma": {"share": math.nan}}}]}, control=None)
    assert "diverged: seed 2" in Stays(("bound",), ("",), 1.0, FIRST_ORDER).judge(diverged).reason


def test_the_weakest_part_is_named_only_among_numbers_of_one_kind():
    """Criterion: a share of a bound of 1000 is no p value, however large it is."""
    shares = {"probes": {"lemma": {"share": 900.0}}}
    rows = two_rows(-0.08)
    runs = [replace(run, probes=shares["probes"]) for run in rows.cell("coupled").outcomes]
    stored = replace(
        rows, cells=tuple(replace(c, outcomes=tuple(runs)) if c.row == "coupled" else c for c in rows.cells)
    )
    bound = Stays(("coupled",), ("",), 1000.0, FIRST_ORDER)
    both = AllOf((bound, Differs((LEAD,)))).judge(stored)
    assert "all 2 parts hold, the weakest test is coupled below standard" in both.reason
    tests = AllOf((Differs((LEAD,)), Differs((replace(LEAD, margin=0.001),)))).judge(stored)
    assert "all 2 parts hold, the weakest is coupled below standard" in tests.reason
    apart = AllOf((bound, Reaches("coupled", ("",), 1.0, FIRST_ORDER))).judge(stored)
    assert "all 2 parts hold, the first is" in apart.reason


def test_stability_is_judged_without_context_and_a_diverged_run_is_a_guess():
    """Criterion: attention is worth nothing here, and all runs of one row diverged. The loss of quality is unclear, but
    that of stability is shown: 8 bits a byte, the loss of a guess, less that of the stable row."""
    cells = {
        ("standard", ""): [{"valid_loss": None} for _ in range(3)],
        ("calm", ""): [{"valid_loss": 2.0 + 0.01 * seed} for seed in range(3)],
        ("uniform", ""): [{"valid_loss": 2.0} for _ in range(3)],
    }
    pair, stored = Pair("calm", "standard", -0.02, 0.01), record(cells)
    assert Differs((pair,)).judge(stored).status == "unclear"
    verdict = Differs((pair,), END_LOSS).judge(stored)
    assert verdict.status == "holds"
    assert verdict.interval.mean == pytest.approx(2.01 - 8 * math.log(2))
    assert Differs((Pair("standard", "calm", -0.02, 0.01),), END_LOSS).judge(stored).status == "fails"


def test_a_row_may_be_compared_with_itself_in_another_column():
    """The losses are 2.0 and 1.5 in two sensitive columns, and the sign follows the first column."""
    cells = {
        (row, column): [{"valid_loss": loss + 0.001 * seed * loss + (row == "uniform")} for seed in range(3)]
        for column, loss in {"low": 2.0, "high": 1.5}.items()
        for row in ("standard", "uniform")
    }
    pair = Pair("standard", "standard", effect=-0.1, margin=0.02, column="high", against_column="low")
    verdict = Differs((pair,)).judge(record(cells))
    assert (verdict.status, verdict.interval.mean) == ("holds", pytest.approx(-0.5005))
    assert "high against low" in verdict.reason
    turned = Pair("standard", "standard", effect=-0.1, margin=0.02, column="low", against_column="high")
    assert Differs((turned,)).judge(record(cells)).status == "fails"


def test_accuracies_that_are_all_equal_are_no_advantage():
    """Both rows are at 1.000 with every seed, so there is no spread and no lead."""
    cells = {(row, "easy"): [{"metric": {"value": 1.0}}] * 3 for row in ("standard", "coupled")}
    pair = Pair("coupled", "standard", effect=0.3, margin=0.08, column="easy")
    assert Differs((pair,), ACCURACY).judge(record(cells, control=None)).status == "fails"
    assert Equivalent((pair,), ACCURACY).judge(record(cells, control=None)).status == "holds"


def test_counts_are_exact():
    rule = Counts((("standard", "small", 100), ("coupled", "small", 120)))
    cells = {("standard", "small"): [{"n_parameters": 100}], ("coupled", "small"): [{"n_parameters": 120}]}
    assert rule.judge(record(cells, control=None)).status == "holds"
    verdict = rule.judge(record(cells | {("coupled", "small"): [{"n_parameters": 121}]}, control=None))
    assert (verdict.status, "coupled, small (121): 120 was expected" in verdict.reason) == ("fails", True)
    assert rule.judge(record({("standard", "small"): [{"n_parameters": 100}]}, control=None)).status == "unclear"


def probed(standard, coupled, path="entropy", n=5, **settings):
    """Return measures of the layers of both rows, with a little noise of each run in every layer."""
    return record(
        {
            row: [
                {"valid_loss": loss, "probes": {path: [x + (row == "coupled") * OWN[seed] for x in layers]}}
                for seed, loss in enumerate(losses(1.7, n))
            ]
            for row, layers in (("standard", standard), ("coupled", coupled))
        }
        | {"uniform": losses(2.7, n)},
        **settings,
    )


def test_the_dip_is_found_where_the_baseline_has_it():
    rule = AtDip(Pair("coupled", "standard", effect=0.5, margin=0.12))
    dipped = [3.0, 3.1, 2.0, 3.2, 3.0]
    assert rule.judge(probed(dipped, [3.0, 3.1, 2.5, 3.2, 3.0])).status == "holds"
    assert "layer 2" in rule.judge(probed(dipped, [3.0, 3.1, 2.5, 3.2, 3.0])).reason
    assert (
        rule.judge(probed(dipped, [9.0, 9.1, 2.0, 9.2, 9.0])).status == "fails"
    )  # a dip in another layer does not count
    rising = rule.judge(probed([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 2.5, 4.0]))
    assert rising.status == "unclear"
    assert "no dip" in rising.reason
    assert "beside it: entropy of layer 2 of coupled - standard -0.499" in rising.reason  # where the paper has it
    assert "no inner layer 2" in rule.judge(probed([3.0, 2.0, 3.0], [3.0, 2.5, 3.0])).reason
    assert rule.judge(two_rows(0.0)).status == "not run"


def test_only_an_inner_layer_below_both_neighbours_is_a_dip():
    assert deepest_dip([1.0, 5.0, 4.0, 6.0, 2.0, 3.0]) == 2 or deepest_dip([1.0, 5.0, 4.0, 6.0, 2.0, 3.0]) == 4
    assert deepest_dip([3.0, 2.9, 3.0, 1.0, 3.0]) == 3
    assert deepest_dip([1.0, 2.0, 3.0]) is None
    assert deepest_dip([3.0, 1.0]) is None
    assert deepest_dip([]) is None


def test_ranks_are_compared_as_ratios_in_per_cent():
    pair = Pair("coupled", "standard", effect=math.log(1.02), margin=math.log(1.02) / 4)
    rule = AllOf(
        (
            Differs((pair,), effective_rank(None)),
            Reported((pair,), effective_rank(0)),
            Reported((pair,), effective_rank(7)),
        )
    )
    verdict = rule.judge(probed([100.0, 200.0], [110.0, 206.0], "effective_rank"))
    assert verdict.status == "holds"
    assert verdict.interval.mean == pytest.approx(100 * 16 / 300, rel=1e-3)
    assert verdict.ours.endswith("%")
    assert "beside it: effective rank (layer 0) of coupled - standard +10" in verdict.reason
    assert "layer 7" not in verdict.reason


def test_converging_faster_is_less_area_under_the_validation_curve():
    """Both rows end at the same loss, and one of them falls three times as fast."""

    def rows(rate, noise):
        return [
            {"valid_loss": loss, "curve": [(1000 * k, loss + math.exp(-rate * k)) for k in range(20)]}
            for loss in losses(1.7, 4, noise)
        ]

    pair = Pair("coupled", "standard", effect=-0.02, margin=0.02)
    cells = {"standard": rows(0.3, 0.0), "uniform": losses(3.0, 4)}
    assert Differs((pair,), MEAN_LOSS).judge(record(cells | {"coupled": rows(0.9, 1.0)})).status == "holds"
    assert Differs((pair,), MEAN_LOSS).judge(record(cells | {"coupled": rows(0.1, 1.0)})).status == "fails"
    assert Differs((pair,)).judge(record(cells | {"coupled": rows(0.9, 1.0)})).status == "fails"
    short = [dict(run, curve=run["curve"][-1:]) for run in rows(0.9, 1.0)]
    assert Differs((pair,), MEAN_LOSS).judge(record(cells | {"coupled": short})).status == "not run"


def swept(stable_rates, n=4):
    """Return both rows at four rates. A row is stable at the given number of lowest rates. At higher rates its runs end
    without a finite loss, with a spike, or far above the best loss, in turn."""
    beyond = ({"valid_loss": None}, {"loss_spikes": [7]}, {"valid_loss": 2.6})
    calm = {"valid_loss": 1.7, "loss_spikes": [], "skipped_steps": 0}
    cells = {
        (row, rate): [calm | (beyond[(seed + place) % 3] if place >= counts[seed] else {}) for seed in range(n)]
        for row, counts in stable_rates.items()
        for place, rate in enumerate(("1e-3", "3e-3", "1e-2", "3e-2"))
    }
    return record(cells, control=None)


@pytest.mark.parametrize(
    ("with_phase", "without", "status"),
    [
        ((3, 3, 3, 3), (2, 2, 1, 2), "holds"),
        ((2, 2, 1, 2), (3, 3, 3, 3), "fails"),
        ((2, 2, 2, 2), (2, 2, 2, 2), "fails"),  # the intervention makes no rate stable
        ((3, 1, 3, 2), (2, 2, 1, 3), "unclear"),
        ((4, 4, 4, 4), (4, 4, 4, 4), "unclear"),  # all rates are stable anyway
    ],
)
def test_stability_is_counted_over_a_sweep_of_rates(with_phase, without, status):
    rule = StableAtMore(Pair("with", "without", effect=1.0, margin=0.5), ("1e-3", "3e-3", "1e-2", "3e-2"))
    assert rule.judge(swept({"without": without, "with": with_phase})).status == status


def test_rows_that_are_stable_at_no_rate_give_an_unclear_verdict():
    rule = StableAtMore(Pair("with", "without", effect=1.0, margin=0.5), ("1e-3", "3e-3"))
    never = {(row, rate): [{"valid_loss": None}] * 3 for row in ("with", "without") for rate in ("1e-3", "3e-3")}
    assert rule.judge(record(never, control=None)).status == "unclear"


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({("with", "3e-3"): [None, {}], ("with", "1e-3"): [{}, None]}, "no seed of with ran at all rates"),
        ({("with", "3e-3"): [{}], ("with", "1e-3"): [{}]}, "did not record losses or instabilities"),
    ],
)
def test_rows_whose_stability_is_unknown_are_not_called_unstable(cells, said):
    rule = StableAtMore(Pair("with", "without", effect=1.0, margin=0.5), ("1e-3", "3e-3"))
    verdict = rule.judge(record(cells | {("without", rate): [{}] for rate in ("1e-3", "3e-3")}, control=None))
    assert (verdict.status, said in verdict.reason) == ("unclear", True)


def test_a_row_without_runs_at_one_rate_is_not_judged():
    rule = StableAtMore(Pair("with", "without", effect=1.0, margin=0.5), ("1e-3", "3e-3", "1", "3e-2"))
    assert rule.judge(swept({"without": (1, 1, 1, 1), "with": (2, 2, 2, 2)})).status == "not run"


def test_a_claim_is_the_conjunction_of_its_parts():
    for parts in itertools.product(("holds", "fails", "partly", "unclear", "not run"), repeat=3):
        found = conjunction(parts)
        assert (found == "fails") == ("fails" in parts)
        assert (found == "holds") == (set(parts) == {"holds"})
        assert (found == "not run") == (set(parts) == {"not run"})
        assert (found == "partly") == ("partly" in parts and set(parts) <= {"holds", "partly"})


def test_a_weight_of_a_penalty_that_a_scale_has_alone_is_judged():
    """Criterion: the rule names the first weight, which the record lacks; two runs of the second one are judged."""
    plain = [{"valid_loss": 1.7 + 0.001 * n, "boards": 0.1 + 0.001 * n} for n in range(4)]
    acting = [{"valid_loss": 1.6 + 0.001 * n, "boards": 0.5 + 0.0011 * n, "effort": 0.5} for n in range(4)]
    stored = record({"standard": plain, "coupled 1e-4": acting}, control=None)
    effort, boards = Quantity("effort", "effort"), Quantity("boards", "boards")
    more = Differs((replace(LEAD, effect=0.4),), boards)
    rule = WhereActing(more, ("coupled", "coupled 1e-4"), effort, 0.1, boards)
    (part,) = rule.parts(stored)
    assert part.status == "holds"
    assert part.statement.endswith("(as coupled 1e-4)")


def test_every_rule_has_a_readable_description():
    assert all(len(rule.words) > 20 for rule in RULES.values())


STORED = {
    claim.id: [read_record(path) for name, path in RECORDS.items() if name.rpartition("-")[0] == f"study-{claim.study}"]
    for claim in CLAIMS
    if claim.rule is not None
}


def simple_rules(rule):
    parts = getattr(rule, "rules", None) or ([rule.rule] if isinstance(rule, Conditional) else [])
    return [simple for part in parts for simple in simple_rules(part)] or [rule]


def changed(stored, n_runs, share, rng):
    """Return the record with at most so many runs of each cell, of which a share diverged."""
    lost = {"valid_loss": None, "metric": {"value": None}}
    cells = []
    for cell in stored.cells:
        runs = [replace(o, summary=o.summary | lost) if rng.random() < share else o for o in cell.outcomes[:n_runs]]
        cells.append(replace(cell, outcomes=tuple(runs)))
    return replace(stored, cells=tuple(cells))


@pytest.mark.parametrize(("n_runs", "share"), [(None, 0.0), (1, 0.0), (4, 0.2), (2, 1.0)])
def test_every_rule_gives_a_verdict_on_any_runs(n_runs, share):
    """Criterion: every verdict on a stored record has a reason, also with diverged runs and single seeds, and one pair
    never decides a comparison. Runs of the scale smoke decide nothing."""
    needs_no_pairs, statuses = Counts | Costs | OfTheBest | Stays | StableAtMore, set()
    for claim, stored in STORED.items():
        rule = RULES[claim]
        for runs in (changed(record_of, n_runs, share, random.Random(claim)) for record_of in stored):
            verdict = rule.judge(runs)
            statuses.add(verdict.status)
            assert verdict.reason, claim
            if n_runs == 1 and not any(isinstance(part, needs_no_pairs) for part in simple_rules(rule)):
                assert verdict.status in ("unclear", "not run"), claim
            smoke = rule.judge(replace(runs, design=replace(runs.design, scale="smoke")))
            assert verdict.status == smoke.status == "not run" or smoke.reason.startswith("smoke scale"), claim
    assert statuses >= {"unclear", "fails"}


@settings(max_examples=10, deadline=None)
@given(st.sampled_from(sorted(claim for claim, stored in STORED.items() if stored)), st.integers(0, 1000))
def test_a_verdict_does_not_depend_on_the_order_of_cells_or_runs(claim, order):
    rng = random.Random(order)
    stored = changed(rng.choice(STORED[claim]), None, 0.02, rng)
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
    assert {claim: RULES[claim].judge(found).status for claim in ("C1", "C2", "C3", "C5")} == dict.fromkeys(
        ("C1", "C2", "C3", "C5"), "holds"
    )
