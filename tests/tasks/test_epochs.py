"""The order of a fixed set: an epoch is a permutation, and a sample needs no earlier sample."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from attractor.tasks.epochs import MOST_SORTED, N_ROUNDS, Epochs, permuted
from tiers import fast_alone


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


@given(st.integers(1, 5000), st.integers(0, 2**32))
def test_a_computed_order_is_a_permutation(n: int, seed: int) -> None:
    order = permuted(np.arange(n), n, Epochs(n, seed).draws(0, N_ROUNDS))
    assert np.array_equal(np.sort(order), np.arange(n))
    places = np.random.default_rng(seed).integers(0, n, 20)
    assert np.array_equal(permuted(places, n, Epochs(n, seed).draws(0, N_ROUNDS)), order[places])


@pytest.mark.parametrize("n", fast_alone([7, 64, 100, 1000], 7))
def test_a_computed_order_is_uniform(n: int) -> None:
    """Criterion: over 4,000 seeds, the chi-squared statistics of the image of a place, and of the distance between the
    images of two neighbours, stay below the point that one in a million exceeds."""
    places = np.array([0, 1, n // 2, n - 1])
    images = np.array([permuted(places, n, Epochs(n, seed).draws(0, N_ROUNDS)) for seed in range(4000)])
    distances = (images[:, 1] - images[:, 0]) % n - 1
    for numbers, n_kinds in [*((images[:, place], n) for place in range(4)), (distances, n - 1)]:
        expected = len(images) / n_kinds
        statistic = float(((np.bincount(numbers, minlength=n_kinds) - expected) ** 2 / expected).sum())
        assert statistic < chi2.isf(1e-6, n_kinds - 1)


def test_neighbours_of_a_computed_order_are_independent() -> None:
    """Criterion: the rank correlation of a place with its image, and of an image with the next one, is below five
    standard errors."""
    n = 100_003
    order = permuted(np.arange(n), n, Epochs(n, 5).draws(3, N_ROUNDS))
    for before, after in ((np.arange(n), order), (order[:-1], order[1:])):
        assert abs(np.corrcoef(before, after)[0, 1]) < 5 / math.sqrt(n)


def test_a_large_epoch_needs_no_memory_for_its_order() -> None:
    """Criterion: two batches of 10 billion examples, one of which enters the next epoch, take under a megabyte."""
    n = 10**10
    tracemalloc.start()
    samples = Epochs(n, seed=1).examples(0, 512), Epochs(n, seed=1).examples(n - 256, 512)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
    assert all(part.min() >= 0 and part.max() < n and len(np.unique(part)) == 512 for part in samples)


def test_the_computed_order_never_changes_between_versions() -> None:
    assert (MOST_SORTED, N_ROUNDS) == (2**24, 8)
    assert Epochs(2**24 + 1, seed=7).examples(2**24 - 1, 4).tolist() == [2028739, 15828961, 15173748, 525557]
