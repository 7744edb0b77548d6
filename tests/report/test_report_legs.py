"""A thorough comparison is judged by its legs, each by itself, and never by one word."""

import json
from dataclasses import replace

import pytest
from studies import study

from attractor.report.judged_study import JudgedStudy
from attractor.report.legs import legs_of, verdict_of
from attractor.report.study_figure import pictures
from attractor.report.study_page import render
from attractor.report.study_table import console_tables
from attractor.runs.published import without_private_folders
from attractor.runs.study_record import StudyRecord
from invented_records import with_summaries

SEEDS = (0, 1, 2, 3)
NOISE = (0.0, 0.004, -0.003, 0.002)


def losses(mean: float, noise: float = 1.0) -> list[float]:
    return [mean + noise * x + 0.0005 * turn for turn, x in enumerate(NOISE)]


def thorough(lead: float, lead_at_other_size: float = 0.0, speed: float = 1.0) -> StudyRecord:
    """Return an invented comparison in which each doubling of the steps gains 0.1, and "gated" has these leads. At 2
    times its rate "gated" loses 0.05, and at 4 times it diverges."""

    def sized(lead: float) -> StudyRecord:
        rows = {"standard": losses(2.0), "gated": losses(2.0 - lead, 0.9), "uniform": losses(2.8)}
        return study(rows, seeds=SEEDS)

    main = with_summaries(sized(lead), lambda row, _: {"tokens_per_second": 45_123.0 * speed} if row == "gated" else {})
    rungs = {"half the steps": losses(2.1), "twice the steps": losses(1.9)}
    at_rates = {
        "1x": {"standard": [2.0], "gated": [1.9]},
        "2x": {"standard": [1.99], "gated": [1.95]},
        "4x": {"standard": [None], "gated": [float("nan")]},
    }
    stability = study(columns=at_rates, seeds=(0,), control=None)
    ladder = study(rungs, seeds=SEEDS, control=None, budget="free")
    ladder = replace(ladder, design=replace(ladder.design, baseline="half the steps"))
    legs = {"ladder": ladder, "stability": stability, "size": sized(lead_at_other_size)}
    return replace(main, design=replace(main.design, legs=tuple(legs)), legs=legs)


def commanded(record: StudyRecord, command: str) -> StudyRecord:
    """Return the record of a comparison whose further studies were run by this command."""
    legs = {leg: replace(of, design=replace(of.design, command=command)) for leg, of in record.legs.items()}
    return replace(record, legs=legs)


def outcomes(record: StudyRecord) -> dict[tuple[str, str], str]:
    return {(row.leg, row.row): row.outcome for leg in legs_of(JudgedStudy(record)).values() for row in leg}


def sentences(record: StudyRecord) -> dict[str, str]:
    return {line.subject: line.text for line in verdict_of(JudgedStudy(record)) if line.subject}


def test_each_leg_has_a_verdict_of_its_own() -> None:
    """Criterion: a row may be better a token and worse a second, or better at one size alone; each says so, and no
    sentence draws the legs together."""
    record = thorough(lead=0.05, lead_at_other_size=0.1)
    told = sentences(record)
    assert list(told) == ["Loss", "Time", "Stability", "Size"]
    assert told["Loss"].startswith("Loss: gated better a token, -0.05")
    assert told["Time"].startswith("Time: gated better a second, 1.4")
    assert "gated better at both sizes" in told["Size"]
    slow = thorough(lead=0.05, speed=0.25)
    assert (outcomes(slow)["loss", "gated"], outcomes(slow)["speedup", "gated"]) == ("better", "worse")
    assert "both sizes" not in sentences(slow)["Size"]
    assert outcomes(thorough(lead=0.0))["speedup", "gated"] == "undecided"


def test_a_row_that_needs_fewer_steps_and_is_slower_by_as_much_gains_no_time() -> None:
    (row,) = legs_of(JudgedStudy(thorough(0.05, speed=0.5**0.5)))["Time"]
    assert row.value == pytest.approx(1.0, abs=0.01)
    assert row.outcome == "undecided"


def test_higher_rates_show_what_each_row_loses_and_which_runs_did_not_end() -> None:
    told = outcomes(thorough(0.1))
    at = {(row, by): told[f"loss at {by} the rate", row] for row in ("standard", "gated") for by in ("2x", "4x")}
    assert at == {
        ("standard", "2x"): "lower loss",
        ("standard", "4x"): "did not end",
        ("gated", "2x"): "higher loss",
        ("gated", "4x"): "diverged",
    }


def test_the_first_line_says_whether_parameters_are_matched() -> None:
    first, *_ = verdict_of(JudgedStudy(thorough(0.1)))
    assert first.text.startswith("Parameters are not matched (--match parameters does): gated, with 5.3% more")


def test_table_page_and_stored_record_have_the_legs() -> None:
    """Criterion: the table has a line for each leg and row, the page draws losses over tokens and over seconds, and the
    stored record gives the same legs."""
    record = thorough(0.1)
    judged = JudgedStudy(record)
    table = console_tables(judged)[0]
    assert [(row[0].text, row[1].text) for row in table.rows] == list(outcomes(record))
    drawn = pictures(judged)
    page = render(judged, drawn)
    assert all(text in page for text in (table.title, "over tokens", "over seconds", "better a token"))
    stored = StudyRecord.from_dict(json.loads(record.to_text()))
    assert outcomes(stored) == outcomes(record)
    assert "/home" not in without_private_folders(commanded(record, "go --out /home/me"), {}).to_text()
    plain = replace(record, legs={}, design=replace(record.design, legs=()))
    assert legs_of(JudgedStudy(plain)) == {}
    assert "over seconds" not in render(JudgedStudy(plain), pictures(JudgedStudy(plain)))
