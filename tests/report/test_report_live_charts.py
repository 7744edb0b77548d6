"""Charts of measurements during training: the trajectories in summaries become lines, bands, points and pages."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from matplotlib.text import Text
from studies import BASE, shifted, study

from attractor.report.charts import Chart, charts, slug
from attractor.report.judged_study import JudgedStudy
from attractor.report.panels import spread
from attractor.report.study_figure import _in_short, pictures
from attractor.report.study_page import render
from attractor.report.study_report import write_report
from attractor.runs.quantity import PERPLEXITY, Quantity
from attractor.runs.study_record import Outcome, StudyRecord
from invented_records import with_outcomes, with_summaries

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEPS = (50, 100, 150)
Looks = Mapping[str, Sequence[Sequence[float | None]]]  # the values over steps of each seed, by name


def looked_at(looks: Mapping[str, Looks], **arguments: Any) -> StudyRecord:
    """Return a study whose runs have these trajectories, by row; a seed of None values has null at every step."""
    losses = {"standard": BASE, "slow": shifted(0.1), "decay": shifted(0.2)}

    def summary(row: str, number: int) -> dict[str, Any]:
        of_row = looks.get(row, {})
        traces = {name: [list(x) for x in zip(STEPS, seeds[number], strict=True)] for name, seeds in of_row.items()}
        return {"trajectories": traces} if traces else {}

    return with_summaries(study(losses, control=None, **arguments), summary)


def chart(record: StudyRecord, name: str) -> Chart:
    (named,) = [drawn for drawn in charts(JudgedStudy(record)) if drawn.name == f"trajectory-{slug(name)}"]
    return named


GATES = [[0.1, 0.2, 0.3], [0.1, 0.3, 0.5], [-0.1, -0.1, -0.1]]


@pytest.mark.parametrize("n_seeds", [3, 4])
def test_a_gate_is_drawn_by_its_opening_with_a_band_of_four_seeds_or_with_dots(n_seeds: int) -> None:
    """Criterion: at each step the chart has the mean, the lowest and the highest |tanh gamma|, since the sign is
    arbitrary. Three seeds are drawn as nine dots, and four as a band, in that range alone."""
    gates = [*GATES, [0.4, 0.4, 0.2]][:n_seeds]
    traces = [{"trajectories": {"gate": [list(x) for x in zip(STEPS, seed, strict=True)]}} for seed in gates]
    record = study({"standard": [1.7] * n_seeds}, control=None, seeds=tuple(range(n_seeds)))
    record = with_summaries(record, lambda _, number: traces[number])
    curve = chart(record, "gate").panels[""]["standard"]
    assert [point[0] for point in curve] == list(STEPS)
    for point, *seeds in zip(curve, *gates, strict=True):
        sizes = [abs(value) for value in seeds]
        assert point[1:4] == pytest.approx((sum(sizes) / n_seeds, min(sizes), max(sizes)))
        assert list(point[4:]) == (sizes if n_seeds == 3 else [])
    axes = drawn(record, "trajectory-gate")
    dots = [line for line in axes.get_lines() if line.get_linestyle() == "None"]
    assert (sum(len(line.get_xdata()) for line in dots), len(axes.collections)) == ((9, 0) if n_seeds == 3 else (0, 1))
    assert axes.get_ylim() == pytest.approx(chart(record, "gate").frames[""])
    assert chart(record, "gate").frames[""] == pytest.approx((0.1, 0.5), abs=0.04)


def test_what_was_not_measured_has_no_chart_no_line_no_band_and_no_point() -> None:
    """Criterion: a step at which a seed has no number has no point, as in the chart of losses."""
    record = looked_at({"slow": {"gate": GATES}})
    assert list(chart(record, "gate").panels[""]) == ["slow"]
    assert [drawn.name for drawn in charts(JudgedStudy(record))] == ["curves", "trajectory-gate"]
    assert [drawn.name for drawn in charts(JudgedStudy(looked_at({})))] == ["curves"]
    alone = study({"standard": BASE[:1]}, control=None, seeds=(0,))
    alone = with_summaries(alone, lambda *_: {"trajectories": {"gate": [[50, 0.5]]}})
    assert chart(alone, "gate").numbers[""]["standard"] == [(50, 0.5, 0.5, 0.5)]
    memory = [[4.0, None, 8.0], [4.0, 5.0, 8.0], [4.0, 5.0, 8.0]]
    curve = chart(looked_at({"slow": {"slow_memory": memory}}), "slow_memory").panels[""]["slow"]
    assert [point[0] for point in curve] == [50, 150]


def test_logits_are_drawn_over_the_heads_of_the_first_seed() -> None:
    """Criterion: at each step the mean, the lowest and the highest of all heads; a step at which a head's number is not
    finite has no point, and a row without such numbers no line."""
    logits = [[50, [1.0, 2.0, 6.0]], [100, [1.0, None, 6.0]], [150, [4.0, 4.0, 10.0]]]

    def summary(row: str, number: int) -> dict[str, Any]:
        return {"trajectories_by_head": {"max_logit": [] if number else logits}} if row == "slow" else {}

    found = charts(JudgedStudy(with_summaries(looked_at({}), summary)))
    (drawn,) = (chart for chart in found if chart.name == "heads-max-logit")
    assert drawn.panels[""] == {"slow": [(50, 3.0, 1.0, 6.0), (150, 6.0, 4.0, 10.0)]}


@pytest.mark.parametrize(("largest", "in_factors"), [(9.0, False), (900.0, True)])
def test_logits_that_differ_by_large_factors_have_a_logarithmic_axis(largest: float, in_factors: bool) -> None:
    logits = {"standard": {"max_logit": [[3.0, 4.0, largest]] * 3}, "slow": {"max_logit": [[3.0, 3.0, 3.0]] * 3}}
    found = chart(looked_at(logits), "max_logit")
    assert found.in_factors == in_factors
    low, high = found.frames[""]
    assert 0 < low < 3
    assert high > largest


def drawn(record: StudyRecord, name: str = "curves") -> "Axes":
    """Draw the first panel of a picture, by default that of validation losses."""
    figure = next(picture.figure for picture in pictures(JudgedStudy(record)) if picture.name == name)
    return figure.axes[0]


def test_panels_of_single_evaluations_are_numbers_and_a_lone_one_beside_lines_is_a_marker() -> None:
    record = study({"standard": BASE, "slow": shifted(0.1)}, control=None)
    judged = JudgedStudy(with_outcomes(record, lambda _, __, run: replace(run, curve=run.curve[-1:])))
    assert [picture.name for picture in pictures(judged)] == ["differences"]
    page = render(judged, pictures(judged))
    assert "<dt>Validation loss at 1.00M tokens</dt><dd>standard 1.68, slow 1.78</dd>" in page
    assert '"charts": []' in page

    def of_slow(row: str, _: int, run: Outcome) -> Outcome:
        return replace(run, curve=run.curve[-1:]) if row == "slow" else run

    lines = [line for line in drawn(with_outcomes(record, of_slow)).get_lines() if line.get_linestyle() != "None"]
    assert [(len(line.get_xdata()), line.get_marker()) for line in lines] == [(20, ""), (1, "o")]


@pytest.mark.parametrize("asked", [False, True])
def test_figures_about_logits_stand_last_and_folded_unless_the_study_is_on_logits(asked: bool) -> None:
    quantities = (PERPLEXITY, Quantity("largest logit", "logits.max"))[: 1 + asked]
    logits = [[1.0, 2.0, 3.0]] * 3
    record = looked_at({"slow": {"max_logit": logits, "gate": GATES}}, quantities=quantities)
    judged = JudgedStudy(record)
    assert {picture.name: picture.folded for picture in pictures(judged)} == {
        **dict.fromkeys(("curves", "differences", "trajectory-gate"), False),
        "trajectory-max-logit": not asked,
    }
    folded = re.findall("<summary>About logits.*?</details>", render(judged, pictures(judged)), re.DOTALL)
    assert [text.count("<figure") for text in folded] == [1] * (not asked)


def test_columns_of_an_axis_carry_its_name_and_a_page_without_source_says_so_in_no_headline() -> None:
    record = study(columns={"0.001": {"standard": BASE, "slow": shifted(0.1)}, "0.002": {"standard": BASE}})
    record = replace(record, design=replace(record.design, columns_name="lr", source="no table: a pilot"))
    judged = JudgedStudy(record)
    page = render(judged, pictures(judged))
    assert '<button type="button">lr 0.002</button>' in page
    assert "Not run: &#39;slow&#39; in lr 0.002." in page
    assert list(charts(judged)[0].panels) == ["lr 0.001", "lr 0.002"]
    assert '<p class="kicker">a pilot · study synthetic · scale smoke</p>' in page


def test_lines_that_overlap_have_names_that_do_not() -> None:
    """Criterion: seven lines within a thousandth of a nat have seven names in the same order that do not overlap."""
    losses = {f"row {n}": shifted(0.0002 * n) for n in range(6)}
    axes = drawn(study(losses | {"standard": BASE}, control=None))
    names = [text for text in axes.texts if text.get_text() in (*losses, "standard")]
    assert len(names) == 7
    boxes = {text.get_text(): Text.get_window_extent(text) for text in names}  # without the lines that lead to them
    in_order = sorted(boxes, key=lambda name: boxes[name].y0)
    assert all(boxes[above].y0 >= boxes[below].y1 - 1 for below, above in pairwise(in_order))
    assert [name for name in in_order if name != "standard"] == list(losses)


@pytest.mark.parametrize("seed", range(5))
def test_names_are_spread_in_order_within_bounds_and_no_further_than_needed(seed: int) -> None:
    wanted = np.random.default_rng(seed).beta(0.3, 0.3, size=8).tolist()
    places = spread(wanted, 0.1, 0.0, 1.0)
    assert np.argsort(places).tolist() == np.argsort(wanted).tolist()
    assert np.diff(sorted(places)).min() >= 0.1 - 1e-9
    assert min(places) >= 0
    assert max(places) <= 1 + 1e-9
    apart = [0.1, 0.9, 0.5]
    assert spread(apart, 0.1, 0.0, 1.0) == pytest.approx(apart)


def test_labels_of_ticks_are_short_and_distinct() -> None:
    near = [153_500 + 25 * n for n in range(5)]
    assert len({_in_short(value, 0) for value in near}) == 5
    assert [_in_short(value, 0) for value in (200_000, 1.5e6, 0.05)] == ["200k", "1.5M", "0.05"]


def everything() -> StudyRecord:
    rows = {}
    for place, row in enumerate(("slow", "decay")):
        ups = [[0.01 * (seed + 1) * (place + 1) * (n + 1) for n in range(3)] for seed in range(3)]
        downs = [[3.0 - value for value in values] for values in ups]
        names = ("slow_memory", "residual", "contraction", "logit_change")
        rows[row] = {"gate": ups, **dict.fromkeys(names, downs), "max_logit": [[2.0, 30.0, 900.0]] * 3}
    return looked_at(rows)


TRACED = ("gate", "slow-memory", "residual", "contraction", "max-logit", "logit-change")
NAMES = [f"trajectory-{name}" for name in TRACED]


@pytest.mark.slow
def test_the_page_and_the_files_show_all_charts_of_a_stored_record(tmp_path: Path) -> None:
    """Criterion: a record read from JSON gives the same charts, each drawn, embedded for the script and written to a
    file."""
    stored = StudyRecord.from_dict(json.loads(json.dumps(everything().to_dict())))
    assert charts(JudgedStudy(stored)) == charts(JudgedStudy(everything()))
    written = write_report(JudgedStudy(stored), tmp_path, formats=("svg",))
    page = written.read_text(encoding="utf-8")
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    kept = {stored_chart["name"]: stored_chart for stored_chart in json.loads(data)["charts"]}
    assert list(kept) == ["curves", *NAMES]
    assert kept["trajectory-max-logit"]["factors"]
    assert kept["trajectory-gate"]["x_unit"] == "steps"
    figures = {path.stem for path in (written.parent / "figures").iterdir()}
    assert figures == {"curves", "differences", *NAMES}
    assert all(f'id="figure-{name}"' in page for name in figures)
