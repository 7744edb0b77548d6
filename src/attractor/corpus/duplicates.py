"""Documents of one side that stand on the other side, too, word for word or nearly.

A document is a sequence of words, whatever separates them. Its key is a hash of all of them (exact duplicates have the
same key), its sketch those hashes of five words in a row that are 0 modulo m: a sample of what it says that is the same
wherever it is said. Two documents are near duplicates if at least half of the sketch of one of them is in the other's,
so a quotation of a whole document counts, however long the text around it.

All hashes are the polynomial sum_i v_i r^i modulo 2^64 over a stretch of values, found for every stretch at once:

    C_n = sum_{i < n} v_i r^i,   h(a, b) = mix((C_b - C_a) r^-a)                       (1)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np

WORDS = 5
SAMPLED = 8
"""One hash in so many is kept, a power of two."""

NEAR = 0.5
LEAST_SHARED = 3
MOST_HASHES = 8_000_000
"""Of the validation side, in memory at once; a larger one is sampled more thinly."""

MOST_OWNERS = 8
"""Validation documents that are considered for one hash: a phrase in thousands of them says nothing about any."""

RADIX = 0x9E3779B97F4A7C15
ROW = 4096  # r^i is r^(4096 j) r^k, so that two short tables give any power
SPACES = np.isin(np.arange(256), np.frombuffer(b" \t\n\r\x0b\x0c", dtype=np.uint8))


class Side(Protocol):
    """The keys of the documents in order, and their sketches one after another, in portions of whole documents."""

    @property
    def keys(self) -> np.ndarray: ...

    @property
    def n_hashes(self) -> np.ndarray: ...

    def sketches(self) -> Iterator[tuple[int, int, np.ndarray]]:
        """First document, document behind the last, and the hashes of all between."""


@dataclass(frozen=True)
class Duplicates:
    """Documents of the training side in order, each with the validation document that it is most like."""

    train: np.ndarray
    valid: np.ndarray
    exact: np.ndarray
    share: np.ndarray
    sampled: int


def sketch(texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The texts' keys, the sizes of their sketches, and the sketches one after another, without repetition in each."""
    signs = np.frombuffer(b" ".join(texts), dtype=np.uint8)
    between = np.ones(len(signs) + 2, dtype=bool)
    np.take(SPACES, signs, out=between[1:-1])
    starts = np.flatnonzero(between[:-1] & ~between[1:])
    ends = np.flatnonzero(~between[:-1] & between[1:])
    words = _hashes(np.take(_signs(), signs), starts, ends)
    text_ends = np.cumsum([len(text) + 1 for text in texts])
    last = np.searchsorted(starts, text_ends)
    first = np.concatenate(([0], last[:-1]))
    keys = _hashes(words, first, last)

    at = np.arange(max(len(words) - WORDS + 1, 0))
    hashes = _hashes(words, at, at + WORDS)
    at = np.flatnonzero(hashes & np.uint64(SAMPLED - 1) == 0)
    owner = np.searchsorted(last, at, side="right")
    inside = at + WORDS <= last[owner]
    hashes, owner = hashes[at[inside]], owner[inside]
    order = np.lexsort((hashes, owner))
    hashes, owner = hashes[order], owner[order]
    fresh = np.ones(len(hashes), dtype=bool)
    fresh[1:] = (hashes[1:] != hashes[:-1]) | (owner[1:] != owner[:-1])
    return keys, np.bincount(owner[fresh], minlength=len(texts)), hashes[fresh]


