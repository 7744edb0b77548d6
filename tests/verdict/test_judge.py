"""Verdicts on tables of runs: agreement with other libraries, error rates, designs, looks, and what is refused."""

import math
from functools import partial

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.weightstats import ttost_ind, ttost_paired

from attractor import judge
from attractor.errors import InputError
from attractor.verdict.judge import expected_best, judge_observations
from attractor.verdict.moderated import FEWEST_ROWS, moderated
from attractor.verdict.multiplicity import holm
from attractor.verdict.observations import Observations, ObservedRun
from attractor.verdict.sequential import Sequential, p_over_looks


def observations(rows, seeded=True, **fields):
    """Return observations of values by row, in the order of seeds from 0 up."""
    runs = {row: {seed: ObservedRun(float(value)) for seed, value in enumerate(values)} for row, values in rows.items()}
    return Observations(runs, "val_loss", seeded, **fields)


def draws(rng, n_rows, n_seeds, correlation=0.5, spread=(1.0,)):
    """Return a baseline and rows that share noise between runs of one seed; every second row may spread more."""
    shared, own = rng.standard_normal(n_seeds), rng.standard_normal((n_rows + 1, n_seeds))
    values = math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * own
    values[1:] *= np.resize(spread, n_rows)[:, None]
    return {"baseline": values[0]} | {f"row {n}": row for n, row in enumerate(values[1:], start=1)}


@pytest.mark.parametrize("seeded", [True, False])
def test_few_rows_agree_with_scipy_and_statsmodels(seeded):
    """Criterion: on 100 random tables differences, intervals and (adjusted) p values agree to 1e-9, and a row is
    within the margin exactly where statsmodels' two one-sided tests, corrected by Holm's method, say so."""
    rng = np.random.default_rng(0)
    outcomes = set()
    for _ in range(100):
        rows = draws(rng, int(rng.integers(1, 5)), int(rng.integers(3, 12)))
        rows["row 1"] = rows["row 1"] * 0.3 + rows["baseline"] - rng.choice([0, 3])
        margin = float(rng.uniform(0.2, 2))
        verdicts = judge_observations(observations(rows, seeded), margin=margin)
        baseline = rows.pop("baseline")
        test = stats.ttest_rel if seeded else lambda a, b: stats.ttest_ind(a, b, equal_var=False)
        tests = [test(row, baseline) for row in rows.values()]
        adjusted = holm({row: each.pvalue for row, each in zip(rows, tests, strict=True)}).values()
        equivalence = ttost_paired if seeded else partial(ttost_ind, usevar="unequal")
        tost = [equivalence(row, baseline, -margin, margin)[0] for row in rows.values()]
        within = holm(dict(zip(rows, tost, strict=True))).values()  # itself held to statsmodels in test_multiplicity.py
        for row, each, p, p_within in zip(rows, tests, adjusted, within, strict=True):
            verdict, interval = verdicts[row], each.confidence_interval()
            close = pytest.approx
            assert (verdict.p, verdict.adjusted_p) == (close(each.pvalue, abs=1e-9), close(p, abs=1e-9))
            assert (verdict.low, verdict.high) == (close(interval.low, abs=1e-9), close(interval.high, abs=1e-9))
            assert verdict.difference == close(rows[row].mean() - baseline.mean(), abs=1e-9)
            assert verdict.correlation == (close(np.corrcoef(rows[row], baseline)[0, 1]) if seeded else None)
            side = "better" if verdict.difference < 0 else "worse"
            assert verdict.outcome == ("no difference" if p_within < 0.05 else side if p < 0.05 else "undecided")
            outcomes.add(verdict.outcome)
    assert outcomes >= {"better", "no difference", "undecided"}


