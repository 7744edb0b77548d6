"""Write verdicts as one HTML file: outcomes with their reasons, the table, figures, and every value.

The page needs no script, no network and no second file. Intervals of fewer than four seeds are not drawn: there the
figures show the seeds themselves.
"""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from markupsafe import Markup

from attractor.files import write_text
from attractor.report.canvas import GREY, INK, PALETTE, blank, framed, styles
from attractor.report.charts import FEWEST, Curves
from attractor.report.page import fill, verbatim
from attractor.report.panels import difference, name_lines
from attractor.report.study_figure import Picture
from attractor.verdict.intervals import decimals, summary
from attractor.verdict.observations import Curve, ObservedRun, Seed
from attractor.verdict.outcome import N_TEXTS, Verdict, Verdicts
from attractor.verdict.power import POWER
from attractor.verdict.words import UNKNOWN, abridged, html_class, html_table, on_one_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ROWS = 60  # in a figure
MOST_NAMED = 12  # rows whose curves are named and coloured
MOST_POINTS = 200  # of a curve
MOST_VALUES = 40  # of a row that are listed
NAME = 22  # characters of a name in a figure
_short = partial(abridged, length=NAME)
WIDTH = 4.0  # of a figure, in inches: as wide as a phone, so that three fit a screen
COLOURS = {"better": PALETTE[2], "worse": PALETTE[1], "no difference": PALETTE[0], "undecided": INK}


