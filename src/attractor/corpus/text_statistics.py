"""Statistics of equal pieces of a corpus: entropies, vocabulary growth, dispersion, compression.

With n_i the count of word i, N = sum n_i, D documents and df_w the number of documents that contain the word w:

    H    = ln N - sum_i (n_i / N) G(n_i),  G(n) = psi(n) + (-1)^n / 2 (psi((n + 1) / 2) - psi(n / 2))        (1)
    V(m) = sum_w [1 - C(D - df_w, m) / C(D, m)]                                                               (2)
    d    = 1 - (|sum_i x_i|^2 - D) / (D (D - 1)),  x_i the unit vector along count(w, i) ln(D / df_w)          (3)
    r_i  = sum_w (n_wi - e_w)^2 / (F e_w),  e_w the mean of n_wi over documents                                (4)

(1) is the entropy in nats with the correction of Grassberger (2003, physics/0307138). It removes most of the bias of
the plain estimate. Where most events occur once, as with pairs of words, the remaining bias depends on N, so compare at
equal N. (2) is the exact mean number of different words in m documents, over all choices of m documents.
(3) is the exact mean cosine distance of two documents by tf-idf: how far apart their topics are.
(4) says how far apart documents are in register. w runs over the F = 50 most common words, with all others as one more.
It is chi-squared per degree of freedom, as Kilgarriff (2001, Comparing corpora) used it on common words. Its mean is 1
where all documents draw words alike, and larger where articles, pronouns and commas are common in some and rare in
others.

Standard errors are over documents. A mean over documents has the usual standard error. For other statistics, documents
are dealt to 20 groups, and the statistic is computed without each group in turn (the jackknife).
"""

import lzma
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.special import gammaln, psi

N_GROUPS = 20
N_COMMON = 50
N_POINTS = 25
FIRST_FITTED_SHARE = 0.01


@dataclass(frozen=True)
class ValueWithError:
    """A value and its standard error over documents, or None where it has none."""

    value: float
    error: float | None = None


def mean_over_documents(values: np.ndarray) -> ValueWithError:
    return ValueWithError(float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))))


def jackknife(words: np.ndarray, statistic: Callable[[np.ndarray], float]) -> ValueWithError:
    """Return `statistic(words)` with its error; `words` has a row for each document."""
    group = np.arange(len(words)) % N_GROUPS
    without = [statistic(words[group != left_out]) for left_out in range(N_GROUPS)]
    return ValueWithError(statistic(words), float(np.std(without) * math.sqrt(N_GROUPS - 1)))


def entropy(counts: np.ndarray) -> float:
    """Return (1) in nats; counts of zero are ignored."""
    n = counts[counts > 0].astype(float)
    signs = np.where(n % 2, -0.5, 0.5)
    corrected = psi(n) + signs * (psi((n + 1) / 2) - psi(n / 2))
    return float(math.log(n.sum()) - (n * corrected).sum() / n.sum())


def word_entropy(words: np.ndarray) -> float:
    """Return the entropy of single words."""
    return entropy(np.bincount(words.ravel()))


def next_word_entropy(words: np.ndarray) -> float:
    """Return the entropy of a word, given the word before it."""
    first, second = words[:, :-1], words[:, 1:]
    pairs = first * (words.max() + 1) + second
    return entropy(np.unique(pairs, return_counts=True)[1]) - word_entropy(first)


def document_frequency(words: np.ndarray) -> np.ndarray:
    """Return the number of documents that contain each word, for words that occur."""
    in_order = np.sort(words, axis=1)
    counts = np.bincount(in_order[np.diff(in_order, axis=1, prepend=-1) != 0])
    return counts[counts > 0]


