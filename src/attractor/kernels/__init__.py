"""Fused computations with plain twins: what is fast stands beside what defines it."""
