"""Measure a causal model of attractor or transformers on passages of a text, without changing the model."""

from attractor.measuring.passages import passages, text_of
from attractor.measuring.plan import Plan
from attractor.measuring.record import record
from attractor.measuring.sample import Sample, measured

__all__ = ["Plan", "Sample", "measured", "passages", "record", "text_of"]
