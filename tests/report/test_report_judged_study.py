"""The conclusions from a study's record are right where the right answer is known."""

import json
import math
import re
from dataclasses import replace

import pytest
from studies import BASE, ENTROPY, SPEED, shifted, study

from attractor.claims.further_seeds import with_seeds
from attractor.cli import parse
from attractor.files import plain
from attractor.report.judged_study import JudgedStudy, parameters_apart
from attractor.report.study_page import render
from attractor.report.study_table import results, tables
from attractor.runs.quantity import MEAN, PERPLEXITY, Quantity, effective_rank
from attractor.runs.study_record import StudyRecord
from attractor.verdict.judge import judge_observations
from attractor.verdict.moderated import FEWEST_ROWS
from attractor.verdict.observations import Observations, ObservedRun
from invented_records import with_summaries

RATIO = replace(SPEED, unit="x")
FIRST = replace(PERPLEXITY, unit="nats/byte")


TWO = {"standard": BASE, "a": shifted(0.1)}
GOOD = {"standard": BASE, "uniform": shifted(0.5), "good": shifted(-0.05)}


def said(judged: JudgedStudy) -> dict[str, str]:
    """Return the lines of the verdict by their subjects."""
    return {line.subject: line.text for line in judged.verdict()}


def outcomes(record: StudyRecord) -> dict[str, str]:
    judged = JudgedStudy(record)
    return {row: judged.differences[row, "", judged.headlines[0]].verdict.outcome for row in judged.design.rivals}


@pytest.mark.parametrize("n_rivals", [2, FEWEST_ROWS])
def test_the_rows_of_a_study_are_judged_as_those_of_any_table(n_rivals: int) -> None:
    """Criterion: from two rows up to where rows help one another to know their spread, all numbers are the judge's."""
    rivals = {f"rival-{n}": shifted(0.004 * (n - 1), 0.002 * (1 + n % 3)) for n in range(n_rivals)}
    judged = JudgedStudy(study({"standard": BASE, "uniform": shifted(0.5)} | rivals, margin=0.01))
    losses = {row: judged.cell(row, "").compared(FIRST) for row in ("standard", *rivals)}
    runs = {row: {seed: ObservedRun(loss) for seed, loss in by_seed.items()} for row, by_seed in losses.items()}
    verdicts = judge_observations(Observations(runs, "loss"), baseline="standard", margin=0.01)
    for row in rivals:
        ours, theirs = judged.differences[row, "", FIRST].verdict, verdicts[row]
        assert replace(ours, lost={}, correlation=theirs.correlation) == theirs
        assert ours.p is not None
    outcomes = {verdict.outcome for verdict in verdicts.verdicts}
    assert outcomes >= {"no difference"}


def test_what_was_judged_is_said_in_words_with_what_would_decide() -> None:
    """Criterion: the further seeds are those that the judge plans, and the command at the end runs them."""
    rows = {"good": shifted(-0.05), "near": shifted(0.001, 0.0016), "far": shifted(1e-9, 0.01)}
    runs = {"standard": BASE, "uniform": shifted(0.5)} | rows
    judged, unplanned = JudgedStudy(study(runs, margin=0.006)), JudgedStudy(study(runs))
    words = {row: judged.differences[row, "", FIRST].words for row in rows}
    further = judged.differences["far", "", FIRST].verdict.further_seeds
    assert further
    assert words["good"] == "better"
    assert f" nats/byte; {further} further seeds would show a difference of 0.006 nats/byte)" in words["far"]
    assert not any(difference.verdict.further_seeds for difference in unplanned.differences.values())
    command = f"attractor study run studies/synthetic.py --seeds 0-{2 + further}"
    assert judged.verdict()[-1].text == f"What next: {further} further seeds: {command}"
    assert f"<pre>{command}</pre>" in render(judged, ())
    assert parse(command.split()[1:])[0].seeds == tuple(range(3 + further))


