"""Order a fixed set of examples by a function of (seed, sample), so that resuming needs no loader state."""

import numpy as np

from attractor.errors import InputError


class Epochs:
    """An endless sequence of samples. Sample i belongs to epoch i // n_examples, which visits every example once.

    The permutation comes from Philox, keyed by (seed, epoch), so no epoch needs the one before it.
    """

    def __init__(self, n_examples: int, seed: int) -> None:
        philox_key(seed, 0)
        self.n_examples = n_examples
        self.seed = seed
        self._cached: tuple[int, np.ndarray] = (-1, np.empty(0, dtype=np.int64))  # the latest epoch and its order

    def examples(self, first: int, count: int) -> np.ndarray:
        """Return the examples that are samples first .. first + count - 1."""
        epochs, places = np.divmod(np.arange(first, first + count), self.n_examples)
        return np.concatenate([self.visited(int(epoch), places[epochs == epoch]) for epoch in np.unique(epochs)])

    def visited(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """Return the examples at these places in the order of an epoch."""
        if self._cached[0] != epoch:
            self._cached = (epoch, self.order(epoch))
        return self._cached[1][places]

    def order(self, epoch: int) -> np.ndarray:
        """Return the examples of an epoch in their order."""
        return np.argsort(self.draws(epoch, self.n_examples), kind="stable")

    def draws(self, epoch: int, count: int) -> np.ndarray:
        """Draw raw Philox output, the one stream that NumPy promises never to change; Generator methods may."""
        return np.random.Philox(key=philox_key(self.seed, epoch)).random_raw(count)


def philox_key(seed: int, number: int) -> np.ndarray:
    """Return Philox's key of the stream of random numbers that has this number under a seed."""
    if not 0 <= seed < 2**64:
        raise InputError(f"seed must be between 0 and 2**64 - 1, but is {seed}; give a non-negative integer")
    return np.array([seed, number], dtype=np.uint64)


def philox_draws(seed: int, stream: int, numbers: np.ndarray, n_raw: int) -> np.ndarray:
    """Return n_raw random numbers for each of these examples. Philox's counter holds the example's number, so no two
    examples share a draw."""
    key = philox_key(seed, stream)
    raws = [np.random.Philox(key=key, counter=int(number) << 64).random_raw(n_raw) for number in numbers]
    return np.stack(raws) if raws else np.empty((0, n_raw), dtype=np.uint64)
