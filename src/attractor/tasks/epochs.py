"""Order a fixed set of examples by a function of (seed, sample), so that resuming needs no loader state."""

import numpy as np

from attractor.errors import InputError

MOST_SORTED = 2**24
"""Up to this many examples, an epoch is ordered by sorting random numbers, which takes 24 bytes an example. Beyond it,
the order is computed for the asked places alone. The bound is part of the order of data, so it must not change."""

N_ROUNDS = 8


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
        if self.n_examples > MOST_SORTED:
            return permuted(places, self.n_examples, self.draws(epoch, 1 + N_ROUNDS)[1:])
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


def permuted(places: np.ndarray, n: int, keys: np.ndarray) -> np.ndarray:
    """Return the images of these places under a permutation of 0 .. n - 1, which the keys determine.

    The memory does not grow with n. The permutation is a Feistel network on 2h bits, the smallest even number of bits
    that hold n - 1. Such a network is a permutation of all numbers of 2h bits. A value of n or more is sent through the
    network again until it is smaller, which takes fewer than four times on average.
    """
    half = np.uint64(max(1, ((n - 1).bit_length() + 1) // 2))
    lower = (np.uint64(1) << half) - np.uint64(1)
    values = places.astype(np.uint64)
    outside = np.arange(len(values))
    while len(outside):
        left, right = values[outside] >> half, values[outside] & lower
        for key in keys:
            left, right = right, left ^ (_mixed(right + key) & lower)
        values[outside] = (left << half) | right
        outside = outside[values[outside] >= n]
    return values.astype(np.int64)


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """Mix the bits of 64-bit numbers (the last step of SplitMix64: Steele, Lea and Flood 2014)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