@pytest.mark.parametrize("spread", [(1.0,), (1.0, 2.0)])
@pytest.mark.parametrize(("n_rows", "n_seeds"), [(1, 4), (5, 8), (40, 4)])
def test_a_table_without_differences_seldom_has_a_better_row(n_rows, n_seeds, spread):
    """Criterion: at most 3% of tables have a false "better", by the mean over 300 tables and its error."""
    rng = np.random.default_rng(1)
    n_tables = 300
    false = sum(
        any(verdict.outcome == "better" for verdict in judge_observations(observations(table)).verdicts)
        for table in (draws(rng, n_rows, n_seeds, 0.5, spread) for _ in range(n_tables))
    )
    assert false / n_tables <= 0.03 + 2.5 * math.sqrt(0.03 / n_tables)


def test_forty_ideas_with_four_seeds_share_their_spread():
    """Criterion: a true difference of four standard deviations is shown twice as often as with own spreads."""
    rng = np.random.default_rng(2)
    shown = alone = 0
    for _ in range(60):
        table = draws(rng, 40, 4)
        table["row 1"] = table["row 1"] - 4.0
        verdicts = judge_observations(observations(table))
        shown += verdicts["row 1"].outcome == "better"
        alone += stats.ttest_rel(table["row 1"], table["baseline"]).pvalue < 0.05 / 40
    assert shown > 2 * alone


def test_moderated_spreads_lie_between_a_rows_own_and_the_common_one():
    rng = np.random.default_rng(3)
    own = rng.chisquare(3, 30) / 3
    shared = moderated(own, [3.0] * 30, 0.5)
    variances = np.array([variance for variance, _ in shared])
    assert np.ptp(variances) < np.ptp(own)
    assert (np.argsort(variances) == np.argsort(own)).all()
    assert all(3 <= freedom <= 12 for _, freedom in shared)
    unlike = moderated(own ** np.linspace(-20, 20, 30), [3.0] * 30)
    assert all(freedom < 4 for _, freedom in unlike)  # no common spread: each keeps its own
    few = own[: FEWEST_ROWS - 1]
    assert moderated(few, [3.0] * len(few)) == [(variance, 3.0) for variance in few]
    assert moderated([0.0, *own], [3.0] * 31)[0] == (0.0, 3.0)


def test_ideas_that_were_tried_and_not_kept_count():
    table = observations({"baseline": [1.0, 1.1, 1.2, 1.05], "idea": [0.9, 1.01, 1.12, 0.94]})
    alone, of_many = judge_observations(table)["idea"], judge_observations(table, tried=40)["idea"]
    assert of_many.p == alone.p
    assert of_many.adjusted_p == pytest.approx(40 * alone.p)
    assert of_many.detectable > alone.detectable


def test_one_run_a_row_is_held_against_five_repeats_of_the_baseline():
    """Criterion: the interval is the prediction interval, and fewer repeats give no verdict but say how many would."""
    repeats = [3.28, 3.284, 3.276, 3.281, 3.279]
    rows = {"baseline": repeats} | {f"idea {n}": [3.28 - 0.001 * n] for n in range(37)}
    verdicts = judge_observations(observations(rows))
    idea = verdicts["idea 5"]
    low, high = stats.t.interval(0.95, 4, np.mean(repeats), np.std(repeats, ddof=1) * math.sqrt(1 + 1 / 5))
    assert (idea.low, idea.high) == (pytest.approx(3.275 - high), pytest.approx(3.275 - low))
    assert idea.design == "one run a row"
    assert "best of 37 such rows lies 2.1 sd below the mean by luck alone" in " ".join(verdicts.notes)
    few = judge_observations(observations(rows | {"baseline": repeats[:3]}))["idea 5"]
    assert (few.outcome, few.p) == ("undecided", None)
    assert "5 runs of 'baseline' with different seeds are needed" in few.reason


def test_the_best_of_equal_rows_lies_as_far_out_as_simulated():
    best = np.random.default_rng(4).standard_normal((20_000, 37)).max(1).mean()
    assert expected_best(37) == pytest.approx(best, abs=0.02)
    assert expected_best(1) == pytest.approx(0, abs=1e-6)


