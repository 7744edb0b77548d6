"""The cache of one attention layer during decoding: the tensors that the layer appends, position by position.

A layer may also keep tensors of constant size in `state` (B ...), by which a recurrence or a convolution goes on. They
cannot be undone, so a cache that has some cannot forget positions again.

The layer decides what to append (scored keys and values, or MLA's latents), so `n_numbers` measures the state size of
any mechanism. Capacity grows by doubling, so appending costs O(1) copies per position. For a layer with a window, the
cache holds only the last `window` positions.
"""

import torch
from torch import Tensor

from attractor.errors import InputError, require


class Cache:
    def __init__(self, window: int | None = None) -> None:
        self.window = window
        self.length = 0  # all positions so far
        self._buffers: list[Tensor] = []
        self.state: list[Tensor] = []

    def append(self, *new: Tensor) -> list[Tensor]:
        """Add positions along dimension 2 (B H T W) of each tensor; return all positions that a new one may see."""
        for held, x in zip(self._buffers, new, strict=False):  # the first time nothing is held
            if held.shape[:2] != x.shape[:2] or held.shape[3] != x.shape[3]:
                raise InputError(
                    f"cache must be given {_sizes(held)}, as it holds, got {_sizes(x)}; make a cache for each batch by "
                    "new_cache(), or change its sequences by reorder()"
                )
        if self.window is not None:
            return self._roll(new, self.window)
        end = self.length + new[0].shape[2]
        if not self._buffers or end > self._buffers[0].shape[2]:
            self._grow(new, end)
        for room, x in zip(self._buffers, new, strict=True):
            room[:, :, self.length : end] = x
        self.length = end
        return [room[:, :, :end] for room in self._buffers]

    def _roll(self, new: tuple[Tensor, ...], window: int) -> list[Tensor]:
        n_past, seen = min(self.n_held, window - 1), list(new)
        if self._buffers:
            past = [held[:, :, held.shape[2] - n_past :] for held in self._buffers]
            seen = [torch.cat(parts, dim=2) for parts in zip(past, new, strict=True)]
        self.length += new[0].shape[2]
        # A view of the last positions would keep the memory of all of them.
        self._buffers = [x if x.shape[2] <= window else x[:, :, -window:].clone() for x in seen]
        return seen

    def _grow(self, new: tuple[Tensor, ...], needed: int) -> None:
        capacity = max(needed, 2 * self._buffers[0].shape[2]) if self._buffers else needed
        grown = [x.new_empty(x.shape[0], x.shape[1], capacity, x.shape[3]) for x in new]
        for room, old in zip(grown, self._buffers, strict=False):  # the first time there is nothing to carry over
            room[:, :, : self.length] = old[:, :, : self.length]
        self._buffers = grown

    def require_croppable(self, length: int) -> None:
        rule = f"from 0 to the {self.length} cached positions"
        require(0 <= length <= self.length, "length", rule, length, "crop forgets positions and adds none")
        if self.state and length < self.length:
            raise InputError(
                f"length must be {self.length} for a layer that keeps a state of its past, which cannot be undone, got "
                f"{length}; decode without cropping, so without an assistant model"
            )
        if self.window is not None and length < self.length and self.length > self.window:
            raise InputError(
                f"window must be at least the {self.length} cached positions to forget some of them, got "
                f"{self.window}: older ones are not stored; decode without cropping, so without an assistant model"
            )

    def crop(self, length: int) -> None:
        """Forget the positions from `length` on."""
        self.require_croppable(length)
        if self.window is not None and length < self.length:
            self._buffers = [held[:, :, :length] for held in self._buffers]
        self.length = length

    @property
    def n_held(self) -> int:
        """The number of positions that the cache holds."""
        return self.length if self.window is None else min(self.length, self.window)

    @property
    def n_numbers(self) -> int:
        """The count of numbers that the cache holds for one sequence, without spare capacity."""
        of_positions = sum(room.shape[1] * self.n_held * room.shape[3] for room in self._buffers)
        return of_positions + sum(x[0].numel() for x in self.state)

    def reorder(self, rows: Tensor) -> None:
        """Replace row i by sequence rows[i], for beam search and to drop finished sequences."""
        self._buffers = [torch.index_select(room, 0, rows) for room in self._buffers]
        self.state = [torch.index_select(x, 0, rows) for x in self.state]


def _sizes(x: Tensor) -> str:
    batch, n_heads, _, width = x.shape
    return f"{batch} sequences of {n_heads} heads of width {width}"
