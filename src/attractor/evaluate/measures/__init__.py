"""Measure a causal model of attractor or transformers on passages of a text, without changing the model."""

from attractor.evaluate.measures.passages import passages, text_of
from attractor.evaluate.measures.plan import Plan
from attractor.evaluate.measures.record import record
from attractor.evaluate.measures.sample import Sample, measured

__all__ = ["Plan", "Sample", "measured", "passages", "record", "text_of"]