def test_planned_looks_are_those_of_the_sequential_test():
    """Criterion: outcome and interval equal those of the plan at each look; between looks nothing changes."""
    rng = np.random.default_rng(5)
    looks, outcomes = (4, 8), set()
    for _ in range(60):
        baseline = rng.normal(size=8)
        row = baseline + rng.normal(rng.choice([0, -1.5]), 1, 8)
        for n in range(4, 9):
            verdict = judge_observations(observations({"baseline": baseline[:n], "row": row[:n]}), looks=looks)["row"]
            decision = Sequential(0.05, 0.0, 8, looks=looks).look(row[:n] - baseline[:n])
            expected = decision.outcome if decision.outcome in ("better", "worse") else "undecided"
            earlier = Sequential(0.05, 0.0, 8, looks=looks).look((row - baseline)[:4]).outcome
            assert verdict.outcome == (earlier if earlier in ("better", "worse") else expected)
            assert verdict.low == pytest.approx(decision.interval.low)
            assert verdict.n == (8 if n == 8 else 4)  # pairs between two looks wait for the next one
            outcomes.add(verdict.outcome)
    assert {"better", "undecided"} <= outcomes
    few = judge_observations(observations({"baseline": baseline[:3], "row": row[:3]}), looks=looks)["row"]
    assert few.outcome == "undecided"


def test_a_p_value_over_looks_is_as_rare_as_it_says():
    looks, rng = (4, 8, 12), np.random.default_rng(6)
    paths = rng.standard_normal((2000, 12))
    p_values = np.stack([stats.ttest_1samp(paths[:, :n], 0, axis=1).pvalue for n in looks], axis=1)
    counted = [p_over_looks(of_path, looks) for of_path in p_values]
    for level in (0.01, 0.05, 0.2):
        assert np.mean(np.array(counted) <= level) == pytest.approx(level, abs=3 * math.sqrt(level / 2000))


def test_unplanned_looks_that_dates_show_are_priced():
    """Criterion: pairs that ended on three days are three looks, which a plan of these looks would not be."""
    days = [f"2026-11-0{day}T0{hour}" for hour, day in enumerate((1, 1, 2, 2, 2, 5, 5, 5))]
    baseline, row = [1.0, 1.2, 0.9, 1.1, 1.0, 1.3, 0.8, 1.05], [0.97, 1.12, 0.89, 1.06, 0.99, 1.24, 0.78, 1.0]
    runs = [[ObservedRun(value, date=day) for value, day in zip(of, days, strict=True)] for of in (baseline, row)]
    table = Observations({"baseline": dict(enumerate(runs[0])), "row": dict(enumerate(runs[1]))}, "val_loss")
    verdicts = judge_observations(table)
    (note,) = [note for note in verdicts.notes if "3 days" in note]
    assert "2, 5, 8 pairs" in note
    assert not [note for note in judge_observations(table, looks=(2, 5, 8)).notes if "days" in note]


def test_a_number_to_compare_with_needs_no_baseline():
    values = {"a": [3.27, 3.272, 3.268, 3.271], "b": [3.285, 3.279, 3.282, 3.28]}
    verdicts = judge_observations(observations(values), against=3.28)
    assert verdicts.baseline is None
    assert verdicts["a"].p == pytest.approx(stats.ttest_1samp(values["a"], 3.28).pvalue, abs=1e-12)
    assert verdicts["a"].outcome == "better"


def test_diverged_and_missing_runs_are_outcomes():
    """Criterion: a run that is not finite withholds the verdict on its row alone; a missing seed is named."""
    rows = {"baseline": [1.0, 1.1, 1.2, 1.3], "diverged": [0.5, 0.6, math.inf, 0.8], "short": [0.5, 0.61, 0.7]}
    verdicts = judge_observations(observations(rows))
    assert verdicts["diverged"].outcome == "undecided"
    assert verdicts["diverged"].lost == {2: "diverged in diverged"}
    assert verdicts["short"].outcome == "better"
    assert verdicts["short"].lost == {3: "missing in short"}
    everywhere = judge_observations(observations(rows | {"baseline": [1.0, math.nan, 1.2, 1.3]}))
    assert {verdict.outcome for verdict in everywhere.verdicts} == {"undecided"}


