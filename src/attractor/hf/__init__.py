"""Hugging Face and other public weights: in and out. Nothing here imports transformers before it is used."""

from importlib import import_module
from typing import Any

from attractor.hf.weights import LAYOUTS, import_attention

_ON_DEMAND = {
    "AttractorConfig": "model_registered",
    "AttractorForCausalLM": "model_registered",
    "AttractorForSequenceClassification": "model_registered",
    "LogitControl": "trainer",
    "as_fast_tokenizer": "tokenizers",
    "convert_model": "convert",
    "convert_run": "convert",
    "export_model": "export",
    "import_model": "imported",
    "import_run": "as_run",
}
__all__ = ["LAYOUTS", "import_attention", *_ON_DEMAND]


def __getattr__(name: str) -> Any:
    if name in _ON_DEMAND:
        return getattr(import_module(f"attractor.hf.{_ON_DEMAND[name]}"), name)
    raise AttributeError(f"module 'attractor.hf' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
