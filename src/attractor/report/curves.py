"""The numbers of a study's curves and profiles: for each row a mean over seeds at each place."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from attractor.report.judged_study import JudgedStudy
from attractor.runs.quantity import Quantity
from attractor.runs.study_record import Outcome

FEWEST = 4  # seeds whose band or interval is drawn; of fewer, each is a dot
Point = tuple[float, ...]  # place, mean and the ends of the band, followed by the values of the seeds that are dots
Curves = dict[str, list[Point]]  # by row


def _extremes(place: int, values: Sequence[float]) -> Point:
    return place, sum(values) / len(values), min(values), max(values)


def _over_seeds(place: int, values: Sequence[float]) -> Point:
    return *_extremes(place, values), *(values if 1 < len(values) < FEWEST else ())


def by_place(judged: JudgedStudy, column: str, numbers: Callable[[Outcome], Sequence[tuple[int, Any]]]) -> Curves:
    """Return the curves at the places where every seed has a number, since a mean over fewer seeds would jump."""
    curves: Curves = {}
    for row in judged.design.rows:
        outcomes = judged.cell(row, column).outcomes
        by_place: dict[int, list[float]] = {}
        for outcome in outcomes:
            for place, value in numbers(outcome):
                if value is not None and math.isfinite(value):  # a stored record has null for NaN and infinity
                    by_place.setdefault(place, []).append(value)
        curves[row] = [
            _over_seeds(place, values) for place, values in sorted(by_place.items()) if len(values) == len(outcomes)
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
    """Return a quantity against the layers."""
    curves: Curves = {}
    for row in judged.design.rows:
        spreads = [judged.spread(row, column, layer) for layer in judged.layers(headline)]
        curves[row] = [
            _over_seeds(layer, list(spread.by_seed.values()))
            for layer, spread in enumerate(spreads)
            if spread.mean is not None and math.isfinite(spread.mean)
        ]
    return {row: curve for row, curve in curves.items() if curve}