def test_ideas_that_were_kept_are_told_to_be_rerun():
    kept = {"baseline": (1.0, True), "idea": (0.99, True), "other": (1.01, False)}
    rows = {row: {0: ObservedRun(value, kept=is_kept)} for row, (value, is_kept) in kept.items()}
    notes = judge_observations(Observations(rows, "val_bpb", seeded=False)).notes
    assert any("fresh seeds" in note for note in notes)


def curves(**steps):
    """Return rows of two runs that are measured at these steps; the loss falls with the step, and by row."""
    rows = {}
    for place, (row, at) in enumerate(steps.items()):
        of_seeds = [tuple((s, 3 - s / 100 + 0.01 * seed - 0.1 * place) for s in at) for seed in range(3)]
        rows[row] = {seed: ObservedRun(curve[-1][1], curve) for seed, curve in enumerate(of_seeds)}
    return Observations(rows, "loss")


def test_all_rows_are_read_at_one_step():
    same = curves(baseline=(10, 20, 30), row=(10, 20, 30))
    assert judge_observations(same)["row"].difference == pytest.approx(-0.1)
    at_20 = judge_observations(same, at=20)
    assert at_20.observations.values("row")[0] == pytest.approx(3 - 0.2 - 0.1)
    assert "The value at step 20 counts." in at_20.notes
    early = curves(baseline=(10, 20, 30), row=(10, 20))
    with pytest.raises(InputError, match=r"runs must end at one step.*--at 20, the last step that all have"):
        judge_observations(early)
    assert judge_observations(early, at="20")["row"].difference == pytest.approx(-0.1)
    assert judge_observations(early, at="best")["row"].difference == pytest.approx(0.0)


def test_a_run_that_ended_after_one_value_is_not_compared_with_longer_ones():
    """Criterion: a table of results, one for each run, is judged as it is, and says of which steps they are."""
    measured = {"row": [*"bbbaaa"], "seed": [0, 1, 2] * 2, "loss": [3.0, 3.1, 3.2, 2.9, 3.0, 3.1]}
    results = judge(measured | {"step": [20, 20, 20, 20, 20, 10]}, baseline="b")
    assert results["a"].difference == pytest.approx(-0.1)
    assert "The results are of steps 10 to 20." in results.notes
    unknown = judge(measured | {"step": [20, 20, 20, 20, 20, math.nan]}, baseline="b")
    assert unknown["a"].n == 3
    course = {name: [*cells, *cells[:5]] for name, cells in measured.items()} | {"step": [10] * 6 + [20] * 5}
    with pytest.raises(InputError, match=r"but seed 2 of 'a' ends at 10 and others at 20; give --at 10, .*write nan"):
        judge(course, baseline="b")


@pytest.mark.parametrize("value", ["val_loss", "perplexity", "bpb"])
def test_which_side_is_better_is_guessed_from_the_name_and_said(value):
    rows = observations({"baseline": [1.0, 1.1, 1.2, 1.05], "row": [0.5, 0.62, 0.7, 0.56]}).rows
    lower, higher = (judge_observations(Observations(rows, name)) for name in (value, "accuracy"))
    assert (lower["row"].outcome, higher["row"].outcome) == ("better", "worse")
    assert f"Lower {value} is taken to be better." in lower.notes
    assert judge_observations(Observations(rows, "accuracy"), lower_is_better=True)["row"].outcome == "better"


def test_without_a_margin_no_difference_does_not_exist():
    rows = {"baseline": [1.0, 1.1, 1.2, 1.05], "row": [1.0, 1.1, 1.2, 1.0500001]}
    assert judge_observations(observations(rows))["row"].outcome == "undecided"
    within = judge_observations(observations(rows), margin=0.01)["row"]
    assert (within.outcome, within.further_seeds) == ("no difference", 0)