def test_a_margin_is_one_of_the_first_quantity_in_its_unit() -> None:
    losses = {"standard": BASE, "uniform": shifted(0.5), "near": shifted(1e-5, 0.01), "same": shifted(1e-4, 0.001)}
    entropies = {"standard": {"entropy": 1.0}, "near": {"entropy": lambda seed: 1.0 + 0.1 * (seed - 1)}}
    judged = JudgedStudy(study(losses, quantities=(PERPLEXITY, ENTROPY), probes=entropies, margin=0.01))
    first, second = judged.headlines
    words = {row: judged.differences[row, "", first].words for row in ("near", "same")}
    assert "further seeds would show a difference of 0.01 nats/byte)" in words["near"]
    assert words["same"] == "no difference within 0.01 nats/byte"
    assert judged.differences["near", "", second].margin is None


def test_a_ratio_is_shown_as_a_factor_and_tested_as_a_logarithm():
    speeds = {"standard": [1000.0, 1010.0, 1030.0], "slow": [502.0, 505.0, 515.0], "same": [1000.0, 1012.0, 1027.0]}
    record = study(dict.fromkeys(speeds, BASE), control=None, quantities=(RATIO,))
    judged = JudgedStudy(with_summaries(record, lambda row, n: {"tokens_per_second": speeds[row][n]}))
    slow = judged.differences["slow", "", RATIO]
    assert slow.verdict.outcome == "worse"
    assert slow.verdict.difference == pytest.approx(math.log(0.5), abs=0.01)
    assert slow.shown.mean == pytest.approx(0.5, abs=0.01)
    lines = [line.text for line in judged.verdict()]
    assert any(line.startswith("slow: worse, 0.50") and "] x (3 pairs)" in line for line in lines), lines
    assert 1 < float(judged.differences["same", "", RATIO].smallest) < 1.1
    text = "\n".join(" ".join(cell.text for cell in row) for table in tables(judged) for row in table.rows)
    assert "-0.69" not in text


def test_per_cent_are_shown_as_such():
    ranks = {"standard": {"effective_rank": [30.0, 30.0]}, "a": {"effective_rank": [10.0, 10.0]}}
    judged = JudgedStudy(study(TWO, control=None, quantities=(effective_rank(None),), probes=ranks))
    assert re.search(r"-6[67].*% \(3 pairs\)", said(judged)["a"])


def test_a_quantity_of_one_layer_is_judged_in_that_layer():
    """Criterion: the last layer falls from 30 to 10, while the mean over layers rises."""
    ranks = {"standard": {"effective_rank": [10.0, 20.0, 30.0]}, "a": {"effective_rank": [40.0, 20.0, 10.0]}}
    record = study(TWO, control=None, quantities=(effective_rank(-1),), probes=ranks)
    assert outcomes(record) == {"a": "worse"}
    headings = [heading for table in tables(JudgedStudy(record)) for heading in table.headings]
    assert "effective rank (last layer) ↑" in headings
    assert not any("layer -1" in heading or ", mean" in heading for heading in headings)


def test_in_an_insensitive_setting_the_loss_is_not_judged_and_other_quantities_are():
    quantities = (PERPLEXITY, Quantity("loss slope", "probes.slope", "higher"))
    record = study(
        {"standard": BASE, "uniform": shifted(0.002), "good": shifted(-0.05)},
        quantities=quantities,
        probes={"standard": {"slope": 1.0}, "good": {"slope": lambda seed: 2.0 + 0.01 * seed}},
    )
    judged = JudgedStudy(record)
    assert judged.sensitivity[""].sensitive is False  # the interval around 0.002 contains zero
    assert judged.differences["good", "", FIRST].verdict.outcome == "undecided"
    assert "undecided (the setting is not sensitive)" in judged.verdict()[1].text
    assert judged.differences["good", "", quantities[1]].verdict.outcome == "better"


def test_sensitivity_is_found_for_each_column():
    columns = {
        "near": {"standard": BASE, "good": shifted(-0.05), "uniform": shifted(0.002)},
        "far": {"standard": BASE, "good": shifted(-0.05), "uniform": shifted(0.5)},
    }
    judged = JudgedStudy(study(columns=columns))
    assert [judged.differences["good", column, FIRST].verdict.outcome for column in columns] == ["undecided", "better"]
    kinds = [line.parts[0].kind for line in judged.verdict() if not line.subject]
    assert kinds == ["sensitive", "insensitive"]


