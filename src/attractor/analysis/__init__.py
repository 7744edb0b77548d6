"""Measures: of tensors and of maps, never of applications."""

from attractor.analysis.entropy import attention_entropy
from attractor.analysis.rank import SpectralProfile, effective_rank, spectral_profile
from attractor.analysis.sink import sink_mass

__all__ = ["SpectralProfile", "attention_entropy", "effective_rank", "sink_mass", "spectral_profile"]
