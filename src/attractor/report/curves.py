"""Curves and profiles of a study, as numbers: what the pictures draw, and what the page lets one zoom into."""

import math
from collections.abc import Iterable

from attractor.report.judged import Judged
from attractor.report.measures import Measure, Spread, layers

Point = tuple[int, float, float, float]  # where, mean, lowest and highest over seeds


def loss_curves(judged: Judged, column: str) -> dict[str, list[Point]]:
    """By row, validation loss against tokens, wherever every seed was validated: a mean over fewer would jump."""
    found = {row: _curve(judged, row, column) for row in judged.design.rows}
    return {row: curve for row, curve in found.items() if curve}


def profiles(judged: Judged, headline: Measure, column: str) -> dict[str, list[Point]]:
    """By row, a quantity against the layers."""
    found = {row: _profile(judged, row, headline, column) for row in judged.design.rows}
    return {row: profile for row, profile in found.items() if profile}


def _curve(judged: Judged, row: str, column: str) -> list[Point]:
    outcomes = judged.cell(row, column).outcomes
    by_tokens: dict[int, list[float]] = {}
    for outcome in outcomes:
        for tokens, loss in outcome.curve:
            if loss is not None and math.isfinite(loss):  # a stored record has null for what is no number
                by_tokens.setdefault(tokens, []).append(loss)
    return [_point(tokens, losses) for tokens, losses in sorted(by_tokens.items()) if len(losses) == len(outcomes)]


def _profile(judged: Judged, row: str, headline: Measure, column: str) -> list[Point]:
    spreads: Iterable[Spread] = (judged.spread(row, column, layer) for layer in layers(headline))
    return [
        _point(layer, list(spread.by_seed.values()))
        for layer, spread in enumerate(spreads)
        if spread.mean is not None and math.isfinite(spread.mean)
    ]


def _point(place: int, values: list[float]) -> Point:
    return place, sum(values) / len(values), min(values), max(values)