def test_one_seed_gives_no_interval_and_no_verdict():
    record = study({"standard": [1.7], "uniform": [2.2], "rival": [1.5]}, seeds=(0,))
    found = JudgedStudy(record).differences["rival", "", FIRST]
    assert (found.verdict.low, found.verdict.p, found.smallest) == (None, None, "")
    assert found.words == "undecided (one pair has no interval)"
    assert JudgedStudy(record).sensitivity[""].sensitive is None
    assert "Sensitivity unknown" in JudgedStudy(record).verdict()[0].text


def test_missing_runs_are_named():
    losses = {"standard": [1.7, 1.72, None], "uniform": shifted(0.5), "lost": [1.6, math.nan, 1.6]}
    record = study(losses | {"apart": [None, None, 1.6], "never": [None, None, None]})
    judged = JudgedStudy(record)
    assert {row: judged.differences[row, "", FIRST].words for row in judged.design.rivals} == {
        "lost": "undecided (a run diverged, or a ratio has a value of 0)",
        "apart": "undecided (no seed in common with 'standard')",
        "never": "undecided (not run)",
    }


def test_a_quantity_without_direction_is_higher_or_lower():
    probes = {"standard": {"heat": 1.0}, "a": {"heat": lambda seed: 2.0 + 0.01 * seed}}
    record = study(TWO, control=None, quantities=(Quantity("heat", "probes.heat"),), probes=probes)
    assert outcomes(record) == {"a": "higher"}


def test_the_control_is_not_among_the_tests():
    judged = JudgedStudy(study(GOOD | {"uniform": shifted(-0.5)}, quantities=(PERPLEXITY,)))
    assert judged.n_tests(judged.families[0]) == 1
    assert judged.differences["uniform", "", FIRST].verdict.adjusted_p is None


def test_layers_have_measures_of_their_own_and_a_mean():
    probes = {"standard": {"entropy": [2.0, 3.0]}, "rival": {"entropy": [2.5, 3.5]}}
    judged = JudgedStudy(study({"standard": BASE, "rival": BASE}, quantities=(ENTROPY,), probes=probes, control=None))
    mean, second = replace(ENTROPY, layer=MEAN), replace(ENTROPY, layer=1)
    assert judged.headlines == (mean,)
    assert judged.spread("standard", "", second).by_seed == pytest.approx({0: 3.0, 1: 3.0, 2: 3.0}, abs=0.07)
    assert judged.spread("rival", "", mean).mean == pytest.approx(judged.spread("standard", "", mean).mean + 0.5)


def test_a_stored_record_gives_the_same_conclusions():
    losses = GOOD | {"lost": [1.6, math.nan, 1.6]}
    record = study(losses, quantities=(PERPLEXITY, SPEED))
    stored = StudyRecord.from_dict(json.loads(json.dumps(plain(record.to_dict()))))
    assert said(JudgedStudy(stored)) == said(JudgedStudy(record))


@pytest.mark.parametrize(
    ("parameters", "words"),
    [(880, ", with 12% fewer parameters"), (1025, ", with 2.5% more parameters"), (1005, "")],
)
def test_parameters_are_reported_where_they_differ_by_more_than_one_per_cent(parameters: int, words: str) -> None:
    assert parameters_apart(parameters, 1000) == words
    of_row = with_summaries(study(GOOD), lambda row, _: {"n_parameters": parameters if row == "good" else 1000})
    assert said(JudgedStudy(of_row))["good"].endswith(words or "pairs)")


def test_costs_are_shown_and_do_not_weaken_the_tests_of_quality() -> None:
    """Criterion: the adjusted p-value of the loss is the same with and without costs, and costs alone are tested."""
    losses = GOOD | {"bad": shifted(0.05)}
    costs = (SPEED, Quantity("memory", "peak_memory_bytes", "lower"), Quantity("parameters", "n_parameters"))
    alone, beside = JudgedStudy(study(losses)), JudgedStudy(study(losses, quantities=(PERPLEXITY, *costs)))
    assert beside.n_tests(beside.families[0]) == alone.n_tests(alone.families[0]) == 2
    for row in alone.design.rivals:
        ours, theirs = (judged.differences[row, "", FIRST].verdict for judged in (beside, alone))
        assert ours.adjusted_p == theirs.adjusted_p
    assert {measure for _, _, measure in beside.differences} == {FIRST}
    of_costs = JudgedStudy(study(losses, quantities=costs))
    assert {quantity for _, _, quantity in of_costs.differences} == set(costs)


