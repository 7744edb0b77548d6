"""Charts of dynamics: measurements by iteration are drawn as curves, and without them there is no chart."""

from dataclasses import replace
from typing import Any

from studies import BASE, shifted, study

from attractor.report.charts import Chart, charts
from attractor.report.judged_study import JudgedStudy
from attractor.report.study_figure import pictures
from attractor.runs.study_record import StudyRecord

ORBIT = [
    [[0.0, 1.0], [2.0, -1.0], [2.5, -1.5]],
    [[1.0, 1.0], [0.5, 0.5], [0.25, 0.25]],
]  # the orbits of two boards over three states


def seen(level: float) -> dict[str, Any]:
    """Return the dynamics of a run as the probe stores them, with norms and an exponent of this level."""
    return {
        "norm": {"by_step": [level, 2 * level, 4 * level]},
        "entropy": {"by_step": [1.0, 0.8, 0.6]},
        "exponents": {"by_rank": [0.1, -0.2, -level]},
        "accuracy": {"ood": {"board_accuracy": {"64": 0.5, "4": 0.1, "16": 0.4}}},
        "portrait": {"orbits": ORBIT, "share": 0.75},
    }


def dynamics(**by_row: dict[str, Any]) -> StudyRecord:
    losses = {"standard": BASE, "slow": shifted(0.1)}
    return study(losses, control=None, probes={row: {"dynamics": look} for row, look in by_row.items()})


def by_name(record: StudyRecord) -> dict[str, Chart]:
    return {chart.name: chart for chart in charts(JudgedStudy(record))}


def means(chart: Chart) -> dict[int, float]:
    return {place: round(mean, 6) for place, mean, _, _ in chart.panels[""]["slow"]}


def test_curves_by_iteration_start_at_0_and_by_rank_at_1() -> None:
    found = by_name(dynamics(slow=seen(1.5)))
    norm, spectrum = found["dynamics-norm-of-the-jacobian"], found["dynamics-spectrum-of-finite-time-exponents"]
    assert means(norm) == {0: 1.5, 1: 3.0, 2: 6.0}
    assert means(spectrum) == {1: 0.1, 2: -0.2, 3: -1.5}
    assert means(found["dynamics-entropy-of-attention"]) == {0: 1.0, 1: 0.8, 2: 0.6}
    assert (norm.x_label, spectrum.x_label) == ("iteration", "rank")


def test_accuracies_are_in_the_order_of_their_iterations() -> None:
    longer = by_name(dynamics(slow=seen(1.0)))["longer-ood-board-accuracy"]
    assert list(means(longer).items()) == [(4, 0.1), (16, 0.4), (64, 0.5)]


def test_accuracies_that_some_seed_lacks_are_not_drawn() -> None:
    """Criterion: a report of a study that is still running is written, without this chart."""
    record = dynamics(slow=seen(1.0))
    cells = tuple(
        replace(cell, outcomes=(replace(cell.outcomes[0], probes={}), *cell.outcomes[1:])) for cell in record.cells
    )
    assert not [name for name in by_name(replace(record, cells=cells)) if name.startswith("longer")]


def test_norms_that_differ_by_large_factors_have_a_logarithmic_axis() -> None:
    assert not by_name(dynamics(slow=seen(1.0)))["dynamics-norm-of-the-jacobian"].in_factors
    assert by_name(dynamics(standard=seen(1.0), slow=seen(100.0)))["dynamics-norm-of-the-jacobian"].in_factors


def test_a_phase_portrait_has_every_board_from_its_start_to_its_end() -> None:
    drawings = pictures(JudgedStudy(dynamics(slow=seen(1.0))))
    (picture,) = [drawing for drawing in drawings if drawing.name == "portraits"]
    (axes,) = [axes for axes in picture.figure.axes if axes.get_visible()]
    drawn = [line.get_xydata().tolist() for line in axes.get_lines()]
    for orbit in ORBIT:
        assert orbit in drawn
        assert orbit[:1] in drawn
        assert orbit[-1:] in drawn
    assert "75%" in axes.get_title()


def test_without_measurements_there_is_no_chart() -> None:
    record = dynamics()
    assert not [name for name in by_name(record) if name.startswith(("dynamics", "longer"))]
    assert "portraits" not in [drawing.name for drawing in pictures(JudgedStudy(record))]
