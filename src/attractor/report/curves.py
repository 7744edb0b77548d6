"""The numbers of a study's curves and profiles: for each row a mean over seeds at each place."""

import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from attractor.report.judged_study import JudgedStudy
from attractor.runs.quantity import MEAN, Quantity
from attractor.runs.study_record import Outcome

FEWEST = 4  # seeds whose band or interval is drawn; of fewer, each is a dot
Point = tuple[float, ...]  # place, mean and the ends of the band, followed by the values of the seeds that are dots
Curves = dict[str, list[Point]]  # by row


def _extremes(place: int, values: Sequence[float]) -> Point:
    return place, sum(values) / len(values), min(values), max(values)


def by_place(judged: JudgedStudy, column: str, numbers: Callable[[Outcome], Sequence[tuple[int, Any]]]) -> Curves:
    """Return the curves at the places where every measured seed has a number: a mean over fewer seeds would jump."""
    curves: Curves = {}
    for row in judged.design.rows:
        measured = list(filter(None, map(numbers, judged.cell(row, column).outcomes)))
        by_place: dict[int, list[float]] = {}
        for place, value in chain.from_iterable(measured):
            if value is not None and math.isfinite(value):  # a stored record has null for NaN and infinity
                by_place.setdefault(place, []).append(value)
        complete = {place: values for place, values in sorted(by_place.items()) if len(values) == len(measured)}
        curves[row] = [
            (*_extremes(place, values), *(values if 1 < len(values) < FEWEST else ()))
            for place, values in complete.items()
        ]
    return {row: curve for row, curve in curves.items() if curve}


def trajectories(judged: JudgedStudy, name: str, column: str) -> Curves:
    """Return a repeatedly measured number of a run against its steps. The sign of a gate means nothing."""

    def values(outcome: Outcome) -> list[tuple[int, Any]]:
        measurements = outcome.summary.get("trajectories", {}).get(name, ())
        return [(step, abs(value) if name == "gate" else value) for step, value in measurements]

    return by_place(judged, column, values)


def over_heads(judged: JudgedStudy, name: str, column: str) -> Curves:
    """Return the mean over all heads of the first seed; the band goes from the lowest head to the highest."""
    curves: Curves = {}
    for row in judged.design.rows:
        outcomes = judged.cell(row, column).outcomes
        looks = outcomes[0].summary.get("trajectories_by_head", {}).get(name, ()) if outcomes else ()
        curves[row] = [
            _extremes(step, heads) for step, heads in looks if all(x is not None and math.isfinite(x) for x in heads)
        ]
    return {row: curve for row, curve in curves.items() if curve}


def profiles(judged: JudgedStudy, headline: Quantity, column: str) -> Curves:
    """Return a quantity that has a value for each layer against the layers."""

    def values(outcome: Outcome) -> list[tuple[int, Any]]:
        of_layers = headline.value(outcome) if headline.layer == MEAN else None
        return list(enumerate(of_layers)) if isinstance(of_layers, list | tuple) else []

    return by_place(judged, column, values)