AT_LOOKS = {
    "standard": [1.66, 1.68, 1.70, 1.67, 1.69],
    "uniform": [2.16, 2.18],
    "worse": [1.76, 1.781, 1.799],  # no further runs, since it is decided
    "alike": [1.6601, 1.6799, 1.7001, 1.6699],
    "near": [1.664, 1.677, 1.704, 1.667, 1.690],
    "open": [1.664, 1.677, None, 1.667, 1.69],  # a pair after a missing one waits
}


def test_planned_looks_decide_each_row_by_its_sequential_test() -> None:
    """Criterion: outcome, interval and p value are those of the row's verdict; no row leads by an unplanned look."""
    record = study(AT_LOOKS, seeds=(0, 1, 2, 3, 4), margin=0.005, looks=(2, 3, 4, 5))
    judged, rows = JudgedStudy(record), record.sequential_rows()
    assert outcomes(record) == {
        "worse": "worse",
        "alike": "no difference",
        "near": "undecided",
        "open": "undecided",
    }
    for row in judged.design.rivals:
        ours, theirs = judged.differences[row, "", judged.headlines[0]].verdict, rows.verdict(row, 0.05)
        assert ours.difference is not None
        for name in ("outcome", "n", "difference", "low", "high", "p", "adjusted_p"):
            assert getattr(ours, name) == getattr(theirs, name)
    lines = said(judged)
    assert lines["alike"].startswith("alike: no difference within 0.005 nats/byte, ")
    assert lines["open"].startswith("open: undecided (2 of at most 5 pairs have been run; the same command goes on)")
    assert lines["What next"].startswith("What next: the same command goes on, with 1 run to do at most: attractor")
    caption = " ".join(results(judged, judged.families[0]).caption)
    assert "at a look that was planned before the first run (2, 3, 4, 5 pairs)" in caption
    assert "Missing" not in caption


def test_a_row_that_its_planned_seeds_do_not_decide_leads_to_fresh_ones() -> None:
    losses = {row: AT_LOOKS[row] for row in ("standard", "uniform", "near")}
    judged = JudgedStudy(study(losses, seeds=(0, 1, 2, 3, 4), margin=0.003, looks=(2, 3, 4, 5)))
    verdict = judged.differences["near", "", judged.headlines[0]].verdict
    assert verdict.further_seeds
    last = 4 + verdict.n + verdict.further_seeds
    assert judged.verdict()[-1].text.endswith(f"attractor study run studies/synthetic.py --seeds 5-{last}")


ONE_SEED = {"standard": [1.7], "uniform": [2.2], "rival": [1.5]}
COSTS = study({"standard": [1.7], "rival": [1.7]}, quantities=(SPEED,), control=None, seeds=(0,))


@pytest.mark.parametrize(
    ("record", "advice"),
    [
        (study(GOOD), None),
        (COSTS, None),
        (study(GOOD | {"uniform": shifted(0.0)}), "more steps"),
        (study(ONE_SEED, seeds=(3,)), "attractor study run studies/synthetic.py --seeds 3-6"),
    ],
    ids=["decided", "costs alone", "not sensitive", "one seed"],
)
def test_what_is_not_decided_leads_to_advice(record: StudyRecord, advice: str | None) -> None:
    lines = said(JudgedStudy(record))
    assert ("What next" in lines) == (advice is not None)
    assert advice is None or advice in lines["What next"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("attractor compare", "attractor compare --seeds 2 5-7"),
        ("attractor compare --seeds 2 5 --out 'a b'", "attractor compare --out 'a b' --seeds 2 5-7"),
        ("attractor compare --seeds 0-3 9 --lr 1", "attractor compare --lr 1 --seeds 2 5-7"),
        ("attractor compare --seeds=2 --lr 1", "attractor compare --lr 1 --seeds 2 5-7"),
        ("attractor compare standard --seeds 2 5", "attractor compare standard --seeds 2 5-7"),
        ("attractor study run x.py --part 2/3 --threads 1", "attractor study run x.py --threads 1 --seeds 2 5-7"),
        ("attractor study run x.py --rows 'a b' c --seeds 2 5", "attractor study run x.py --seeds 2 5-7"),
        ("attractor study run x.py --columns d --threads 1", "attractor study run x.py --threads 1 --seeds 2 5-7"),
    ],
)
def test_the_command_is_for_the_whole_study_and_keeps_its_other_options(command: str, expected: str) -> None:
    assert with_seeds(command, (2, 5), 4) == expected


