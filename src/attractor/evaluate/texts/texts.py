"""Score texts with a model: nats of each document, perplexity per token, and bits per byte.

    nats = -log p(document | start),   perplexity = exp(nats / tokens),   bits per byte = nats / (bytes log 2)  (1)

over all documents together. The bytes are those of the UTF-8 text. So bits per byte can be compared between models with
different tokenizers, and perplexity cannot. Each document is predicted on its own, after the model's start token. If
the model has none, the first token counts as a guess among all tokens: log V.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from attractor.console import Advance, no_advance
from attractor.corpus.documents import Document
from attractor.errors import InputError
from attractor.evaluate.causal import Causal
from attractor.evaluate.texts.likelihood import likelihoods
from attractor.evaluate.texts.windows import spans_of, stride_of, window_of

LARGEST_EXPONENT = 709.0  # of a finite double: exp(709.8) is infinite


@dataclass(frozen=True)
class DocumentScore:
    name: str
    n_tokens: int
    n_bytes: int
    nats: float

    @property
    def nats_per_byte(self) -> float:
        return self.nats / self.n_bytes


@dataclass(frozen=True)
class TextScore:
    model: str
    window: int
    stride: int
    documents: tuple[DocumentScore, ...]
    start: int | None = None  # the token before each document

    @property
    def n_tokens(self) -> int:
        return sum(document.n_tokens for document in self.documents)

    @property
    def n_bytes(self) -> int:
        return sum(document.n_bytes for document in self.documents)

    @property
    def nats(self) -> float:
        return math.fsum(document.nats for document in self.documents)

    @property
    def nats_per_token(self) -> float:
        return self.nats / self.n_tokens

    @property
    def perplexity(self) -> float:
        return math.inf if self.nats_per_token > LARGEST_EXPONENT else math.exp(self.nats_per_token)  # (1)

    @property
    def bits_per_byte(self) -> float:
        return self.nats / (self.n_bytes * math.log(2))  # (1)


@dataclass(frozen=True)
class EncodedTexts:
    """Documents as tokens of a model, ready to be scored."""

    causal: Causal
    window: int
    stride: int
    documents: tuple[Document, ...]
    tokens: tuple[np.ndarray, ...]

    @property
    def n_tokens(self) -> int:
        return sum(map(len, self.tokens))


def encode_texts(
    causal: Causal,
    documents: Sequence[Document],
    window: int | None = None,
    stride: int | None = None,
    special_tokens: bool = False,
) -> EncodedTexts:
    """Encode the documents. With `special_tokens`, names of special tokens are read as the model's tokenizer does."""
    width = window_of(causal, window)
    smallest = np.min_scalar_type(causal.vocab_size - 1)
    encode = partial(causal.encode_prompt, specials=False) if special_tokens else causal.encode
    tokens = [np.array(encode(text.decode()), dtype=smallest) for _, text in documents]
    for (name, _), of_document in zip(documents, tokens, strict=True):
        if not len(of_document):
            raise InputError(f"a document must have tokens, but '{name}' has none for '{causal.name}'; leave it out")
    return EncodedTexts(causal, width, stride_of(width, stride), tuple(documents), tuple(tokens))


def score(texts: EncodedTexts, batch_size: int | None = None, advance: Advance = no_advance) -> TextScore:
    causal = texts.causal
    start = [] if causal.start is None else [causal.start]
    first_token = math.log(causal.vocab_size) if causal.start is None else 0.0
    spans = [
        spans_of(np.array([*start, *tokens], dtype=tokens.dtype), texts.window, texts.stride) for tokens in texts.tokens
    ]
    scored = iter(likelihoods(causal, [span for of_document in spans for span in of_document], batch_size, advance))
    scores = []
    for (name, text), tokens, of_document in zip(texts.documents, texts.tokens, spans, strict=True):
        nats = first_token - math.fsum(next(scored).log for _ in of_document)
        scores.append(DocumentScore(name, len(tokens), len(text), nats))
    return TextScore(causal.name, texts.window, texts.stride, tuple(scores), causal.start)


def score_texts(
    causal: Causal,
    documents: Sequence[Document],
    window: int | None = None,
    stride: int | None = None,
    batch_size: int | None = None,
) -> TextScore:
    """Score documents, which are names and UTF-8 texts, as `attractor.corpus.in_memory.documents_at` returns them."""
    return score(encode_texts(causal, documents, window, stride), batch_size)
