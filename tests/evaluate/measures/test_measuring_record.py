"""Measurements become intervals over passages, notes, a table, and a self-contained page."""

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attractor.evaluate.measures import Plan, Sample, record
from attractor.evaluate.measures.figures import _curve
from attractor.evaluate.measures.page import render, write_page
from attractor.evaluate.measures.record import OF_HEADS, OF_STREAM
from attractor.evaluate.measures.table import table_of, with_interval
from attractor.files import in_json
from attractor.verdict.intervals import mean_interval

ABOUT = {"text": "a.txt", "n_parameters": 1000, "dtype": "float32", "device": "cpu"}
NAME = '<script>alert("$x$")</script>'
PLAN = Plan(n_samples=3, length=8, k=2)


def sample(number: int) -> Sample:
    """Return the measurements of two layers, the second without attention."""
    return Sample(
        layers=[0, 1],
        heads={measure.name: [[1.0 + number, 3.0], []] for measure in OF_HEADS},
        stream={"stream_norm": [1.0, 10.0, 100.0], "stream_norm_first": [1.0, 2.0, float("nan")]},
        n_layers=2,
        jacobian_norm=[2.0 + number, 1.0],
        exponents=[0.5 + 0.1 * number, float("-inf")],
    )


SAMPLES = [sample(number) for number in range(3)]


def contents(*records: Any) -> dict[str, Any]:
    return {"command": "attractor measure '<b>'", "environment": {"python": "3"}, "models": list(records)}


def test_means_are_over_heads_and_intervals_over_passages() -> None:
    found = record("a", PLAN, SAMPLES, **ABOUT)
    expected = mean_interval([2.0, 2.5, 3.0])
    assert found["by_layer"]["entropy"][0] == {"mean": expected.mean, "low": expected.low, "high": expected.high}
    assert found["by_layer"]["entropy"][1] is None
    assert found["by_head"]["entropy"] == [[2.0, 3.0], []]
    assert found["by_layer"]["logit_max"][0]["mean"] == 3.0  # the largest over the heads of each passage
    assert found["over_layers"]["jacobian_norm"]["mean"] == 2.0
    assert found["exponents"]["by_rank"][0]["mean"] == pytest.approx(0.6)
    assert found["exponents"]["by_rank"][1] is None  # this direction has collapsed


def test_the_end_of_the_stream_stands_after_the_last_layer_of_the_model() -> None:
    """Criterion: with some layers alone, the end keeps its place in the figure, and no mean over layers has it."""
    found = record("a", PLAN, [replace(passage, n_layers=12) for passage in SAMPLES], **ABOUT)
    (stream,) = [measure for measure in OF_STREAM if measure.name == "stream_norm"]
    assert [place for place, *_ in _curve(found, stream)] == [0, 1, 12]
    assert found["over_layers"]["stream_norm"]["mean"] == 5.5
    del found["n_layers"]  # as in a record of an earlier version
    assert [place for place, *_ in _curve(found, stream)] == [0, 1, 2]


def test_one_passage_has_no_interval() -> None:
    found = record("a", PLAN, SAMPLES[:1], **ABOUT)
    assert found["by_layer"]["jacobian_norm"][0] == {"mean": 2.0, "low": None, "high": None}
    assert with_interval(found["by_layer"]["jacobian_norm"][0]) == "2.00"


def test_notes_report_missing_and_unconverged_numbers() -> None:
    (note,) = record("a", PLAN, SAMPLES, **ABOUT)["notes"]
    assert note.startswith("Not every layer (not 1) attends")
    unconverged = [replace(passage, jacobian_error=0.05, exponent_error=0.01) for passage in SAMPLES[:2]]
    stopped, _, norms, exponents = record("a", PLAN, unconverged, **ABOUT)["notes"]
    assert stopped == "Stopped after 2 of 3 passages."
    assert "lower bounds: their relative error may be as large as 5.0%" in norms
    assert "their error may be as large as 1.0e-02" in exponents


def test_the_table_fits_the_width_of_a_log() -> None:
    console = Console(file=StringIO(), width=120)
    console.print(table_of(record(NAME, PLAN, SAMPLES, **ABOUT)))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.split()[0] for line in lines if line.strip()][-4:] == ["0", "1", "end", "all"]
    assert "2.50 ±1.24" in lines[2]


@pytest.mark.slow
@pytest.mark.parametrize("n_models", [1, 2])
def test_the_page_is_self_contained_and_escapes_foreign_text(n_models: int, tmp_path: Path) -> None:
    records = [record(name, PLAN, SAMPLES, **ABOUT) for name in (NAME, "b & c")[:n_models]]
    html = write_page(tmp_path / "new", contents(*records)).read_text(encoding="utf-8")
    addresses = re.findall(r"""\b(?:src|href)=["']?([^"'\s>]*)""", html)
    assert addresses
    assert all(address.startswith(("#", "data:image/png")) for address in addresses)
    assert not re.search(r"<(script|link|img|iframe)\b", html)
    assert "&lt;script&gt;" in html
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert json.loads((tmp_path / "new" / "measures.json").read_text())["models"][0]["by_head"]["entropy"]
    drawn = {path.stem for path in (tmp_path / "new").glob("*.svg")}
    assert {"exponents", "jacobian-norm", "sink-mass"} <= drawn
    assert len([name for name in drawn if name.startswith("heads-")]) == 2 * n_models


@pytest.mark.slow
def test_a_record_read_from_its_file_gives_the_same_page() -> None:
    made = contents(record("a", PLAN, SAMPLES, **ABOUT))
    assert render(json.loads(in_json(made)))[0] == render(made)[0]


def test_a_model_without_scores_has_a_page() -> None:
    without_scores = [replace(passage, heads={}, jacobian_norm=[], exponents=[]) for passage in SAMPLES]
    found = record("a", PLAN, without_scores, **ABOUT)
    assert "No layer attends" in found["notes"][0]
    page, drawn = render(contents(found))
    assert "No layer attends" in page
    assert [picture.name for picture in drawn] == ["stream-norm", "stream-norm-first"]
