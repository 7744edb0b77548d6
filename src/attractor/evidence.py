"""Deprecated: the package `evidence` became `runs`, `statistics` and `claims`. Version 0.2 removes the old names."""

from warnings import warn

from attractor.runs import RunFolder, config_differences, config_hash, dotted_fields, environment, find_runs
from attractor.verdict import Interval, mean_interval, paired_difference, smallest_detectable

__all__ = [
    "Interval",
    "RunFolder",
    "config_differences",
    "config_hash",
    "dotted_fields",
    "environment",
    "find_runs",
    "mean_interval",
    "paired_difference",
    "smallest_detectable",
]
__path__: list[str] = []  # its former files are found by `former_names`

warn("attractor.evidence became attractor.runs, .statistics and .claims", DeprecationWarning, stacklevel=2)
