"""Compute the loss of every document under an n-gram model of all other documents, exactly and without retraining.

The model is interpolated, with the weights of Witten and Bell (1991): for a word w after the words h of order k - 1,

    p_k(w | h) = (c(h w) + t(h) p_{k-1}(w | h')) / (c(h) + t(h))     (1)
    p_0(w)     = 1 / N_SPELLINGS                                     (2)

with c(h w) the number of times that w followed h, c(h) the sum of c(h w) over w, t(h) the number of different words
that followed h, and h' = h without its first word. Where h was never seen, p_k = p_{k-1}. All words, including those
never seen, share (2), so probabilities sum to one and losses are comparable between corpora.

To leave a document out, its counts are subtracted: from c the document's own c, from t the number of words that
followed h in this document alone. For the loss given the past, the counts of the earlier part of the document are added
again. Tests compare both with retrained models. At the start of a document, h has as many words as there are.
"""

from typing import NamedTuple

import numpy as np

N_SPELLINGS = 2**20  # the assumed vocabulary, larger than the number of different words in any sample


class Losses(NamedTuple):
    """The loss of every word in nats, one row for each document."""

    by_others: np.ndarray
    """Under the model of all other documents."""

    by_others_and_past: np.ndarray
    """Under the model of all other documents and of the preceding words of the same document."""


def leave_one_out(words: np.ndarray, order: int = 3) -> Losses:
    """Return the losses of every word of every row of `words` under the model (1) of that order."""
    n_documents, n_words = words.shape
    others = np.full(words.shape, 1 / N_SPELLINGS)
    reading = others.copy()
    gram = np.zeros((n_documents, n_words + 1), dtype=np.int64)  # the empty n-gram, before and after each word
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
    """The counts of (1) at every position, over other documents and over the past of the position's document."""

    def __init__(self, context: np.ndarray, gram: np.ndarray) -> None:
        row = np.arange(len(gram))[:, None]
        own_gram = _number(gram * len(gram) + row)  # n-grams numbered separately in each document
        own_context = _number(context * len(context) + row)
        first, first_own = _first_places(gram), _first_places(own_gram)
        n_own = _times(own_gram)
        only_here = n_own == _times(gram)  # no other document has this n-gram
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
    """Replace values by small numbers, equal ones by equal ones."""
    return np.unique(values, return_inverse=True)[1].reshape(values.shape)


def _times(groups: np.ndarray) -> np.ndarray:
    """Return for each entry how often it occurs."""
    return np.bincount(groups.ravel())[groups]


def _sums(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return for each entry the sum of the values of its group."""
    return np.bincount(groups.ravel(), weights=values.ravel()).astype(np.int64)[groups]


def _first_places(groups: np.ndarray) -> np.ndarray:
    """Return True where an entry occurs for the first time."""
    first = np.zeros(groups.size, dtype=bool)
    first[np.unique(groups, return_index=True)[1]] = True
    return first.reshape(groups.shape)


def _earlier(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return for each entry the sum of the values before it in its group."""
    order = np.argsort(groups, axis=None, kind="stable")
    sorted_values, sorted_groups = values.ravel()[order].astype(np.int64), groups.ravel()[order]
    before = np.cumsum(sorted_values) - sorted_values
    starts = np.flatnonzero(np.diff(sorted_groups, prepend=-1))
    before -= np.repeat(before[starts], np.diff(starts, append=groups.size))
    result = np.empty(groups.size, dtype=np.int64)
    result[order] = before
    return result.reshape(groups.shape)
