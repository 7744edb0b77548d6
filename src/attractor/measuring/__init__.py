"""Measures of any causal model that is there, ours or of transformers, on passages of a text, without editing it."""

from attractor.measuring.measure import measured
from attractor.measuring.passages import passages, text_of
from attractor.measuring.plan import Plan
from attractor.measuring.record import record
from attractor.measuring.sample import Sample

__all__ = ["Plan", "Sample", "measured", "passages", "record", "text_of"]
