"""Describe a corpus by numbers: how varied its words are, and how much one document says about the next.

Papers claim that a method helps on domain-coherent text. These descriptors measure what that may mean. All corpora of a
comparison are sampled with equal size and shape (`sampling`), so that their numbers are comparable. `text_statistics`
and `ngram` define the descriptors; docs/describe.md says what they can and cannot tell.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np

from attractor.corpus import text_statistics as statistics
from attractor.corpus.documents import Document
from attractor.corpus.ngram import leave_one_out
from attractor.corpus.sampling import Pieces, draw_pieces
from attractor.corpus.text_statistics import Compression, ValueWithError
from attractor.errors import InputError

MIN_PIECES = 2 * statistics.N_GROUPS  # with fewer, the standard errors are meaningless


@dataclass(frozen=True)
class Settings:
    """The sample of each corpus, and the order of the n-gram model."""

    max_words: int = 1_000_000
    piece_words: int = 125
    order: int = 3
    max_documents: int | None = None
    """The number of documents that are read from the start of each corpus; None reads all."""

    def __post_init__(self) -> None:
        limits = {"piece_words": 2, "order": 1, "max_words": MIN_PIECES * self.piece_words, "max_documents": MIN_PIECES}
        for name, least in limits.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} must be at least {least:,}, got {value:,}; give a larger one")


@dataclass(frozen=True)
class Sizes:
    """The lengths, in words, of all non-empty documents of the corpus."""

    n_documents: int
    n_words: int
    mean: float
    quartiles: tuple[float, float, float]
    too_short: float
    """The share of documents that are shorter than a piece and therefore not in the sample."""


@dataclass(frozen=True)
class Description:
    """Entropies and losses are in nats for each word, compression is in bits for each byte."""

    name: str
    sizes: Sizes
    n_pieces: int
    piece_words: int
    n_duplicates: int
    """Pieces that repeat an earlier piece of the sample."""

    word_entropy: ValueWithError
    next_word_entropy: ValueWithError
    """The entropy of a word, given the word before it."""

    heaps_exponent: ValueWithError
    type_token_ratios: dict[int, float]
    """The ratio of different words to words, by the number of words."""

    growth: tuple[tuple[int, float], ...]
    """Numbers of words and the expected different words among them, to which Heaps' law is fitted."""

    cross_document_loss: ValueWithError
    """The loss of a document under an n-gram model of all other documents."""

    cross_document_perplexity: float
    cross_document_spread: ValueWithError
    """The standard deviation of that loss over documents."""

    within_document_gain: ValueWithError
    """The decrease of the loss when the model has also read the preceding words of the document."""

    topical_dispersion: ValueWithError
    register_dispersion: ValueWithError
    register_dispersion_median: float
    """The median over documents, which a few odd documents do not change."""

    compression: Compression

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def describe(documents: Iterable[Document], name: str = "corpus", settings: Settings | None = None) -> Description:
    """Describe one corpus."""
    return describe_all({name: documents}, settings)[0]


def describe_all(corpora: Mapping[str, Iterable[Document]], settings: Settings | None = None) -> list[Description]:
    """Describe corpora comparably, each by as many pieces as the smallest of their samples has."""
    settings = settings or Settings()
    n_pieces = settings.max_words // settings.piece_words
    samples = {}
    for name, documents in corpora.items():
        samples[name] = draw_pieces(islice(documents, settings.max_documents), n_pieces, settings.piece_words)
        n_drawn = len(samples[name].texts)
        if n_drawn < MIN_PIECES:
            raise InputError(
                f"a corpus must have at least {MIN_PIECES} documents of {settings.piece_words} words to be described, "
                f"but '{name}' has {n_drawn}; lower piece_words or give more documents"
            )
    n_pieces = min(len(sample.texts) for sample in samples.values())
    return [_describe(name, sample.first(n_pieces), settings) for name, sample in samples.items()]


def _describe(name: str, pieces: Pieces, settings: Settings) -> Description:
    words = pieces.words()
    losses = leave_one_out(words, settings.order)
    by_others = losses.by_others.mean(axis=1)
    register_distances = statistics.register_distances(words)
    cross_document_loss = statistics.mean_over_documents(by_others)
    return Description(
        name=name,
        sizes=_sizes(pieces.sizes, settings.piece_words),
        n_pieces=len(words),
        piece_words=settings.piece_words,
        n_duplicates=pieces.n_duplicates,
        word_entropy=statistics.jackknife(words, statistics.word_entropy),
        next_word_entropy=statistics.jackknife(words, statistics.next_word_entropy),
        heaps_exponent=statistics.jackknife(words, statistics.heaps_exponent),
        type_token_ratios=statistics.type_token_ratios(words),
        growth=tuple((round(n), float(types)) for n, types in zip(*statistics.growth(words), strict=True)),
        cross_document_loss=cross_document_loss,
        cross_document_perplexity=float(np.exp(cross_document_loss.value)),
        cross_document_spread=statistics.jackknife(by_others, lambda losses: float(losses.std(ddof=1))),
        within_document_gain=statistics.mean_over_documents(by_others - losses.by_others_and_past.mean(axis=1)),
        topical_dispersion=statistics.topical_dispersion(words),
        register_dispersion=statistics.mean_over_documents(register_distances),
        register_dispersion_median=float(np.median(register_distances)),
        compression=statistics.compression(pieces.texts),
    )


def _sizes(sizes: np.ndarray, piece_words: int) -> Sizes:
    low, middle, high = (float(size) for size in np.percentile(sizes, (25, 50, 75)))
    return Sizes(
        n_documents=len(sizes),
        n_words=int(sizes.sum()),
        mean=float(sizes.mean()),
        quartiles=(low, middle, high),
        too_short=float((sizes < piece_words).mean()),
    )
