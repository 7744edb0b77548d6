"""Decide whether a setting can tell mechanisms apart, by the gap between a control and its baseline.

The control lacks what the mechanisms differ in. For attention mechanisms it attends to all positions alike. For another
part of a model, such as a slow path, the control keeps the part but deprives it of information. Seed by seed,

    gap_s = loss of the control - loss of its baseline                                                      (1)

The setting is sensitive where the 95% t interval of the mean gap lies above the margin, the smallest difference that
matters. Where the whole part is worth less than the margin, no difference between its variants can be seen.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from attractor.verdict.intervals import Interval, paired_difference


@dataclass(frozen=True)
class ControlGap:
    """The mean gap with its interval; None where the two rows have no seed in common."""

    interval: Interval | None
    margin: float = 0.0

    @property
    def sensitive(self) -> bool | None:
        """Whether the interval lies above the margin; None with one pair of seeds or a non-finite loss."""
        if self.interval is None or self.interval.low is None or not math.isfinite(self.interval.low):
            return None
        return self.interval.low > self.margin


def control_gap(control: Mapping[int, float], against: Mapping[int, float], margin: float = 0.0) -> ControlGap:
    """Return the mean gap (1) with its interval, from the losses of both rows by seed."""
    paired = control.keys() & against.keys()
    return ControlGap(paired_difference(control, against) if paired else None, margin)
