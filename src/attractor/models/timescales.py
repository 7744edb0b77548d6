"""Two timescales of one sequence: blocks of P tokens are averaged, and read one block late.

    y_k = mean of x_t over t in block k = {t : floor(t / P) = k}; the last block over the tokens it has     (1)
    up_t = y_{floor(t / P) - 1},   0 for t < P                                                              (2)

So the slow state changes at most once in P tokens, and nothing is read before it is complete (FastSlow, definitions 3
and 6). The last block, complete or not, is read by no token of the sequence: what is not read need not be computed.

A sequence that goes on from a cache, or is padded, has its blocks where its own tokens are (`Continued`). One token
more, of sequences that stand at the same place, is what decoding asks for again and again: it needs no places (`Next`).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attractor.attention.mask import lower_triangle


def causal_pool(x: Float[Tensor, "B T D"], period: int) -> Float[Tensor, "B K D"]:
    """(1), for all ceil(T / P) blocks."""
    length = x.shape[1]
    whole = length - length % period
    means = x[:, :whole].unflatten(1, (-1, period)).mean(2)
    if whole == length:
        return means
    return torch.cat([means, x[:, whole:].mean(1, keepdim=True)], dim=1)


def causal_upsample(y: Float[Tensor, "B K D"], period: int, length: int) -> Float[Tensor, "B T D"]:
    """(2); y may end with the last block that is read."""
    late = F.pad(y, (0, 0, 1, 0))  # a zero vector before the first block
    n_blocks = -(-length // period)
    assert late.shape[1] >= n_blocks
    return late[:, :n_blocks].repeat_interleave(period, dim=1)[:, :length]


class Aligned:
    """The blocks of whole sequences: all begin at the first position."""

    def __init__(self, period: int, length: int, device: torch.device) -> None:
        self.period, self.length = period, length
        self.n_blocks = -(-length // period) - 1  # that are read
        self.mask: bool | Tensor = True
        self.positions = torch.arange(self.n_blocks, device=device)

    def pool(self, x: Tensor) -> Tensor:
        return causal_pool(x[:, : self.n_blocks * self.period], self.period)

    def upsample(self, y: Tensor) -> Tensor:
        return causal_upsample(y, self.period, self.length)


class BlockMemory:
    """What decoding keeps of one round's blocks: the sum over the one in progress, what the last complete one gave,
    and, where sequences are shifted against each other, which places of the slow cache are a sequence's own."""

    def __init__(self) -> None:
        self.sum: Tensor | None = None  # B D
        self.last: Tensor | None = None  # B D
        self.real: Tensor | None = None  # B K


class Continued:
    """The blocks that are completed by tokens which follow a past, or stand among padding. Rows may complete different
    numbers of blocks; a row with fewer has places that nothing attends to and nothing reads."""

    def __init__(
        self, period: int, positions: Tensor, real: Tensor | None, before: Tensor | int, memory: BlockMemory
    ) -> None:
        """positions: B T, counted without padding; real: B T, None where all are; before: tokens in the past, B 1."""
        batch, length = positions.shape
        self.period, self.memory, self.batch = period, memory, batch
        first = before // period  # blocks that were complete before
        n_now = length if real is None else real.sum(1, keepdim=True)
        done = (before + n_now) // period - first
        self.n_blocks = done if isinstance(done, int) else int(done.max())
        self.done = torch.full((batch, 1), done, device=positions.device) if isinstance(done, int) else done
        own = torch.arange(self.n_blocks, device=positions.device)
        self.positions = own + first  # of the new blocks: K, or B K
        self.places = length // period + 2  # blocks that these tokens can touch; one more place takes the padding
        self.slots = positions // period - first
        self.reads = self.slots.clamp(min=0, max=self.n_blocks)
        self.mask: bool | Tensor = True
        if real is not None:
            self.slots = torch.where(real, self.slots, self.places)
            self.reads = torch.where(real, self.reads, 0)
            complete = own < self.done
            seen = complete if memory.real is None else torch.cat([memory.real, complete], dim=1)
            memory.real = seen
            causal = lower_triangle(self.n_blocks, seen.shape[1], positions.device)
            self.mask = seen[:, None, None, :] & causal

    def pool(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        sums = wide.new_zeros(self.batch, self.places + 1, x.shape[-1])
        sums = sums.scatter_add(1, self.slots.unsqueeze(-1).expand_as(x), wide)
        if self.memory.sum is not None:
            sums = torch.cat([sums[:, :1] + self.memory.sum.unsqueeze(1), sums[:, 1:]], dim=1)
        self.memory.sum = _row(sums, self.done)
        return (sums[:, : self.n_blocks] / self.period).to(x.dtype)

    def upsample(self, y: Tensor) -> Tensor:
        last = y.new_zeros(self.batch, y.shape[-1]) if self.memory.last is None else self.memory.last
        given = torch.cat([last.unsqueeze(1), y], dim=1)  # what the token's block reads, by the block's place
        self.memory.last = _row(given, self.done)
        return given.gather(1, self.reads.unsqueeze(-1).expand(-1, -1, y.shape[-1]))


class Next:
    """One token more: it adds to the block in progress, and may complete it. As `Continued` would have it."""

    mask: bool | Tensor = True

    def __init__(self, period: int, before: int, memory: BlockMemory, device: torch.device) -> None:
        self.period, self.memory, self.device = period, memory, device
        self.index = before // period
        self.n_blocks = int((before + 1) % period == 0)

    @property
    def positions(self) -> Tensor:
        return torch.full((self.n_blocks,), self.index, device=self.device)

    def pool(self, x: Tensor) -> Tensor:
        token = x[:, 0].to(torch.promote_types(x.dtype, torch.float32))
        total = token if self.memory.sum is None else self.memory.sum + token
        self.memory.sum = None if self.n_blocks else total
        return (total / self.period).to(x.dtype).unsqueeze(1) if self.n_blocks else x[:, :0]

    def upsample(self, y: Tensor) -> Tensor:
        last = y.new_zeros(y.shape[0], y.shape[-1]) if self.memory.last is None else self.memory.last
        self.memory.last = y[:, 0] if self.n_blocks else last
        return last.unsqueeze(1)


def _row(x: Float[Tensor, "B K D"], index: Tensor) -> Float[Tensor, "B D"]:
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[-1])).squeeze(1)
