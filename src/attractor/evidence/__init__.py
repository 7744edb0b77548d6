"""What a run leaves behind, and what may be concluded from it.

A run is a folder of plain files. Nothing here knows how a model is trained, and nothing here imports torch, so results
can be read, compared and published on any machine.
"""

from attractor.evidence.configuration import config_differences, config_hash, dotted_fields
from attractor.evidence.machine import environment
from attractor.evidence.run import RunFolder, find_runs
from attractor.evidence.statistics import Interval, mean_interval, paired_difference, smallest_detectable
from attractor.files import write_json, write_text

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
    "write_json",
    "write_text",
]


def __dir__() -> list[str]:
    return __all__
