"""The order of data is a function of (seed, step) alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from attractor.tasks.order import Windows, evaluation_batches

sizes = st.integers(1, 12).flatmap(lambda seq_len: st.tuples(st.integers(seq_len + 1, 300), st.just(seq_len)))


@given(sizes, st.integers(0, 2**64 - 1), st.integers(0, 3))
def test_an_epoch_visits_every_window_of_its_grid_once(size: tuple[int, int], seed: int, epoch: int) -> None:
    n_tokens, seq_len = size
    windows = Windows(np.arange(n_tokens), seq_len, seed)
    inputs, targets, _ = windows.samples(epoch * windows.n_windows, windows.n_windows)
    starts = np.sort(inputs[:, 0])
    assert np.array_equal(starts, starts[0] + seq_len * np.arange(windows.n_windows))
    assert len(np.unique(targets)) == targets.size, "no token may be predicted twice in an epoch"
    assert n_tokens - 1 - targets.size < 2 * seq_len, "less than one window may be lost at each end"


@given(st.integers(0, 60), st.integers(1, 40), st.integers(0, 40))
def test_a_batch_is_the_concatenation_of_its_micro_batches(step: int, batch_size: int, cut: int) -> None:
    windows = Windows(np.arange(100), 7, seed=3)
    cut = min(cut, batch_size - 1)
    whole = windows.batch(step, batch_size)
    shares = [(step * batch_size, cut), (step * batch_size + cut, batch_size - cut)]
    parts = [windows.samples(first, count) for first, count in shares if count]
    for side in (0, 1):
        assert np.array_equal(whole[side], np.concatenate([part[side] for part in parts]))


def test_targets_are_the_inputs_one_token_later_and_may_be_masked_alone() -> None:
    inputs, targets, _ = Windows(np.arange(1000, dtype=np.uint16), 16, seed=0).batch(2, 4)
    assert inputs.shape == targets.shape == (4, 16)
    assert inputs.dtype == targets.dtype == np.int64
    assert np.array_equal(targets, inputs + 1)
    before = inputs.copy()
    targets[:] = -100
    assert np.array_equal(inputs, before)


def test_the_order_never_changes_between_versions() -> None:
    """These are golden numbers: a run that resumes under another version of NumPy or attractor must see the same
    data."""
    assert Windows(np.arange(100), 8, seed=7).samples(0, 5)[0][:, 0].tolist() == [60, 28, 4, 44, 20]


def test_seeds_and_epochs_differ_in_order_and_in_offset() -> None:
    def epoch(seed: int, number: int) -> list[int]:
        windows = Windows(np.arange(10_000), 50, seed)
        return windows.samples(number * windows.n_windows, windows.n_windows)[0][:, 0].tolist()

    orders = [epoch(0, 0), epoch(0, 1), epoch(1, 0), epoch(1, 1)]
    assert len({tuple(order) for order in orders}) == 4
    assert len({min(order) for order in orders}) > 1


def test_evaluation_windows_are_spread_evenly() -> None:
    batches = list(evaluation_batches(np.arange(1001), 10, batch_size=4, max_batches=5))
    assert np.array_equal(np.concatenate([inputs[:, 0] for inputs, _, _ in batches]), np.arange(20) * 50)
    assert all(np.array_equal(targets, inputs + 1) for inputs, targets, _ in batches)


@given(sizes, st.integers(1, 20))
def test_evaluation_without_a_limit_predicts_every_whole_window_once(size: tuple[int, int], batch_size: int) -> None:
    n_tokens, seq_len = size
    batches = evaluation_batches(np.arange(n_tokens), seq_len, batch_size)
    predicted = np.concatenate([targets.ravel() for _, targets, _ in batches])
    assert np.array_equal(predicted, 1 + np.arange((n_tokens - 1) // seq_len * seq_len))
