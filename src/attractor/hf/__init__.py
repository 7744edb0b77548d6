"""Hugging Face and other public weights: in and out. Nothing here imports transformers before it is used."""

from attractor.hf.weights import LAYOUTS, import_attention

__all__ = ["LAYOUTS", "import_attention"]