def write_page(verdicts: Verdicts, folder: Path) -> Path:
    """Write the page of the verdicts into `folder`, which is made if need be, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    page = folder / "verdict.html"
    write_text(page, render(verdicts))
    return page


def render(verdicts: Verdicts) -> str:
    observations = verdicts.observations
    return fill(
        "verdict_page.html.j2",
        style=verbatim("page.css", "study_page.css"),
        title=f"Is it real? {on_one_line(observations.value)} against {verdicts.rival}",
        facts=verdicts.facts(),
        decided=[_about(verdict) for verdict in verdicts.verdicts if verdict.outcome != "undecided"],
        undecided=[_about(verdict) for verdict in verdicts.verdicts if verdict.outcome == "undecided"],
        table=Markup(html_table(*verdicts.table(), N_TEXTS)),
        power=f"{POWER:.0%}",
        pictures=list(pictures(verdicts)),
        notes=verdicts.notes_in_lines(),
        values=[_values(row, runs, observations.seeded) for row, runs in observations],
        by="values by seed" if observations.seeded else "values",
    )


def _about(verdict: Verdict) -> tuple[str, str, str, str, str]:
    counted = f"({verdict.n} {'pair' if verdict.design == 'paired' else 'run'}{'s' * (verdict.n != 1)})"
    numbers = f"{verdict.interval} {counted}".strip()
    return on_one_line(verdict.row), verdict.outcome, html_class(verdict.outcome), numbers, verdict.sentence


def _values(row: str, runs: Mapping[Seed, ObservedRun], seeded: bool) -> tuple[str, int, str, str]:
    finite = [run.value for run in runs.values() if not run.diverged]
    spread = summary(finite).standard_deviation if finite else None
    digits = decimals(spread or abs(finite[0])) + 1 if finite else 0
    listed = [
        (f"{on_one_line(seed)}: " if seeded else "") + ("diverged" if run.diverged else f"{run.value:,.{digits}f}")
        for seed, run in list(runs.items())[:MOST_VALUES]
    ]
    if len(runs) > MOST_VALUES:
        listed.append(f"and {len(runs) - MOST_VALUES:,} more")
    average = f"{mean(finite):,.{digits}f}" if finite else UNKNOWN
    return (
        on_one_line(row),
        len(runs),
        average + ("" if spread is None else f" ± {spread:.{digits}f}"),
        ", ".join(listed),
    )


def pictures(verdicts: Verdicts) -> Iterator[Picture]:
    """Yield the figures for which there are numbers. Of many rows they have those with the lowest p."""
    known = [verdict for verdict in verdicts.verdicts if _differences(verdicts, verdict)]
    by_p = sorted(known, key=lambda verdict: 1.0 if verdict.p is None else verdict.p)[:MOST_ROWS]
    drawn = [verdict for verdict in known if verdict in by_p]
    left_out = f" Of {len(known)} rows it has the {len(drawn)} with the lowest p." if len(drawn) < len(known) else ""
    better = "Left" if verdicts.lower_is_better else "Right"
    if not drawn:
        return
    yield Picture(
        "differences",
        "Differences",
        f"Each row minus {verdicts.rival}, with the {verdicts.level:.0%} interval of that comparison alone. {better} "
        "is better. A full point marks a row that is better or worse after the correction for all ideas."
        + f" Small points show the seeds of rows with fewer than {FEWEST}, instead of an interval."
        * any(map(_few, drawn))
        + " Differences in the grey band, the margin, do not matter." * (verdicts.margin is not None)
        + left_out,
        partial(_draw_differences, verdicts, drawn),
    )
    rows = [*filter(None, [verdicts.baseline]), *(verdict.row for verdict in drawn)]
    runs = {row: verdicts.observations.rows[row] for row in rows}
    curves = {row: list(filter(None, (thinned(run.curve) for run in of_row.values()))) for row, of_row in runs.items()}
    curves = {row: of_row for row, of_row in curves.items() if any(len(curve) > 1 for curve in of_row)}
    if curves:
        yield Picture(
            "curves",
            "Curves",
            f"Each line is a run, at {MOST_POINTS} of its steps at most. The vertical range is that of the second "
            f"half of the steps. {'Rows without a name are grey.' if len(curves) > MOST_NAMED else ''}{left_out}",
            partial(_draw_curves, verdicts, curves),
        )


def thinned(curve: Curve) -> Curve:
    """Return at most MOST_POINTS finite points of a curve, its last one among them."""
    finite = [point for point in curve if math.isfinite(point[1])]
    stride = math.ceil(len(finite) / MOST_POINTS) or 1
    return tuple(reversed(finite[::-1][::stride]))


def _differences(verdicts: Verdicts, verdict: Verdict) -> list[float]:
    """Return the differences of single runs: of pairs, or from the mean of the baseline or the number."""
    ours = verdicts.observations.values(verdict.row)
    theirs = {} if verdicts.baseline is None else verdicts.observations.values(verdicts.baseline)
    if verdict.design == "paired":
        differences = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    else:
        finite = [value for value in theirs.values() if math.isfinite(value)]
        centre = verdicts.against if verdicts.baseline is None else mean(finite) if finite else None
        differences = [] if centre is None else [value - centre for value in ours.values()]
    return [difference for difference in differences if math.isfinite(difference)]


def _few(verdict: Verdict) -> bool:
    """Say whether a t interval would rest on too few seeds; one run a row has an interval of prediction."""
    return verdict.n < FEWEST and verdict.design != "one run a row"


def _draw_differences(verdicts: Verdicts, drawn: list[Verdict]) -> "Figure":
    figure = blank(WIDTH, 0.9 + 0.28 * len(drawn))
    axes = framed(figure.add_subplot())
    if verdicts.margin:
        axes.axvspan(-verdicts.margin, verdicts.margin, color=GREY, alpha=0.2, linewidth=0)
    axes.axvline(0, color=INK, linewidth=0.8)
    for place, verdict in enumerate(drawn):
        seeds = _differences(verdicts, verdict)
        centre = mean(seeds) if verdict.difference is None else verdict.difference
        look = {"color": COLOURS[verdict.outcome], "fillstyle": "none"}
        look |= {"fillstyle": "full"} if verdict.outcome in ("better", "worse") else {}
        low, high = (None, None) if _few(verdict) else (verdict.low, verdict.high)
        difference(axes, place, centre, low, high, seeds, **look)
    axes.set_yticks(range(len(drawn)), [_short(verdict.row) for verdict in drawn])
    axes.set_ylim(len(drawn) - 0.5, -0.5)
    axes.locator_params(axis="x", nbins=4)
    axes.set_xlabel(f"{_short(verdicts.observations.value)} minus {_short(verdicts.rival)}")
    return figure


def _draw_curves(verdicts: Verdicts, curves: Mapping[str, list[Curve]]) -> "Figure":
    figure = blank(WIDTH, max(3.2, 0.15 * min(len(curves), MOST_NAMED) + 1.5))
    axes = framed(figure.add_subplot())
    by_name = {_short(row): of_row for row, of_row in list(curves.items())[:MOST_NAMED]}
    looks = styles(by_name, _short(verdicts.rival), None)
    for row, of_row in reversed(list(curves.items())):
        look = looks[_short(row)] if _short(row) in by_name else {"color": GREY}
        for curve in of_row:
            axes.plot(*zip(*curve, strict=True), **look | {"linewidth": 0.9, "alpha": 0.8})
    end = max(curve[-1][0] for of_row in curves.values() for curve in of_row)
    late = [value for of_row in curves.values() for curve in of_row for step, value in curve if step >= end / 2]
    room = 0.06 * (max(late) - min(late)) or 0.01
    axes.set_ylim(min(late) - room, max(late) + room)
    axes.xaxis.set_major_formatter("{x:,.6g}")
    axes.locator_params(axis="x", nbins=4)
    axes.set(xlabel="step", ylabel=_short(verdicts.observations.value))
    ends: Curves = {}
    for name, of_row in by_name.items():
        value = mean(curve[-1][1] for curve in of_row)
        ends[name] = [(max(curve[-1][0] for curve in of_row), value, value, value)]
    name_lines(figure, {"": axes}, {"": ends}, looks)
    return figure
