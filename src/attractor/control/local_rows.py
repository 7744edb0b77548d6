"""Give access to the rows of heads that this process holds, as a few views without copies.

A weight may be sharded over processes (FSDP2 gives each process some rows), and heads may lie anywhere in it (fused
matrices, interleaved heads, halves). Evenly spaced heads become one strided view. A head that is split between two
processes becomes a separate view on each.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from attractor.control.views import Rows


@dataclass(frozen=True)
class HeadBlock:
    """Rows `rows` of every head in `heads`. Those of the first head begin at local row `start`, those of the next head
    `stride` rows later."""

    heads: slice
    rows: slice
    start: int
    stride: int

    def of(self, local: Tensor, axis: int = 0) -> Tensor:
        """Return the view heads x rows x inputs of a local weight, or heads x rows x 1 of a vector."""
        matrix = local.unsqueeze(1) if local.dim() == 1 else local.transpose(0, axis)
        along, across = matrix.stride()
        size = (self.heads.stop - self.heads.start, self.rows.stop - self.rows.start, matrix.shape[1])
        strides = (self.stride * along, along, across)
        return matrix.as_strided(size, strides, matrix.storage_offset() + self.start * along)


class MovingBlock(NamedTuple):
    """A block that an optimizer moves, its memory, and where it lies in the whole weight or bias of the heads."""

    block: HeadBlock
    view: Tensor  # heads x rows x inputs
    kind: str  # "weight" or "bias"
    inputs: slice

    def of(self, whole: Tensor) -> Tensor:
        """Return this block's part of a tensor of all heads x rows x inputs."""
        return whole[self.block.heads, self.block.rows, self.inputs]


class LocalRows:
    """The share of some heads' rows that this process holds."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        begins, shape = local_region(rows.weight)
        if rows.weight.dim() == 1:  # one column
            begins, shape = (*begins, 0), (*shape, 1)
        self.weight_blocks = head_blocks(rows, begins[rows.axis], shape[rows.axis])
        self.bias_blocks: list[HeadBlock] = []
        if rows.bias is not None:
            (begin,), (length,) = local_region(rows.bias)
            self.bias_blocks = head_blocks(rows, begin, length)
        across = 1 - rows.axis
        self.inputs = slice(begins[across], begins[across] + shape[across])  # the inputs that this process holds
        self.n_inputs = rows.weight.shape[across] if rows.weight.dim() == 2 else 1
        self.groups = _groups(rows.weight)
        self._views: dict[nn.Parameter, tuple[tuple[int, torch.dtype], list[Tensor]]] = {}

    def whole_shape(self, kind: str) -> tuple[int, int, int]:
        """The shape heads x rows x inputs of all these heads' weights or biases."""
        return self.rows.n_heads, self.rows.width, self.n_inputs if kind == "weight" else 1

    def weights(self) -> Iterator[tuple[HeadBlock, Tensor]]:
        return zip(self.weight_blocks, self._view(self.rows.weight, self.weight_blocks, self.rows.axis), strict=True)

    def moving(self, parameters: Container[nn.Parameter]) -> Iterator["MovingBlock"]:
        """Yield the blocks of those weights and biases that are among an optimizer's parameters and not frozen."""
        if self.rows.weight.requires_grad and self.rows.weight in parameters:
            for block, view in self.weights():
                yield MovingBlock(block, view, "weight", self.inputs)
        if self.rows.bias is not None and self.rows.bias.requires_grad and self.rows.bias in parameters:
            views = self._view(self.rows.bias, self.bias_blocks, 0)
            for block, view in zip(self.bias_blocks, views, strict=True):
                yield MovingBlock(block, view, "bias", slice(0, 1))

    def _view(self, parameter: nn.Parameter, blocks: list[HeadBlock], axis: int) -> list[Tensor]:
        """Return the cached views. They are made again only where the parameter has new memory (`model.to(...)`)."""
        local = cast(Any, parameter.detach()).to_local() if is_sharded(parameter) else parameter
        memory, views = self._views.get(parameter, (None, []))
        if memory != (local.data_ptr(), local.dtype):
            views = [block.of(local.detach(), axis) for block in blocks]
            self._views[parameter] = (local.data_ptr(), local.dtype), views
        return views


def sum_over_processes(values: Sequence[Tensor], shares: Sequence[LocalRows]) -> None:
    """Sum the values of the shares over processes, in place, with one message for all shares that are sharded alike."""
    for groups in dict.fromkeys(share.groups for share in shares if share.groups):
        parts = [value for value, share in zip(values, shares, strict=True) if share.groups == groups]
        message = torch.cat([part.flatten() for part in parts])
        for group in groups:
            torch.distributed.all_reduce(message, group=group)
        for part, total in zip(parts, message.split([part.numel() for part in parts]), strict=True):
            part.copy_(total.view_as(part))


def allocate_copies(views: Sequence[Tensor]) -> list[Tensor]:
    """Allocate memory for copies of the views, with their layouts: one buffer per kind, read faster than many."""
    copies: list[Tensor] = []
    buffers: dict[tuple[torch.dtype, torch.device], Tensor] = {}
    for kind in dict.fromkeys((view.dtype, view.device) for view in views):
        size = sum(view.numel() for view in views if (view.dtype, view.device) == kind)
        buffers[kind] = torch.empty(size, dtype=kind[0], device=kind[1])
    for view in views:
        buffer = buffers[view.dtype, view.device]
        strides = torch.empty_like(view, device="meta").stride()
        copies.append(buffer.as_strided(view.shape, strides, buffer.storage_offset()))
        buffers[view.dtype, view.device] = buffer[view.numel() :]
    return copies


def head_blocks(rows: Rows, begin: int, length: int) -> list[HeadBlock]:
    """Return the heads' rows within [begin, begin + length), in as few blocks as possible."""
    blocks: list[HeadBlock] = []
    for head, start in enumerate(rows.starts):
        first, last = max(start, begin), min(start + rows.width, begin + length)
        if first >= last:
            continue
        local = slice(first - start, last - start)
        if blocks and blocks[-1].heads.stop == head and blocks[-1].rows == local:
            before = blocks[-1]
            n = head - before.heads.start
            stride = first - begin - before.start if n == 1 else before.stride
            if stride > 0 and before.start + n * stride == first - begin:
                blocks[-1] = HeadBlock(slice(before.heads.start, head + 1), local, before.start, stride)
                continue
        blocks.append(HeadBlock(slice(head, head + 1), local, first - begin, rows.width))
    return blocks


def is_sharded(parameter: Tensor) -> bool:
    return hasattr(parameter, "placements")  # a DTensor; asking for the class would import torch.distributed.tensor


def local_region(parameter: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return where the local part begins in the whole parameter, and its shape."""
    if not is_sharded(parameter):
        return (0,) * parameter.dim(), tuple(parameter.shape)
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sharded = cast(Any, parameter)
    shape, begins = compute_local_shape_and_global_offset(sharded.shape, sharded.device_mesh, sharded.placements)
    return tuple(begins), tuple(shape)


def _groups(parameter: Tensor) -> tuple[Any, ...]:
    """Return the process groups over which the parts of the parameter add up to the whole."""
    if not is_sharded(parameter):
        return ()
    sharded = cast(Any, parameter)
    placements = enumerate(sharded.placements)
    return tuple(sharded.device_mesh.get_group(axis) for axis, placed in placements if not placed.is_replicate())
