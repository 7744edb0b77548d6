"""Windows over a long text predict no token twice, and each token with at least the promised context."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attractor.errors import InputError
from attractor.evaluate.texts.windows import stride_of, window_of, windows
from tiny_causal import N_POSITIONS, bytes_causal

CUTS = st.integers(1, 12).flatmap(lambda window: st.tuples(st.just(window), st.integers(1, window)))


@given(st.integers(1, 60), CUTS)
def test_every_token_is_predicted_once_with_at_least_the_promised_context(n: int, cut: tuple[int, int]) -> None:
    window, stride = cut
    found = list(windows(n, window, stride))
    assert [i for w in found for i in range(w.end - w.n_scored, w.end)] == list(range(n))
    for w in found:
        assert 1 <= w.n_scored <= w.end - w.begin <= window
        before = w.end - w.n_scored - w.begin  # the first target also has its own input token
        assert before + 1 > min(window - stride, w.end - w.n_scored)


@given(st.integers(1, 60), st.integers(1, 12))
def test_a_stride_of_the_window_gives_adjacent_windows_and_a_long_window_covers_the_text(n: int, window: int) -> None:
    found = list(windows(n, window, window))
    assert all(w.n_scored == w.end - w.begin for w in found)
    assert all(w.end == following.begin for w, following in pairwise(found))
    assert list(windows(n, n + window, window)) == [(0, n, n)]


def test_a_window_is_within_the_limits_of_the_model() -> None:
    ends, endless = bytes_causal(), bytes_causal(positions="rope")
    assert window_of(ends, None) == N_POSITIONS
    assert window_of(endless, 10 * N_POSITIONS) == 10 * N_POSITIONS
    for window, stride in ((0, None), (N_POSITIONS + 1, None), (8, 0), (8, 9)):
        with pytest.raises(InputError, match=r"(window|stride) must be"):
            stride_of(window_of(ends, window), stride)
