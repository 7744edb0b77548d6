"""A small n-gram model of words, tested on every document without having seen it: exactly, and without retraining.

An interpolated model with the weights of Witten and Bell (1991): for a word w after the words h of order k - 1,

    p_k(w | h) = (c(h w) + t(h) p_{k-1}(w | h')) / (c(h) + t(h))     (1)
    p_0(w)     = 1 / N_SPELLINGS                                     (2)

with c(h w) the number of times that w followed h, c(h) the sum of c(h w) over w, t(h) the number of different words
that followed h, and h' = h without its first word. Where h was never seen, p_k = p_{k-1}. All words, those that were
never seen too, share (2), so losses compare between corpora and the probabilities of all words sum to one.

To leave a document out, its counts are subtracted: c by the document's own c, t by the number of words that followed h
in this document alone. To let the model read along, what stands earlier in the document is added again. Tests compare
both with models that are really retrained. At the start of a document, h is as long as there are words.
"""

from typing import NamedTuple

import numpy as np

N_SPELLINGS = 2**20  # a million words of a language; a sample has fewer different ones


class Losses(NamedTuple):
    """Nats for each word, one row for each document."""

    by_others: np.ndarray
    """Given all the other documents."""

    by_others_and_past: np.ndarray
    """Given all the other documents and the words before it in its own."""


def leave_one_out(words: np.ndarray, order: int = 3) -> Losses:
    """The losses of every word of every row of `words` under the model (1) of that order."""
    n_documents, n_words = words.shape
    others = np.full(words.shape, 1 / N_SPELLINGS)
    reading = others.copy()
    gram = np.zeros((n_documents, n_words + 1), dtype=np.int64)  # of order 0: the empty one, before and after each word
    for k in range(1, order + 1):
        if n_words < k:
            break
        context = gram[:, :-1]
        gram = _number(context * (words.max() + 1) + words[:, k - 1 :])
        counts = _Counts(context, gram)
        others[:, k - 1 :] = counts.interpolate(others[:, k - 1 :], read_along=False)
        reading[:, k - 1 :] = counts.interpolate(reading[:, k - 1 :], read_along=True)
    return Losses(-np.log(others), -np.log(reading))


class _Counts:
    """The counts of (1) at every place, first without the place's document, then with what came earlier in it."""

    def __init__(self, context: np.ndarray, gram: np.ndarray) -> None:
        row = np.arange(len(gram))[:, None]
        own_gram = _number(gram * len(gram) + row)  # the same words in another document are another one
        own_context = _number(context * len(context) + row)
        first, first_own = _first_places(gram), _first_places(own_gram)
        n_own = _times(own_gram)
        only_here = n_own == _times(gram)  # no other document has it
        self.shape = gram.shape
        self.n_gram = _times(gram) - n_own
        self.n_context = _times(context) - _times(own_context)
        self.n_followers = _sums(first, context) - _sums(first_own & only_here, own_context)
        self.n_gram_past = _earlier(np.ones_like(gram), own_gram)
        self.n_context_past = _earlier(np.ones_like(gram), own_context)
        self.n_followers_past = _earlier(first_own & only_here, own_context)

    def interpolate(self, lower: np.ndarray, read_along: bool) -> np.ndarray:
        c_gram = self.n_gram + read_along * self.n_gram_past
        c_context = self.n_context + read_along * self.n_context_past
        t = self.n_followers + read_along * self.n_followers_past
        return np.where(c_context > 0, (c_gram + t * lower) / np.maximum(c_context + t, 1), lower)  # (1)


def _number(values: np.ndarray) -> np.ndarray:
    """Small numbers for values, equal for equal ones."""
    return np.unique(values, return_inverse=True)[1].reshape(values.shape)


def _times(groups: np.ndarray) -> np.ndarray:
    """How often each entry occurs."""
    return np.bincount(groups.ravel())[groups]


def _sums(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """For each entry, the sum of the values of its group."""
    return np.bincount(groups.ravel(), weights=values.ravel()).astype(np.int64)[groups]


def _first_places(groups: np.ndarray) -> np.ndarray:
    """True where an entry occurs for the first time."""
    first = np.zeros(groups.size, dtype=bool)
    first[np.unique(groups, return_index=True)[1]] = True
    return first.reshape(groups.shape)


def _earlier(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """For each entry, the sum of the values that stand before it in its group."""
    order = np.argsort(groups, axis=None, kind="stable")
    sorted_values, sorted_groups = values.ravel()[order].astype(np.int64), groups.ravel()[order]
    before = np.cumsum(sorted_values) - sorted_values
    starts = np.flatnonzero(np.diff(sorted_groups, prepend=-1))
    before -= np.repeat(before[starts], np.diff(starts, append=groups.size))
    result = np.empty(groups.size, dtype=np.int64)
    result[order] = before
    return result.reshape(groups.shape)
