"""Two timescales of one sequence: blocks of P tokens are averaged, and their results are read one block later.

    y_k = mean of x_t over t in block k = {t : floor(t / P) = k}; the last block over the tokens it has     (1)
    up_t = y_{floor(t / P) - 1},   0 for t < P                                                              (2)

The slow state changes at most once in P tokens, and no token reads a block before it is complete (FastSlow, definitions
3 and 6: Gao, Attention is just another name for coupling?, 2026, arXiv 2606.16730). No token of the sequence reads the
last block, so it is not computed.

`AlignedBlocks` are for whole sequences. `ContinuedBlocks` are for sequences that continue from a cache or are padded,
each with its own blocks. `NextTokenBlocks` are for one more token of sequences of equal length, the usual
case of decoding, which needs no index arithmetic.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attractor.attention.mask import lower_triangle


def causal_pool(x: Float[Tensor, "B T D"], period: int) -> Float[Tensor, "B K D"]:
    """Return (1) for all ceil(T / P) blocks."""
    length = x.shape[1]
    whole = length - length % period
    means = x[:, :whole].unflatten(1, (-1, period)).mean(2)
    if whole == length:
        return means
    return torch.cat([means, x[:, whole:].mean(1, keepdim=True)], dim=1)


def causal_upsample(y: Float[Tensor, "B K D"], period: int, length: int) -> Float[Tensor, "B T D"]:
    """Return (2); y may end with the last block that is read."""
    late = F.pad(y, (0, 0, 1, 0))  # a zero vector before the first block
    n_blocks = -(-length // period)
    assert late.shape[1] >= n_blocks
    return late[:, :n_blocks].repeat_interleave(period, dim=1)[:, :length]


class BlockMemory:
    """What decoding stores of one round's blocks: the inputs of the current block and the output of the last one."""

    def __init__(self) -> None:
        self.begun: list[Tensor] = []  # B 1 D; their sum is that of the current block so far
        self.last: Tensor | None = None  # B 1 D, the output of the last complete block

    def sum(self) -> Tensor:
        wide = torch.promote_types(self.begun[0].dtype, torch.float32)
        return torch.cat(self.begun, dim=1).sum(1, keepdim=True, dtype=wide)

    def last_like(self, y: Tensor) -> Tensor:
        return y.new_zeros(y.shape[0], 1, y.shape[-1]) if self.last is None else self.last


class AlignedBlocks:
    """The blocks of whole sequences, which begin at the first position and need no memory."""

    def __init__(self, period: int, length: int, device: torch.device) -> None:
        self.period, self.length = period, length
        self.n_blocks = -(-length // period) - 1  # blocks that some token reads
        self.mask: bool | Tensor = True
        self.positions = torch.arange(self.n_blocks, device=device)

    def pool(self, x: Tensor, _: BlockMemory) -> Tensor:
        return causal_pool(x[:, : self.n_blocks * self.period], self.period)

    def upsample(self, y: Tensor, _: BlockMemory) -> Tensor:
        return causal_upsample(y, self.period, self.length)


class ContinuedBlocks:
    """The blocks that new tokens complete after a cached past, or among padding.

    Sequences may complete different numbers of blocks. Those with fewer have unused blocks, to which nothing attends.
    """

    def __init__(
        self, period: int, positions: Tensor, real: Tensor | None, before: Tensor | int, seen: Tensor | None = None
    ) -> None:
        """Find the blocks of the new tokens.

        positions: B T, counted without padding; real: B T, False at padding, or None; before: the number of past
        tokens, B 1; seen: which entries of the slow cache belong to each sequence, B K.
        """
        batch, length = positions.shape
        self.period, self.batch = period, batch
        first = before // period  # blocks that were complete before
        n_now = length if real is None else real.sum(1, keepdim=True)
        done = (before + n_now) // period - first
        self.done = torch.full((batch, 1), done, device=positions.device) if isinstance(done, int) else done
        if isinstance(before, int):  # the most that new tokens can complete, found without reading the padding
            self.n_blocks = (before + length) // period - before // period
        else:
            self.n_blocks = int(self.done.max())
        indices = torch.arange(self.n_blocks, device=positions.device)
        self.positions = indices + first  # of the new blocks: K, or B K
        self.places = length // period + 2  # blocks that these tokens can touch; padding is summed in one more
        self.slots = positions // period - first
        self.reads = self.slots.clamp(min=0, max=self.n_blocks)
        self.mask: bool | Tensor = True
        self.seen = seen  # including the new blocks; None if sequences are not padded
        if real is not None:
            self.slots = torch.where(real, self.slots, self.places)
            self.reads = torch.where(real, self.reads, 0)
            complete = indices < self.done
            self.seen = complete if seen is None else torch.cat([seen, complete], dim=1)
            causal = lower_triangle(self.n_blocks, self.seen.shape[1], positions.device)
            self.mask = self.seen[:, None, None, :] & causal

    def pool(self, x: Tensor, memory: BlockMemory) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        sums = wide.new_zeros(self.batch, self.places + 1, x.shape[-1])
        sums = sums.scatter_add(1, self.slots.unsqueeze(-1).expand_as(x), wide)
        if memory.begun:
            sums = torch.cat([sums[:, :1] + memory.sum(), sums[:, 1:]], dim=1)
        memory.begun = [_row(sums, self.done)]
        return (sums[:, : self.n_blocks] / self.period).to(x.dtype)

    def upsample(self, y: Tensor, memory: BlockMemory) -> Tensor:
        outputs = torch.cat([memory.last_like(y), y], dim=1)  # in the order of the blocks that read them
        memory.last = _row(outputs, self.done)
        return _row(outputs, self.reads)


class NextTokenBlocks:
    """The block of one more token, which is computed only when the token completes it."""

    mask: bool | Tensor = True
    seen: Tensor | None = None

    def __init__(self, period: int, before: int, device: torch.device) -> None:
        self.period, self.device = period, device
        self.n_blocks = int((before + 1) % period == 0)
        self.index = before // period

    @property
    def positions(self) -> Tensor:
        return torch.full((self.n_blocks,), self.index, device=self.device)

    def pool(self, x: Tensor, memory: BlockMemory) -> Tensor:
        memory.begun.append(x)
        if not self.n_blocks:
            return x[:, :0]
        total, memory.begun = memory.sum(), []
        return (total / self.period).to(x.dtype)

    def upsample(self, y: Tensor, memory: BlockMemory) -> Tensor:
        last = memory.last_like(y)
        memory.last = y if self.n_blocks else last
        return last


Blocks = AlignedBlocks | ContinuedBlocks | NextTokenBlocks


def _row(x: Float[Tensor, "B K D"], index: Int[Tensor, "B N"]) -> Float[Tensor, "B N D"]:
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
