"""Hugging Face and other public weights: in and out. Nothing here imports transformers before it is used."""

from typing import Any

from attractor.hf.weights import LAYOUTS, import_attention

__all__ = ["LAYOUTS", "LogitControl", "import_attention"]


def __getattr__(name: str) -> Any:
    if name == "LogitControl":
        from attractor.hf.trainer import LogitControl

        return LogitControl
    raise AttributeError(f"module 'attractor.hf' has no attribute '{name}'")
