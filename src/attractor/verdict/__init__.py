"""Compute intervals, tests and plans for numbers by seed. Nothing here knows what a run is or imports torch."""

from attractor.verdict.intervals import (
    Interval,
    Summary,
    mean_interval,
    paired_difference,
    seed_differences,
    summary,
)
from attractor.verdict.multiplicity import holm
from attractor.verdict.power import detectable_with_power, pairs_needed, power_of_pairs
from attractor.verdict.sequential import Sequential
from attractor.verdict.speedup import Speedup, effective_speedup
from attractor.verdict.spread import brown_forsythe, spread_ratio
from attractor.verdict.t_tests import paired_t_test, welch

__all__ = [
    "Interval",
    "Sequential",
    "Speedup",
    "Summary",
    "brown_forsythe",
    "detectable_with_power",
    "effective_speedup",
    "holm",
    "mean_interval",
    "paired_difference",
    "paired_t_test",
    "pairs_needed",
    "power_of_pairs",
    "seed_differences",
    "spread_ratio",
    "summary",
    "welch",
]


def __dir__() -> list[str]:
    return __all__
