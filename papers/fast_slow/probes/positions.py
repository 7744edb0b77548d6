"""The probe `positions` measures how the loss falls with the context that a position has.

    loss_0      mean validation loss of positions 0 to 15
    loss_k      mean validation loss of positions 8 * 2^k to 16 * 2^k - 1, for k = 1, 2, ...                (1)
    gain_k      loss_k minus the loss of the last octave, which is what context beyond octave k is worth    (2)

A model that reads no further back than W tokens gains nothing beyond W. `probes.positions` has `loss` and `gain` by the
first position of the octave.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from attractor.models.language_model import LanguageModel
from attractor.study.study import Probe
from attractor.train.config import TrainConfig
from attractor.train.evaluate import FIRST_POSITIONS, validate


def positions_of_run(model: LanguageModel, config: TrainConfig) -> dict[str, Any]:
    by_position = validate(model, config.build_task(), config).by_position
    starts = octaves(len(by_position))
    ends = [*starts[1:], len(by_position)]
    losses = {str(start): _mean(by_position[start:end]) for start, end in zip(starts, ends, strict=True)}
    last = losses[str(starts[-1])]
    gains = {start: None if loss is None or last is None else loss - last for start, loss in losses.items()}
    return {"positions": {"loss": losses, "gain": gains}}


def octaves(length: int) -> list[int]:
    """Return the first position of each octave of a sequence; the last octave may be cut short."""
    starts = [0]
    while (start := FIRST_POSITIONS * 2 ** (len(starts) - 1)) < length:
        starts.append(start)
    return starts


def _mean(losses: Sequence[float]) -> float | None:
    scored = [loss for loss in losses if not math.isnan(loss)]
    return fmean(scored) if scored else None


POSITIONS_PROBE = Probe("positions", positions_of_run)
