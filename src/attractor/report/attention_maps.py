"""The attention maps that a study stored: for each row the maps of one seed, by layer and head."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attractor.report.judged_study import JudgedStudy
from attractor.runs.study_record import HEATMAPS, PERCENT


@dataclass(frozen=True)
class Heatmaps:
    row: str
    column: str
    seed: int
    layers: tuple[str, ...]
    heads: tuple[str, ...]
    weights: np.ndarray  # L H T S
    tokens: tuple[str, ...]

    @property
    def is_causal(self) -> bool:
        """Whether no query attends to a later key; such places are drawn blank rather than as weights of zero."""
        return not np.triu(self.weights, k=1).any()


def heatmaps(judged: JudgedStudy) -> list[Heatmaps]:
    """Return the maps of the first column in which the baseline has any: the baseline first, one seed for each row."""
    rows = [judged.design.baseline, *(row for row in judged.design.rows if row != judged.design.baseline)]
    for column in judged.design.columns:
        stored = [maps for row in rows if (maps := _of_cell(judged, row, column)) is not None]
        if stored and stored[0].row == judged.design.baseline:
            return stored
    return []


def rival_of(judged: JudgedStudy, maps: Sequence[Heatmaps]) -> Heatmaps | None:
    """Return the maps to show beside the baseline: those of the first row that is not the control."""
    return next((of_row for of_row in maps[1:] if of_row.row != judged.design.control), None)


def _of_cell(judged: JudgedStudy, row: str, column: str) -> Heatmaps | None:
    for outcome in judged.cell(row, column).outcomes:
        stored: dict[str, Any] | None = outcome.probes.get(HEATMAPS)
        if stored:
            return Heatmaps(
                row,
                column,
                outcome.seed,
                tuple(map(str, stored["layers"])),
                tuple(map(str, stored["heads"])),
                np.asarray(stored["maps"], dtype=float) if "maps" in stored else _of_percent(stored[PERCENT]),
                tuple(stored.get("tokens") or ()),
            )
    return None


def _of_percent(maps: list[list[list[list[int]]]]) -> np.ndarray:
    """Return the weights of thinned maps, which are square, and whose rows lack the zeros at their ends."""
    weights = np.zeros((len(maps), len(maps[0]), len(maps[0][0]), len(maps[0][0])))
    for layer, head, query in np.ndindex(weights.shape[:3]):
        row = maps[layer][head][query]
        weights[layer, head, query, : len(row)] = row
    return weights / 100
