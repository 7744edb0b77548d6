"""The numbers of a study's curves and profiles: for each row a mean over seeds at each place."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from attractor.report.judged_study import JudgedStudy, Spread
from attractor.runs.quantity import Quantity
from attractor.runs.study_record import Outcome
from attractor.verdict.intervals import mean_interval

Point = tuple[float, float, float, float]  # place, mean, and the ends of the band
Curves = dict[str, list[Point]]  # by row


def _extremes(place: int, values: list[float]) -> Point:
    return place, sum(values) / len(values), min(values), max(values)


def by_place(
    judged: JudgedStudy,
    column: str,
    numbers: Callable[[Outcome], Sequence[tuple[int, Any]]],
    point: Callable[[int, list[float]], Point] = _extremes,
) -> Curves:
    """Return the curves at the places where every seed has a number, since a mean over fewer seeds would jump.

    By default the band goes from the lowest seed to the highest.
    """
    curves: Curves = {}
    for row in judged.design.rows:
        outcomes = judged.cell(row, column).outcomes
        by_place: dict[int, list[float]] = {}
        for outcome in outcomes:
            for place, value in numbers(outcome):
                if value is not None and math.isfinite(value):  # a stored record has null for NaN and infinity
                    by_place.setdefault(place, []).append(value)
        curves[row] = [
            point(place, values) for place, values in sorted(by_place.items()) if len(values) == len(outcomes)
        ]
    return {row: curve for row, curve in curves.items() if curve}


def trajectories(judged: JudgedStudy, name: str, column: str) -> Curves:
    """Return a repeatedly measured number of a run against its steps; the band is the 95% t interval over seeds."""
    return by_place(judged, column, lambda outcome: trajectory(outcome, name), _confidence)


def trajectory(outcome: Outcome, name: str) -> list[tuple[int, Any]]:
    """Return the steps and the measured values. A gate counts with its size, since its sign means nothing."""
    measurements = outcome.summary.get("trajectories", {}).get(name, ())
    return [(step, abs(value) if name == "gate" else value) for step, value in measurements]


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
    """Return a quantity against the layers; the band goes from the lowest seed to the highest."""
    by_row = {row: _profile(judged, row, headline, column) for row in judged.design.rows}
    return {row: profile for row, profile in by_row.items() if profile}


def _profile(judged: JudgedStudy, row: str, headline: Quantity, column: str) -> list[Point]:
    spreads: Iterable[Spread] = (judged.spread(row, column, layer) for layer in judged.layers(headline))
    return [
        _extremes(layer, list(spread.by_seed.values()))
        for layer, spread in enumerate(spreads)
        if spread.mean is not None and math.isfinite(spread.mean)
    ]


def _confidence(place: int, values: list[float]) -> Point:
    """Return the mean with its interval; a single seed has none, so its band has no width."""
    interval = mean_interval(values)
    if interval.low is None or interval.high is None:
        return place, interval.mean, interval.mean, interval.mean
    return place, interval.mean, interval.low, interval.high
