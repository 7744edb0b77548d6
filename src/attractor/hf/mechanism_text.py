"""Describe a mechanism in words: the first paragraphs of the modules that define its stages, and what they cite."""

import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

from attractor.attention import AttentionConfig
from attractor.attention.config import STAGES, unlike_standard
from attractor.models import TransformerConfig
from attractor.models.config import ModelConfig

SOURCE = re.compile(r"arXiv \d{4}\.\d{5}")


def sentences(config: ModelConfig[Any]) -> Iterator[str]:
    """Yield the first paragraph of the module docstring of the family and of each stage, with its settings."""
    for part in nonstandard_parts(config):
        paragraph = " ".join(definition(part).partition("\n\n")[0].split())
        name = next((name for name, stage in STAGES.items() if isinstance(part, stage)), None)
        yield paragraph if name is None else f"{name}: {paragraph} ({unlike_standard(name, part) or '·'})"


def sources(config: ModelConfig[Any]) -> tuple[str, ...]:
    """Return the papers that these docstrings cite."""
    texts = (definition(part) for part in nonstandard_parts(config))
    return tuple(dict.fromkeys(SOURCE.findall("\n".join(texts))))


def definition(part: Any) -> str:
    return inspect.getdoc(sys.modules[type(part).__module__]) or ""


def nonstandard_parts(config: ModelConfig[Any]) -> Iterator[Any]:
    """Yield the family and the stages that differ from a Transformer with softmax attention."""
    if not isinstance(config, TransformerConfig):
        yield config
    stages = dict.fromkeys(getattr(mechanism, name) for mechanism in config.mechanisms for name in STAGES)
    yield from (stage for stage in stages if stage not in vars(AttentionConfig()).values())
