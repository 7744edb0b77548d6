"""Studies: comparisons of many runs that vary named axes and hold everything else fixed."""

from attractor.runs.quantity import ACCURACY, PERPLEXITY, Quantity
from attractor.runs.study_record import Published
from attractor.study.budget import match_parameters
from attractor.study.probe import ATTENTION_MAPS
from attractor.study.study import Axis, Probe, Scale, Study, axis, load_study, longer, mechanisms

__all__ = [
    "ACCURACY",
    "ATTENTION_MAPS",
    "PERPLEXITY",
    "Axis",
    "Probe",
    "Published",
    "Quantity",
    "Scale",
    "Study",
    "axis",
    "load_study",
    "longer",
    "match_parameters",
    "mechanisms",
]


def __dir__() -> list[str]:
    return __all__
