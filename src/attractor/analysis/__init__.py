"""Measures: of tensors and of maps, never of applications."""

from attractor.analysis.entropy import attention_entropy
from attractor.analysis.rank import effective_rank

__all__ = ["attention_entropy", "effective_rank"]
