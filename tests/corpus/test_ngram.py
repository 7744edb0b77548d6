"""Leaving out a document by subtraction equals a model that was trained without it."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attractor.corpus.ngram import N_SPELLINGS, leave_one_out

Sentence = Sequence[int]

corpora = st.tuples(st.integers(2, 6), st.integers(1, 9), st.integers(1, 4)).flatmap(
    lambda shape: st.lists(
        st.lists(st.integers(0, shape[2] - 1), min_size=shape[1], max_size=shape[1]),
        min_size=shape[0],
        max_size=shape[0],
    )
)


class PlainModel:
    """Witten and Bell's model in dictionaries, trained one word after another."""

    def __init__(self, order: int, documents: Iterable[Sentence] = ()) -> None:
        self.order = order
        self.followers: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for document in documents:
            for place in range(len(document)):
                self.learn(document, place)

    def learn(self, document: Sentence, place: int) -> None:
        for k in range(min(self.order, place + 1)):
            self.followers[tuple(document[place - k : place])][document[place]] += 1

    def probability(self, document: Sentence, place: int) -> float:
        p = 1 / N_SPELLINGS
        for k in range(min(self.order, place + 1)):
            seen = self.followers.get(tuple(document[place - k : place]))
            if seen:
                p = (seen[document[place]] + len(seen) * p) / (seen.total() + len(seen))
        return p


@given(corpora, st.integers(1, 4))
def test_subtracting_a_document_is_training_without_it(corpus: list[list[int]], order: int) -> None:
    losses = leave_one_out(np.array(corpus), order)
    for number, document in enumerate(corpus):
        model = PlainModel(order, corpus[:number] + corpus[number + 1 :])
        expected = [-math.log(model.probability(document, place)) for place in range(len(document))]
        assert losses.by_others[number] == pytest.approx(expected, rel=1e-12)


@given(corpora, st.integers(1, 4))
def test_the_loss_given_the_past_is_that_of_learning_word_by_word(corpus: list[list[int]], order: int) -> None:
    losses = leave_one_out(np.array(corpus), order)
    for number, document in enumerate(corpus):
        model = PlainModel(order, corpus[:number] + corpus[number + 1 :])
        for place in range(len(document)):
            expected = -math.log(model.probability(document, place))
            assert losses.by_others_and_past[number, place] == pytest.approx(expected, rel=1e-12)
            model.learn(document, place)


def test_ids_of_words_do_not_matter() -> None:
    rng = np.random.default_rng(0)
    words = rng.integers(30, size=(20, 15))
    renamed = rng.permutation(30)[words]
    np.testing.assert_allclose(leave_one_out(words).by_others, leave_one_out(renamed).by_others)


def test_a_document_of_words_that_no_other_has_costs_the_loss_of_new_words() -> None:
    words = np.zeros((3, 4), dtype=int)
    words[2] = (1, 2, 3, 4)
    new_word = -math.log(1 / 9 / N_SPELLINGS)  # the other documents have eight words, all equal
    np.testing.assert_allclose(leave_one_out(words, 2).by_others[2], new_word)


def test_with_enough_text_the_loss_is_the_entropy() -> None:
    words = np.random.default_rng(0).integers(20, size=(400, 100))
    assert leave_one_out(words, 1).by_others.mean() == pytest.approx(math.log(20), abs=5e-3)
