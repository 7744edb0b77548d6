"""Order training data by a function of (seed, step), so that resuming needs no loader state."""

from collections.abc import Iterator

import numpy as np

from attractor.corpus.shards import Tokens
from attractor.errors import InputError
from attractor.tasks.epochs import Epochs
from attractor.tasks.task import Batch, numbered_batches


class Windows(Epochs):
    """An endless sequence of training samples. Sample i belongs to epoch i // n_windows.

    An epoch lays a grid of windows over the tokens, with an offset of its own, and visits each window once. A window
    has seq_len + 1 tokens and shares its last one with the next window, so no token is predicted twice.
    """

    def __init__(self, tokens: np.ndarray | Tokens, seq_len: int, seed: int) -> None:
        check_length(tokens, seq_len)
        self.tokens = tokens
        self.seq_len = seq_len
        # These windows fit behind every offset below seq_len, since their count must be the same in every epoch.
        self.n_windows = max(1, (len(tokens) - seq_len) // seq_len)
        super().__init__(self.n_windows, seed)

    def batch(self, step: int, batch_size: int) -> Batch:
        """Return the batch of a step. Steps are counted from 0."""
        return self.samples(step * batch_size, batch_size)

    def samples(self, first: int, count: int) -> Batch:
        """Return samples first .. first + count - 1, which may be the share of a rank or a micro-batch."""
        return _cut(self.tokens, self.examples(first, count), self.seq_len)

    def visited(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """Return where the windows at these places in the order of an epoch start."""
        room = len(self.tokens) - 1 - self.n_windows * self.seq_len
        offset = int(self.draws(epoch, 1)[0]) % min(self.seq_len, room + 1)
        return offset + self.seq_len * super().visited(epoch, places)

    def order(self, epoch: int) -> np.ndarray:
        """Return the windows of an epoch in their order. The first random number gives the offset."""
        return np.argsort(self.draws(epoch, self.n_windows + 1)[1:], kind="stable")


def evaluation_batches(
    tokens: np.ndarray | Tokens, seq_len: int, batch_size: int, max_batches: int | None = None
) -> Iterator[Batch]:
    """Return batches of windows spread evenly over the tokens, the same for every run. None takes every window once.

    The last batch is smaller when the windows do not fill it.
    """
    check_length(tokens, seq_len)
    batches = numbered_batches((len(tokens) - 1) // seq_len, batch_size, max_batches, spread=True)
    return (_cut(tokens, windows * seq_len, seq_len) for windows in batches)


def check_length(tokens: np.ndarray | Tokens, seq_len: int, what: str = "a corpus") -> None:
    """Refuse fewer than seq_len + 1 tokens: a window of seq_len inputs needs one more token, its last target."""
    if seq_len < 1:
        raise InputError(f"seq_len must be at least 1, but is {seq_len}; give a positive number of tokens")
    if len(tokens) <= seq_len:
        raise InputError(
            f"{what} must have at least seq_len + 1 = {seq_len + 1} tokens, but has {len(tokens)}; "
            "give more text or a smaller seq_len"
        )


def _cut(tokens: np.ndarray | Tokens, starts: np.ndarray, seq_len: int) -> Batch:
    """Cut windows out of the tokens. Targets are copies, so that a caller may mask them in place."""
    windows = tokens[starts[:, None] + np.arange(seq_len + 1)].astype(np.int64)
    return Batch(windows[:, :-1].copy(), windows[:, 1:].copy())
