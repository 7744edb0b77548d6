"""Rows that run seed by seed: possible verdicts, error rates, the control, and dependence on the values alone."""

import math
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest

from attractor.verdict.sequential_rows import SequentialRows

SD = 0.012  # standard deviation of paired differences, close to the measured one
RIVALS = ("coupled-euler", "differential")
BASELINE, CONTROL = "standard", "uniform"
Losses = dict[str, dict[int, float]]


def planned(rows=RIVALS, n_max=8, margin=0.01, alpha=0.05) -> SequentialRows:
    return SequentialRows.of_equal_shares(BASELINE, rows, range(n_max), margin, alpha, control=CONTROL)


def drawn(effects: Mapping[str, float], rng: np.random.Generator, n_max=8, control: float = 0.4) -> Losses:
    """Draw the losses of all runs as the sum of a part of the seed, which pairs share, and a part of each row."""
    shared = rng.normal(2.1, 0.02, n_max)
    means = dict.fromkeys((*RIVALS, "gated"), 0.0) | {BASELINE: 0.0, CONTROL: control} | dict(effects)
    return {
        row: dict(enumerate((shared + means[row] + rng.normal(0, SD / math.sqrt(2), n_max)).tolist()))
        for row in sorted(means)
    }


def conducted(rows: SequentialRows, losses: Losses) -> list[tuple[str, int]]:
    """Carry out the wanted runs one after the other, and return them in order."""
    ran = []
    while (run := next(rows.wanted(), None)) is not None:
        rows.observe(*run, losses[run[0]][run[1]])
        ran.append(run)
    return ran


def outcomes(rows: SequentialRows) -> list[str]:
    return [rows.verdict(row, 0.05).outcome for row in rows.tests]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rivals", "n_max", "effects", "margin", "wrong"),
    [
        (RIVALS, 3, {}, 0.01, ("better", "worse")),
        (RIVALS, 6, {}, 0.01, ("better", "worse")),
        (RIVALS, 5, {"differential": -0.2}, 0.01, ("worse",)),
        (("gated",), 6, {"gated": -0.02}, 0.02, ("no difference",)),
    ],
)
def test_a_false_verdict_is_at_most_as_frequent_as_alpha(rivals, n_max, effects, margin, wrong) -> None:
    """Criterion: of 500 comparisons, at most alpha = 10% (plus three binomial deviations) call any row different
    without a difference, or call a difference of the margin, the worst case, none."""
    n, false = 500, 0
    for seed in range(n):
        rows = planned(rivals, n_max, margin, alpha=0.1)
        conducted(rows, drawn(effects, np.random.default_rng(seed), n_max))
        assert rows.gap.sensitive
        false += any(rows.verdict(row, 0.1).outcome in wrong for row in rows.tests)
    assert false / n <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / n)


def test_a_large_effect_ends_its_row_early_and_a_larger_one_no_later() -> None:
    pairs = []
    for effect in (0.03, 0.06, 0.2):
        n_pairs = 0
        for seed in range(20):
            rows = planned(("gated",))
            conducted(rows, drawn({"gated": effect}, np.random.default_rng(seed)))
            assert outcomes(rows)[0] in ("worse", "undecided")
            n_pairs += len(rows.differences["gated"])
        pairs.append(n_pairs / 20)
    assert all(earlier >= later for earlier, later in pairwise(pairs))
    assert pairs[-1] <= 4


def test_a_decided_row_takes_no_more_runs_while_the_others_continue() -> None:
    rows = planned()
    ran = conducted(rows, drawn({"differential": 0.3}, np.random.default_rng(1)))
    n_runs = {row: sum(of == row for of, _ in ran) for row in (BASELINE, CONTROL, *RIVALS)}
    assert outcomes(rows)[1] == "worse"
    assert n_runs["differential"] == rows.verdict("differential", 0.05).n < n_runs["coupled-euler"]
    assert n_runs[BASELINE] == n_runs["coupled-euler"]
    assert n_runs[CONTROL] == 2
    assert ran[:4] == [(BASELINE, 0), (CONTROL, 0), (BASELINE, 1), (CONTROL, 1)]
    assert len(set(ran)) == len(ran)


@pytest.mark.parametrize("control", [-0.1, 0.001, math.nan])
def test_a_control_that_is_not_shown_to_be_worse_ends_the_comparison_before_its_other_rows(control: float) -> None:
    """Criterion: a control like the baseline is called worse in at most 5% of 20 draws, plus two deviations."""
    n_sensitive = 0
    for seed in range(20):
        rows = planned(margin=0.0001)
        ran = conducted(rows, drawn({}, np.random.default_rng(seed), control=control))
        n_sensitive += rows.gap.sensitive is True
        if not rows.gap.sensitive:
            assert {row for row, _ in ran} == {BASELINE, CONTROL}
            assert len(ran) <= 2 * 4
    assert n_sensitive <= (3 if control == 0.001 else 0)


def test_the_order_of_rows_and_of_finished_runs_changes_nothing() -> None:
    """Criterion: nor do runs beyond a decision."""
    rng = np.random.default_rng(4)
    losses = drawn({"differential": 0.1}, rng, 6)
    one, other, shuffled = planned(RIVALS, 6), planned(RIVALS[::-1], 6), planned(RIVALS, 6)
    conducted(one, losses)
    conducted(other, losses)
    in_any_order = [(row, seed) for row, of_row in losses.items() for seed in of_row]
    rng.shuffle(in_any_order)
    for row, seed in in_any_order:
        shuffled.observe(str(row), int(seed), losses[str(row)][int(seed)])
    for row in RIVALS:
        assert one.verdict(row, 0.05) == other.verdict(row, 0.05) == shuffled.verdict(row, 0.05)
    assert one.gap == other.gap == shuffled.gap


def test_a_pair_after_a_missing_one_does_not_count_yet() -> None:
    rows = planned(("gated",), 4)
    for row, of_row in drawn({"gated": 0.5}, np.random.default_rng(0), 4).items():
        for seed in of_row.keys() - {1}:
            rows.observe(row, seed, of_row[seed])
    assert len(rows.differences["gated"]) == 1
    assert ("gated", 1) in rows.wanted()


def test_a_row_that_fails_or_diverges_ends_alone() -> None:
    losses = drawn({"coupled-euler": -0.2}, np.random.default_rng(0), 4)
    losses["differential"][0] = math.nan
    rows = planned(n_max=4)
    ran = conducted(rows, losses)
    assert outcomes(rows) == ["better", "undecided"]
    assert sum(row == "differential" for row, _ in ran) == 1
    assert rows.verdict("differential", 0.05).lost == {0: "diverged"}
    rows = planned(n_max=4)
    rows.observe("differential", 0, None, "failed")
    assert {row for row, _ in rows.wanted()} == {BASELINE, CONTROL, "coupled-euler"}


@pytest.mark.parametrize(("n_before", "wanted"), [(0, set()), (2, {BASELINE, *RIVALS})])
def test_a_lost_control_ends_the_comparison_unless_it_has_shown_its_worth(n_before: int, wanted: set[str]) -> None:
    losses, rows = drawn({}, np.random.default_rng(0)), planned()
    for seed in range(n_before):
        for row in (BASELINE, CONTROL):
            rows.observe(row, seed, losses[row][seed])
    rows.observe(CONTROL, n_before, None, "failed")
    assert {row for row, _ in rows.wanted()} == wanted