def find(train: Side, valid: Side) -> Duplicates:
    """Every training document that is a duplicate of a validation document."""
    sampled = SAMPLED
    while valid.n_hashes.sum() * SAMPLED > MOST_HASHES * sampled:
        sampled *= 2
    owned = [_thinned(valid, *portion, sampled) for portion in valid.sketches()]
    hashes = np.concatenate([np.empty(0, dtype=np.uint64), *(part for part, _ in owned)])
    owner = np.concatenate([np.empty(0, dtype=np.int64), *(part for _, part in owned)])
    sizes = np.bincount(owner, minlength=len(valid.keys))
    order = np.argsort(hashes, kind="stable")
    hashes, owner = hashes[order], owner[order]
    near = [_near(*_thinned(train, *portion, sampled), hashes, owner, sizes) for portion in train.sketches()]

    valid_order = np.argsort(valid.keys, kind="stable")
    place = np.searchsorted(valid.keys[valid_order], train.keys)
    twin = valid_order[np.minimum(place, len(valid_order) - 1)]
    exact = np.flatnonzero(valid.keys[twin] == train.keys)

    best = {int(t): (int(v), False, float(s)) for part in near for t, v, s in zip(*part, strict=True)}
    best |= {int(t): (int(twin[t]), True, 1.0) for t in exact}
    found = sorted(best)
    return Duplicates(
        train=np.array(found, dtype=np.int64),
        valid=np.array([best[t][0] for t in found], dtype=np.int64),
        exact=np.array([best[t][1] for t in found], dtype=bool),
        share=np.array([best[t][2] for t in found]),
        sampled=sampled,
    )


def _thinned(side: Side, first: int, behind: int, hashes: np.ndarray, sampled: int) -> tuple[np.ndarray, np.ndarray]:
    owner = np.repeat(np.arange(first, behind), side.n_hashes[first:behind])
    kept = hashes % np.uint64(sampled) == 0
    return hashes[kept], owner[kept]


def _near(
    hashes: np.ndarray, owner: np.ndarray, valid_hashes: np.ndarray, valid_owner: np.ndarray, valid_sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of these training documents those that are near duplicates, of which one, and the share that says so."""
    if not len(hashes):
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0)
    left = np.searchsorted(valid_hashes, hashes, side="left")
    n_owners = np.minimum(np.searchsorted(valid_hashes, hashes, side="right") - left, MOST_OWNERS)
    ours = np.repeat(owner, n_owners)
    nth = np.arange(len(ours)) - np.repeat(np.cumsum(n_owners) - n_owners, n_owners)
    theirs = valid_owner[np.repeat(left, n_owners) + nth]
    pairs, shared = np.unique(ours * len(valid_sizes) + theirs, return_counts=True)
    ours, theirs = np.divmod(pairs, len(valid_sizes))
    sizes = np.bincount(owner - owner[0])
    share = shared / np.minimum(sizes[ours - owner[0]], valid_sizes[theirs])
    wanted = (shared >= LEAST_SHARED) & (share >= NEAR)
    ours, theirs, share = ours[wanted], theirs[wanted], share[wanted]
    order = np.lexsort((theirs, -share, ours))  # the largest share first, then the earlier document
    ours, theirs, share = ours[order], theirs[order], share[order]
    _, first = np.unique(ours, return_index=True)
    return ours[first], theirs[first], share[first]


def _hashes(values: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """(1) for each stretch from a start up to its end."""
    rows = -(-len(values) // ROW)
    low, high = _powers(RADIX, ROW), _powers(pow(RADIX, ROW, 2**64), rows)
    sums = np.zeros(len(values) + 1, dtype=np.uint64)
    np.multiply(values, np.multiply.outer(high, low).ravel()[: len(values)], out=sums[1:])
    np.cumsum(sums, out=sums)
    back = pow(RADIX, -1, 2**64)  # an odd number has an inverse
    low, high = _powers(back, ROW), _powers(pow(back, ROW, 2**64), rows + 1)
    hashes = (sums[ends] - sums[starts]) * high[starts // ROW] * low[starts % ROW]
    hashes ^= hashes >> np.uint64(32)
    hashes *= np.uint64(RADIX)
    hashes ^= hashes >> np.uint64(29)
    return hashes


def _powers(radix: int, n: int) -> np.ndarray:
    """radix^i for i < n, modulo 2^64."""
    factors = np.full(n, radix, dtype=np.uint64)
    factors[:1] = 1
    return np.cumprod(factors)


@cache
def _signs() -> np.ndarray:
    """A large number for every byte, so that short words differ in all bits."""
    return np.random.Philox(key=np.array([0, 0], dtype=np.uint64)).random_raw(256)
