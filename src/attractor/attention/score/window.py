"""A sliding window: a query sees its own position and the W - 1 positions before it, as Hugging Face counts it.

    query t sees the keys s with t - W < s <= t                                                             (1)

The definition is the mask of (1), T x S. `in_blocks` computes the same without it. The first F >= W - 1 queries see the
first F keys by the mask. The others are blocks of C queries, and each block sees its own keys and the F before them:

    block of queries t0 ... t0 + C - 1:   keys t0 - F ... t0 + C - 1,   F = C ceil((W - 1) / C)             (2)

The blocks lie side by side in the batch, so one call computes them with one mask of C x (F + C), on any device. Time
and memory are linear in T. A block of half the window was the fastest on a CPU (LOG.md, 2026-11-24).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attractor.attention.mask import Mask, lower_triangle

LEAST, MOST = 32, 512  # queries in a block
Attend = Callable[[Tensor, Tensor, Tensor, Mask], Tensor]  # of q, k, v and a mask


def block_sizes(window: int) -> tuple[int, int]:
    """Return C and F of (2)."""
    rows = max(LEAST, min(MOST, window // 2))
    return rows, rows * max(1, -(-(window - 1) // rows))


def in_blocks(
    attend: Attend,
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B J S K"],
    v: Float[Tensor, "B J S V"],
    window: int,
) -> Tensor:
    """Return the result of `attend`, B H T or B H T V, under (1) for the last T of S positions."""
    n_queries, n_keys = q.shape[2], k.shape[2]
    rows, first = block_sizes(window)

    def seen(n_queries: int, n_keys: int) -> Mask:
        return Mask(allowed=lower_triangle(n_queries, n_keys, q.device, window))  # (1)

    if n_queries < window or n_keys < first + rows:
        return attend(q, k, v, seen(n_queries, n_keys))
    if n_keys > n_queries:  # the keys before the first query are from a cache
        q = F.pad(q, (0, 0, n_keys - n_queries, 0))
    start = Mask(causal=True) if first <= window else seen(first, first)
    head = attend(q[:, :, :first], k[:, :, :first], v[:, :, :first], start)
    n_blocks = -(-(n_keys - first) // rows)
    missing = first + n_blocks * rows - n_keys
    if missing:  # only the added queries, which are dropped, see the added keys
        q, k, v = (F.pad(x, (0, 0, 0, missing)) for x in (q, k, v))

    def with_past(x: Tensor) -> Tensor:
        """Return every block of keys after the F keys before it: (B blocks) J (F + C) K."""
        blocks = x.unflatten(2, (-1, rows)).transpose(1, 2)
        return torch.cat([blocks[:, i : i + n_blocks] for i in range(first // rows + 1)], dim=3).flatten(0, 1)

    queries = q[:, :, first:].unflatten(2, (n_blocks, rows)).transpose(1, 2).flatten(0, 1)
    tail = attend(queries, with_past(k), with_past(v), seen(rows, first + rows))  # (2)
    tail = tail.unflatten(0, (-1, n_blocks)).transpose(1, 2).flatten(2, 3)
    return torch.cat([head, tail], dim=2)[:, :, n_keys - n_queries : n_keys]


def pairs_seen(length: int, window: int | None) -> int:
    """Return the number of pairs of a query and a key that it sees, in a causal sequence."""
    width = length if window is None else min(window, length)
    return width * length - width * (width - 1) // 2


def pairs_computed(length: int, window: int | None) -> int:
    """Return the number of pairs in the products of a causal sequence, as `in_blocks` computes them."""
    if window is None or window >= length:
        return length**2
    rows, first = block_sizes(window)
    if length < first + rows:
        return length**2
    return first**2 + -(-(length - first) // rows) * rows * (first + rows)
