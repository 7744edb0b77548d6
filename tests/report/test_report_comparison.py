"""The verdict in words, for cases in which the right one is known."""

import math

import pytest
from rich.console import Console
from scipy import stats

from attractor.errors import InputError
from attractor.numerals import with_prefix
from attractor.report.comparison import Comparison
from attractor.report.table import cells, markdown, rich_table

BASE = [1.66, 1.68, 1.70]


def shifted(by, wobble=0.001):
    return [loss + by + wobble * turn for loss, turn in zip(BASE, (-1, 0, 1), strict=True)]


def read(runs):
    return Comparison.read(runs, "standard")


def test_better_worse_and_no_difference(fake_runs):
    runs = fake_runs(standard=BASE, uniform=shifted(0.2), good=shifted(-0.05), bad=shifted(0.05), same=shifted(0.0005))
    instrument, good, bad, same = read(runs).verdict()
    assert instrument.startswith("sensitive:")
    assert good.startswith("good: better than 'standard': -0.0500 [")
    assert "3 pairs" in good
    assert bad.startswith("bad: worse than 'standard': +0.0500 [")
    assert "no difference shown" in same
    assert "smallest that this comparison would have shown is 0.0" in same


def test_without_a_sensitive_instrument_nothing_is_claimed(fake_runs):
    comparison = read(fake_runs(standard=BASE, uniform=shifted(0.0), good=shifted(-0.05)))
    instrument, good = comparison.verdict()
    assert comparison.sensitive is False
    assert instrument.startswith("not sensitive:")
    assert "cannot tell attention mechanisms apart" in instrument
    assert "more steps" in instrument
    assert "better than" not in good
    assert "not judged" in good


def test_a_control_that_beats_the_baseline_is_not_sensitive_either(fake_runs):
    assert read(fake_runs(standard=BASE, uniform=shifted(-0.2))).sensitive is False


def test_without_a_control_the_sensitivity_is_unknown(fake_runs):
    comparison = read(fake_runs(standard=BASE, good=shifted(-0.05)))
    assert comparison.sensitive is None
    assert comparison.verdict()[0].startswith("sensitivity unknown: no run of the control 'uniform'")


def test_one_seed_gives_no_interval_and_no_verdict(fake_runs):
    instrument, rival = read(fake_runs(standard=[1.7], uniform=[1.9], rival=[1.5])).verdict()
    assert instrument.startswith("sensitivity unknown: one seed")
    assert "one seed: no interval, no verdict" in rival
    assert "better" not in rival
    assert "[" not in rival


def test_a_diverged_run_gives_no_verdict(fake_runs):
    comparison = read(fake_runs(standard=BASE, uniform=shifted(0.2), rival=[1.6, math.nan, 1.6]))
    assert "without a finite loss" in comparison.verdict()[1]
    assert comparison.outcome(comparison.row("rival")) == "not finite"


def test_the_intervals_of_several_rivals_are_simultaneous_and_paired(fake_runs):
    noisy = [1.60, 1.69, 1.65]
    row = read(fake_runs(standard=BASE, uniform=shifted(0.2), noisy=noisy, other=shifted(0.1))).row("noisy")
    expected = stats.ttest_rel(noisy, BASE).confidence_interval(1 - 0.05 / 2)
    assert (row.difference.low, row.difference.high) == pytest.approx((expected.low, expected.high))


def test_the_table_shows_the_intervals_that_the_verdict_rests_on(fake_runs):
    comparison = read(fake_runs(standard=BASE, uniform=shifted(0.2), good=shifted(-0.05), bad=shifted(0.05)))
    _, rows = cells(comparison)
    differences = {row[0]: row[3] for row in rows}
    instrument, *lines = comparison.verdict()
    assert differences["standard"] == "baseline"
    assert differences["uniform"] in instrument
    assert all(differences[line.split(":")[0]] in line for line in lines)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [(880, "with 12% fewer parameters"), (1025, "with 2.5% more parameters"), (1005, None)],
)
def test_unequal_parameters_are_said_beside_the_difference(fake_runs, parameters, words):
    sizes = {"standard": 1000, "rival": parameters}
    line = read(fake_runs(standard=BASE, rival=shifted(-0.05), parameters=sizes)).verdict()[1]
    assert words in line if words else "parameters" not in line


def test_unequal_budgets_are_refused_by_name(fake_runs):
    runs = fake_runs(standard=BASE, rival=BASE, tokens={"standard": 1000, "rival": 2000})
    with pytest.raises(InputError, match=r"'standard' seed 0 saw 1,000 tokens, 'rival' seed 0 saw 2,000"):
        read(runs)


def test_missing_runs_are_shown(fake_runs):
    comparison = read(fake_runs(standard=BASE, uniform=shifted(0.2), slow=[1.6, None, 1.6], never=[None, None, None]))
    _, rows = cells(comparison)
    assert [row[1] for row in rows] == ["3", "3", "2 of 3", "0 of 3"]
    assert comparison.row("slow").missing_seeds == (1,)
    assert comparison.row("slow").difference.n == 2
    assert "no finished seed in common" in comparison.verdict()[-1]


def test_labels_keep_their_order_and_an_unknown_baseline_is_an_error(fake_runs):
    runs = fake_runs(zeta=BASE, alpha=BASE)
    assert [row.label for row in Comparison.read(runs, "alpha").rows] == ["zeta", "alpha"]
    with pytest.raises(InputError, match="did you mean 'alpha'"):
        Comparison.read(runs, "alfa")


def test_a_label_never_mixes_two_questions(fake_runs):
    runs = fake_runs(standard=BASE)
    with pytest.raises(InputError, match="one run for each seed"):
        read([*runs, runs[0]])
    runs[0].config["lr"] = 1.0
    with pytest.raises(InputError, match="differ in lr"):
        read(runs)


def test_unfinished_runs_alone_are_no_comparison(fake_runs):
    with pytest.raises(InputError, match="finished runs"):
        read(fake_runs(standard=[None]))


def test_the_console_table_fits_into_100_columns(fake_runs):
    labels = {"coupled-differential": shifted(-0.05), "coupled-hamiltonian": [1.6, None, 1.6]}
    comparison = read(fake_runs(labels, standard=BASE, uniform=shifted(0.2)))
    console = Console(width=100)
    with console.capture() as captured:
        console.print(rich_table(comparison))
    printed = captured.get()
    for cell in ("coupled-differential", "1.23M", "45.1k", "123 MB", "2 of 3"):
        assert cell in printed
    assert all(cell in printed for row in cells(comparison)[1] for cell in row)
    assert len(printed.splitlines()) == 2 + len(comparison.rows)  # nothing is folded


def test_markdown_survives_any_label(fake_runs):
    lines = markdown(Comparison.read(fake_runs({"a|b": BASE, "<script>": BASE}), "a|b")).splitlines()
    assert lines[2].startswith(r"| a\|b | 3 |")
    assert "<" not in lines[3]


def test_prefixes():
    values = (870, 45_123, 910_000, 1_234_567, 7e9)
    assert [with_prefix(value) for value in values] == ["870", "45.1k", "910k", "1.23M", "7.00G"]
