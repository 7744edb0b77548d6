"""Score texts with any causal model: likelihoods, perplexity, bits per byte, and tests between two models.

`harness.py` evaluates a model with lm-eval. It is not imported here, since lm-eval is an extra.
"""

from attractor.evaluate.texts.documents import Texts, texts_on
from attractor.evaluate.texts.likelihood import Likelihood, Span, likelihoods
from attractor.evaluate.texts.paired_test import paired
from attractor.evaluate.texts.texts import DocumentScore, TextScore, score_texts
from attractor.evaluate.texts.windows import Window, windows

__all__ = [
    "DocumentScore",
    "Likelihood",
    "Span",
    "TextScore",
    "Texts",
    "Window",
    "likelihoods",
    "paired",
    "score_texts",
    "texts_on",
    "windows",
]


def __dir__() -> list[str]:
    return __all__
