"""The order of a fixed set: an epoch is a permutation, and a sample needs no earlier sample."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from attractor.tasks.epochs import Epochs


@given(st.integers(1, 60), st.integers(0, 2**64 - 1), st.integers(0, 3))
def test_an_epoch_visits_every_example_once(n_examples: int, seed: int, epoch: int) -> None:
    visited = Epochs(n_examples, seed).examples(epoch * n_examples, n_examples)
    assert sorted(visited) == list(range(n_examples))


@given(st.integers(1, 20), st.integers(0, 70), st.integers(1, 50), st.integers(0, 50))
def test_a_sample_is_the_concatenation_of_its_parts(n_examples: int, first: int, count: int, cut: int) -> None:
    cut = min(cut, count - 1)
    whole = Epochs(n_examples, seed=3).examples(first, count)
    parts = [(first + cut, count - cut), (first, cut)]
    tail, head = (Epochs(n_examples, seed=3).examples(*part) if part[1] else whole[:0] for part in parts)
    assert np.array_equal(whole, np.concatenate([head, tail]))


def test_seeds_and_epochs_differ_in_order() -> None:
    orders = {tuple(Epochs(50, seed).examples(epoch * 50, 50)) for seed in (0, 1) for epoch in (0, 1)}
    assert len(orders) == 4


def test_the_order_never_changes_between_versions() -> None:
    """These are golden numbers: a run that resumes under another version of NumPy or attractor must see the same
    data."""
    assert Epochs(10, seed=7).examples(8, 6).tolist() == [9, 0, 3, 9, 1, 6]