def expected_types(frequency: np.ndarray, n_documents: int, n_drawn: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return (2), the expected different words in `n_drawn` random documents, smooth between whole numbers."""
    df, n_words = np.unique(frequency, return_counts=True)
    missing = (n_documents - df)[None, :]  # documents without the word
    m = np.asarray(n_drawn, dtype=float)[:, None]
    left = np.maximum(missing - m, 0)
    log_none = gammaln(missing + 1) - gammaln(left + 1) - gammaln(n_documents + 1) + gammaln(n_documents - m + 1)
    return np.where(missing >= m, -np.expm1(log_none), 1.0) @ n_words


def growth(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers of words, from 1% of the sample to all of it, and the expected different words among them."""
    n_documents, piece_words = words.shape
    drawn = np.geomspace(max(1, FIRST_FITTED_SHARE * n_documents), n_documents, N_POINTS)
    return drawn * piece_words, expected_types(document_frequency(words), n_documents, drawn)


def heaps_exponent(words: np.ndarray) -> float:
    """Return the slope of ln(different words) against ln(words), by least squares over `growth`."""
    n_words, n_types = growth(words)
    return float(np.polyfit(np.log(n_words), np.log(n_types), 1)[0])


def type_token_ratios(words: np.ndarray) -> dict[int, float]:
    """Return the ratio of different words to words at 1,000, 10,000 and so on, up to the size of the sample."""
    n_documents, piece_words = words.shape
    sizes = [10**power for power in range(3, 10) if piece_words <= 10**power <= words.size]
    types = expected_types(document_frequency(words), n_documents, [size / piece_words for size in sizes])
    return {size: float(n / size) for size, n in zip(sizes, types, strict=True)}


def topical_dispersion(words: np.ndarray) -> ValueWithError:
    """Return (3) with the jackknife error over single documents, at fixed document frequencies.

    A document has no topic and is left out if each of its words occurs in every document.
    """
    document = np.broadcast_to(np.arange(len(words))[:, None], words.shape)
    shape = (len(words), int(words.max()) + 1)
    counts = csr_array((np.ones(words.size), (document.ravel(), words.ravel())), shape=shape)  # repeated entries add up
    frequency = np.bincount(counts.indices, minlength=shape[1])
    weighted = counts.multiply(np.log(len(words) / np.maximum(frequency, 1))).tocsr()
    norm = np.sqrt(weighted.multiply(weighted).sum(axis=1))
    x = weighted[norm > 0].multiply(1 / norm[norm > 0][:, None]).tocsr()
    n = x.shape[0]
    if n < 3:
        return ValueWithError(0.0)
    total = np.asarray(x.sum(axis=0)).ravel()
    to_others = x @ total - 1  # each document's summed similarity
    similarity = to_others.sum() / (n * (n - 1))
    without = (to_others.sum() - 2 * to_others) / ((n - 1) * (n - 2))
    return ValueWithError(float(1 - similarity), float(np.std(without) * math.sqrt(n - 1)))


def register_distances(words: np.ndarray) -> np.ndarray:
    """Return (4) of each document."""
    counts = np.bincount(words.ravel())
    common = np.argsort(-counts, kind="stable")[:N_COMMON]
    column = np.full(len(counts), len(common))  # of all other words
    column[common] = np.arange(len(common))
    n_columns = len(common) + 1
    cells = column[words] + n_columns * np.arange(len(words))[:, None]
    observed = np.bincount(cells.ravel(), minlength=n_columns * len(words)).reshape(len(words), n_columns)
    expected = observed.mean(axis=0)
    occurs = expected > 0
    squares = (observed[:, occurs] - expected[occurs]) ** 2 / expected[occurs]
    return squares.sum(axis=1) / max(occurs.sum() - 1, 1)


@dataclass(frozen=True)
class Compression:
    """Bits per byte under LZMA, for every document alone and for all documents together."""

    alone: ValueWithError
    together: float
    gain: float
    """The share of the separate compressed sizes that compressing together saves."""


def compression(texts: Sequence[str]) -> Compression:
    raw = [text.encode() for text in texts]
    sizes = np.array([len(text) for text in raw])
    alone = np.array([compressed_size(text) for text in raw])
    together = compressed_size(b"\n".join(raw))
    return Compression(
        alone=mean_over_documents(8 * alone / sizes),
        together=float(8 * together / sizes.sum()),
        gain=float(1 - together / alone.sum()),
    )


def compressed_size(raw: bytes) -> int:
    """Return the size under LZMA without a container, with a window as long as the text."""
    window = 1 << max(12, (len(raw) - 1).bit_length())
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": window}]
    return len(lzma.compress(raw, format=lzma.FORMAT_RAW, filters=filters))
