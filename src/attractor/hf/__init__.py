"""Import and export models in Hugging Face's formats. Importing this package does not import transformers."""

from importlib import import_module
from typing import Any

from attractor.hf.weights import LAYOUTS, import_attention

_ON_DEMAND = {
    "AttractorConfig": "auto_classes",
    "AttractorForCausalLM": "auto_classes",
    "AttractorForSequenceClassification": "auto_classes",
    "LogitControl": "trainer",
    "ReplacedModel": "replace",
    "as_fast_tokenizer": "tokenizers",
    "convert_model": "convert",
    "convert_run": "convert",
    "export_model": "export",
    "export_replaced": "export",
    "import_model": "import_models",
    "import_run": "import_runs",
    "replace_attention": "replace",
}
__all__ = ["LAYOUTS", "import_attention", *_ON_DEMAND]


def __getattr__(name: str) -> Any:
    if name in _ON_DEMAND:
        return getattr(import_module(f"attractor.hf.{_ON_DEMAND[name]}"), name)
    raise AttributeError(f"module 'attractor.hf' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
