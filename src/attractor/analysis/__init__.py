"""Measures: of tensors and of maps, never of applications."""

from attractor.analysis.entropy import attention_entropy
from attractor.analysis.lumpability import Lumpability, lumpability_defect, lumpability_profile
from attractor.analysis.memory import decay_length, distance_holding, effective_memory, mean_distance
from attractor.analysis.rank import SpectralProfile, effective_rank, spectral_profile
from attractor.analysis.sink import sink_mass

__all__ = [
    "Lumpability",
    "SpectralProfile",
    "attention_entropy",
    "decay_length",
    "distance_holding",
    "effective_memory",
    "effective_rank",
    "lumpability_defect",
    "lumpability_profile",
    "mean_distance",
    "sink_mass",
    "spectral_profile",
]