def test_what_else_sets_a_row_apart_is_reported_with_its_verdict() -> None:
    """Criterion: another learning rate, and pairs of two kinds of device, of this row alone."""
    stored = study(GOOD | {"alike": shifted(-0.05)}, rates={"good": 4e-3})
    on_two = with_summaries(stored, lambda row, n: {"device": "cuda" if row == "good" and n < 2 else "cpu"})
    lines = said(JudgedStudy(on_two))
    apart = ", at its own learning rate 0.004, the baseline at 0.002; 2 of its pairs are of two devices"
    assert lines["good"].endswith(apart)
    assert not re.search("learning rate|devices", lines["alike"])


def test_a_row_whose_runs_equal_those_of_another_row_is_named() -> None:
    middle = {"standard": BASE, "uniform": shifted(0.5), "clipped": shifted(-0.05), "twin": shifted(-0.05)}
    columns = {"low": middle | {"twin": shifted(-0.06)}, "middle": middle}
    _, clipped, twin = JudgedStudy(study(columns=columns)).verdict()
    assert twin.text.endswith("; its runs equal those of clipped (middle), so what sets the two apart had no effect")
    assert "equal those" not in clipped.text  # the row that comes first is not the twin


def test_stored_runs_are_judged_only_where_they_are_paired() -> None:
    """Criterion: other tokens withhold the verdict on stored runs, not on planned ones. Where the control has other
    data, sensitivity is unknown. `test_stored_runs.py` has the other fields."""
    losses = GOOD | {"longer": shifted(-0.06)}
    judged = JudgedStudy(study(losses, budget="stored", tokens={"longer": 2_000_000}))
    assert judged.differences["longer", "", FIRST].verdict.measured is None
    assert judged.differences["good", "", FIRST].verdict.outcome == "better"
    assert judged.n_tests(judged.families[0]) == 1
    assert said(judged)["longer"] == "longer: undecided (2.00M tokens, where the baseline saw 1.00M)"
    assert outcomes(study(losses, budget="free", tokens={"longer": 2_000_000}))["longer"] == "better"
    record = study(GOOD, budget="stored")
    record.cell("uniform").config["data"] = "another"
    assert JudgedStudy(record).sensitivity[""].sensitive is None


RATES_TRIED = ("0.001", "0.002", "0.004", "0.008")


def pilot(**losses: list[float | None]) -> StudyRecord:
    """Return a pilot of one seed, with the losses of each row by rate."""
    columns = {rate: {row: [losses[row][n]] for row in losses} for n, rate in enumerate(RATES_TRIED)}
    record = study(columns=columns, control=None, seeds=(100,))
    return replace(record, design=replace(record.design, columns_name="lr"))


def test_a_pilot_says_which_rate_is_best_and_where_its_grid_does_not_tell() -> None:
    verdict = JudgedStudy(
        pilot(
            standard=[1.9, 1.7, 1.8, math.nan],
            gated=[None, 1.6, 1.7, 1.8],
            mla=[1.9, 1.8, 1.7, 1.6],
            euler=[1.9, 1.8, 1.7, math.nan],  # beside a diverged run, and not at the edge
            unknown=[None, None, None, None],
        )
    ).verdict()
    (line,) = [line.text for line in verdict if not line.subject]
    best, open_, edge = line.split(": ")[1:]
    assert best.startswith("standard 0.002, euler 0.004.")
    assert open_.startswith("gated 0.002.")
    assert edge == "mla 0.008."


def test_columns_without_a_difference_share_a_part_and_have_no_line_in_the_table() -> None:
    judged = JudgedStudy(pilot(standard=[1.9, None, 1.7, 1.8], gated=[None, 1.6, None, 1.8]))
    (line,) = [line for line in judged.verdict() if line.subject == "gated"]
    assert [(part.place, part.words) for part in line.parts] == [
        ("lr 0.008", "undecided (one pair has no interval)"),
        ("lr 0.001, 0.004", "undecided (not run)"),
        ("lr 0.002", "undecided (no seed in common with 'standard')"),
    ]
    (table,) = [table for table in tables(judged) if table.name == "differences"]
    assert [row[1].text for row in table.rows] == ["0.008"]
