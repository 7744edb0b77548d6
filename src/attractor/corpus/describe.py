"""A corpus in numbers: how varied its words are, and how much one of its documents tells about the next.

A method is said to help on domain-coherent text, and not on other text. This measures what such words may mean, on
samples of the same size and shape for all corpora that stand side by side (`pieces`), so that the numbers compare. How
each is computed stands in `descriptors` and `ngram`; what they can and cannot tell, in docs/describe.md.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import numpy as np

from attractor.corpus import descriptors as measure
from attractor.corpus.descriptors import Compression, Estimate
from attractor.corpus.documents import Document
from attractor.corpus.ngram import leave_one_out
from attractor.corpus.pieces import Pieces, draw_pieces
from attractor.errors import InputError

MIN_PIECES = 2 * measure.N_GROUPS  # fewer give no standard error worth the name


@dataclass(frozen=True)
class Settings:
    """The sample of each corpus, and the order of the n-gram model."""

    max_words: int = 1_000_000
    piece_words: int = 125
    order: int = 3
    max_documents: int | None = None
    """Read so many from the start of each corpus, and draw from these; by default all are read."""

    def __post_init__(self) -> None:
        limits = {"piece_words": 2, "order": 1, "max_words": MIN_PIECES * self.piece_words, "max_documents": MIN_PIECES}
        for name, least in limits.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} must be at least {least:,}, got {value:,}; give a larger one")


@dataclass(frozen=True)
class Sizes:
    """Words of the documents of the whole corpus, as long as they really are; empty ones do not count."""

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
    """Pieces of the sample that stand in it before."""

    word_entropy: Estimate
    next_word_entropy: Estimate
    """Of a word, given the one before it."""

    heaps_exponent: Estimate
    type_token_ratios: dict[int, float]
    """Different words over words, by the number of words."""

    growth: tuple[tuple[int, float], ...]
    """Words, and different words expected among so many: the curve that the exponent is fitted to."""

    cross_document_loss: Estimate
    """Of a document under an n-gram model of all the others."""

    cross_document_perplexity: float
    cross_document_spread: Estimate
    """The standard deviation of that loss over documents."""

    within_document_gain: Estimate
    """What the loss falls by when the model has also read the words before in the same document."""

    topical_dispersion: Estimate
    register_dispersion: Estimate
    register_dispersion_median: float
    """The median document's, which a few odd documents do not move."""

    compression: Compression

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def describe(documents: Iterable[Document], name: str = "corpus", settings: Settings | None = None) -> Description:
    """The description of one corpus."""
    return describe_all({name: documents}, settings)[0]


def describe_all(corpora: Mapping[str, Iterable[Document]], settings: Settings | None = None) -> list[Description]:
    """Descriptions that compare: of as many pieces for each corpus as the smallest of the samples has."""
    settings = settings or Settings()
    n_pieces = settings.max_words // settings.piece_words
    samples = {}
    for name, documents in corpora.items():
        samples[name] = draw_pieces(islice(documents, settings.max_documents), n_pieces, settings.piece_words)
        n_found = len(samples[name].texts)
        if n_found < MIN_PIECES:
            raise InputError(
                f"a corpus must have at least {MIN_PIECES} documents of {settings.piece_words} words to be described, "
                f"but '{name}' has {n_found}; lower piece_words or give more documents"
            )
    n_pieces = min(len(sample.texts) for sample in samples.values())
    return [_describe(name, sample.first(n_pieces), settings) for name, sample in samples.items()]


def _describe(name: str, pieces: Pieces, settings: Settings) -> Description:
    words = pieces.words()
    losses = leave_one_out(words, settings.order)
    by_others = losses.by_others.mean(axis=1)
    manners = measure.register_distances(words)
    cross_document_loss = measure.mean_over_documents(by_others)
    return Description(
        name=name,
        sizes=_sizes(pieces.sizes, settings.piece_words),
        n_pieces=len(words),
        piece_words=settings.piece_words,
        n_duplicates=pieces.n_duplicates,
        word_entropy=measure.jackknife(words, measure.word_entropy),
        next_word_entropy=measure.jackknife(words, measure.next_word_entropy),
        heaps_exponent=measure.jackknife(words, measure.heaps_exponent),
        type_token_ratios=measure.type_token_ratios(words),
        growth=tuple((round(n), float(types)) for n, types in zip(*measure.growth(words), strict=True)),
        cross_document_loss=cross_document_loss,
        cross_document_perplexity=float(np.exp(cross_document_loss.value)),
        cross_document_spread=measure.jackknife(by_others, lambda losses: float(losses.std(ddof=1))),
        within_document_gain=measure.mean_over_documents(by_others - losses.by_others_and_past.mean(axis=1)),
        topical_dispersion=measure.topical_dispersion(words),
        register_dispersion=measure.mean_over_documents(manners),
        register_dispersion_median=float(np.median(manners)),
        compression=measure.compression(pieces.texts),
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
