"""Could this setting tell mechanisms apart? The control's gap, in units of the noise between seeds.

    gap in sds = (mean loss of the control - mean loss of the baseline) / standard deviation of the baseline   (1)

A setting in which attention matters puts the twin that attends to all positions alike far above the noise.
"""

import math
from dataclasses import dataclass

from attractor.evidence.statistics import Values, summary

SENSITIVE_GAP = 10.0


@dataclass(frozen=True)
class TwinGap:
    """`in_sds` and `sensitive` are None where one baseline seed, no spread or a lost loss leaves nothing to say."""

    gap: float
    baseline_sd: float | None
    in_sds: float | None
    n_control: int
    n_baseline: int

    @property
    def sensitive(self) -> bool | None:
        return None if self.in_sds is None else self.in_sds >= SENSITIVE_GAP


def twin_gap_in_sds(control: Values, baseline: Values) -> TwinGap:
    """Losses of both, by seed or not; a gap above zero is a control that is worse."""
    twin, base = summary(control), summary(baseline)
    gap, sd = twin.mean - base.mean, base.standard_deviation
    in_sds = gap / sd if sd and math.isfinite(gap) else None  # (1)
    return TwinGap(gap, sd, in_sds, twin.n, base.n)
