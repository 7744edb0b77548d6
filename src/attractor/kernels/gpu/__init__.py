"""Kernels in Triton: nothing in here is imported before a GPU is at hand, or a test interprets it."""
