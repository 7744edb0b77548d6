"""A sliding window: a query sees its own position and the W - 1 positions before it, as Hugging Face counts it.

    query t sees the keys s with t - W < s <= t                                                             (1)

The definition is the mask of (1), T x S. `in_blocks` computes the same without it. The first F >= W - 1 queries see the
first F keys by the mask. The others are blocks of C queries, and each block sees its own keys and the F before them:

    block of queries t0 ... t0 + C - 1:   keys t0 - F ... t0 + C - 1,   F = C ceil((W - 1) / C)             (2)

The blocks lie side by side in the batch, so one call computes them with one mask of C x (F + C), on any device. Time
and memory are linear in T. A block of half the window was the fastest on a CPU (LOG.md, 2026-11-24).

Training on a GPU, torch's FlexAttention computes (1) with a soft-cap or without. It skips the tiles of 128 x 128 pairs
that no query sees, and copies no keys.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attractor.attention.mask import Mask, lower_triangle
from attractor.kernels.fallback import use_kernel

TILE = 128  # queries, and keys, of a tile of FlexAttention
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


def suits_flex(q: Tensor, dropout: float) -> bool:
    """Return whether FlexAttention takes such queries. Its compiled code is for one shape, as training has it."""
    if not (q.requires_grad and torch.is_grad_enabled()):
        return False
    limits = {"it has no dropout": dropout > 0, "heads are narrower than 16": q.shape[-1] < 16}
    limits["it does not compute in fp64"] = q.dtype == torch.float64
    return use_kernel("windows", q, next((why for why, holds in limits.items() if holds), None))


def tiles_seen(n_queries: int, n_keys: int, window: int, device: torch.device) -> Any:
    """Return the `BlockMask` of (1) for the last queries: for each tile of queries its tiles of keys, one after
    another."""
    from torch.nn.attention.flex_attention import BlockMask

    past = n_keys - n_queries

    def seen(_: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query + past) & (key > query + past - window)  # (1)

    first_query = torch.arange(past, n_keys, TILE, device=device)
    first = (first_query - window + 1).clamp(min=0) // TILE
    last = (first_query + TILE - 1).clamp(max=n_keys - 1) // TILE
    columns = torch.arange(-(-n_keys // TILE), device=device)
    indices = (first[:, None] + columns).clamp(max=len(columns) - 1)
    numbers = (last - first + 1)[None, None].int()
    lengths = (n_queries, n_keys)
    return BlockMask.from_kv_blocks(
        numbers, indices[None, None].int(), BLOCK_SIZE=TILE, mask_mod=seen, seq_lengths=lengths
    )


def by_flex(q: Tensor, k: Tensor, v: Tensor, window: int, scale: float, softcap: float | None = None) -> Tensor:
    """Return softmax attention under (1) by FlexAttention, which must be compiled to be fast."""
    from torch.nn.attention.flex_attention import flex_attention

    def capped(logit: Tensor, *_: Tensor) -> Tensor:
        return cast(float, softcap) * (logit / cast(float, softcap)).tanh()

    change = None if softcap is None else capped
    is_compiling = torch.compiler.is_compiling()  # a compiler does not see what is kept between calls
    tiles = (tiles_seen if is_compiling else _kept_tiles)(q.shape[2], k.shape[2], window, q.device)
    attend: Any = flex_attention if is_compiling else _compiled_flex()
    context: Tensor = attend(q, k, v, change, tiles, scale, q.shape[1] != k.shape[1])
    return context


_kept_tiles = lru_cache(maxsize=8)(tiles_seen)


@cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


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
