"""Find the processes whose logits count together: those that train the same layers, each on other data or other heads.

    DistributedDataParallel    the wrapper's group
    DTensor weights            every axis of their mesh: FSDP2, HSDP, tensor parallel, and products of these

Plain weights do not say whether other processes train the same layers or others (pipeline stages, sweeps, several jobs
in one world). So nothing is assumed about them, and the groups must be given.
"""

import zlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from attractor.control.local_rows import is_sharded
from attractor.control.views import DotProduct, QueryKeyHeads, Rows
from attractor.errors import InputError

Groups = tuple[Any, ...]  # process groups over which a maximum is taken, one after the other


def groups_of(model: nn.Module, views: Sequence[QueryKeyHeads], given: Any = None) -> list[Groups]:
    """Return the groups of every view. `given` is one group, several, or () for this process alone."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [()] * len(views)
    if given is not None:
        return [tuple(given) if isinstance(given, Sequence) else (given,)] * len(views)
    wrappers = [module for module in model.modules() if isinstance(module, nn.parallel.DistributedDataParallel)]
    replicas = tuple(wrapper.process_group for wrapper in wrappers)
    groups = [tuple(dict.fromkeys((*replicas, *_mesh_groups(_query_rows(view).weight)))) for view in views]
    if not all(_is_complete(model, of_view, bool(wrappers)) for of_view in groups):
        raise InputError(
            "process_group must be given, since the weights do not say which of the "
            f"{torch.distributed.get_world_size()} processes train the same layers: give the DistributedDataParallel "
            "wrapper as model, process_group=torch.distributed.group.WORLD if all processes do, the group or groups of "
            "those that do, or () if this process trains alone"
        )
    return groups


def refuse_other_layers(layers: dict[str, int], groups: Groups, device: torch.device) -> None:
    """Refuse groups whose processes do not hold the same layers with the same numbers of heads."""
    number = zlib.crc32(repr(layers).encode())
    extremes = torch.tensor([number, -number], device=device)
    for group in groups:
        torch.distributed.all_reduce(extremes, torch.distributed.ReduceOp.MAX, group)
    if extremes[0] != -extremes[1]:
        raise InputError(
            "process_group must be of processes that train the same layers, but their layers or heads differ; here "
            f"they are {', '.join(list(layers)[:3])}{', ...' if len(layers) > 3 else ''}: give the group of the "
            "processes that hold copies or shards of these, or () if this process trains alone"
        )


class LocalHeads:
    """The heads of a layer that this process scores: all, or under tensor parallelism those of its rows."""

    def __init__(self, view: QueryKeyHeads) -> None:
        rows = _query_rows(view)
        self.n_heads, self.starts, self.width = rows.n_heads, rows.starts, rows.width
        self.length = rows.weight.shape[rows.axis]
        # The size and this process's place of every mesh axis over which rows are sharded, the innermost axis first.
        # FSDP's axes are the outer ones. They do not count, since FSDP gathers the rows before they are used.
        self.axes: list[tuple[int, int]] = []
        if is_sharded(rows.weight):
            mesh, placements = rows.weight.device_mesh, rows.weight.placements  # type: ignore[attr-defined]
            self.axes = [
                (mesh.size(axis), mesh.get_local_rank(axis))
                for axis in reversed(range(mesh.ndim))
                if placements[axis].is_shard(rows.axis)
            ]

    def scored(self, name: str, n_scored: int) -> Tensor:
        """Return which heads of the layer the `n_scored` heads are that were seen."""
        part, n_parts = 0, 1
        for size, place in self.axes:
            if n_parts * n_scored >= self.n_heads:
                break
            part, n_parts = part + place * n_parts, n_parts * size
        begin, end = part * self.length // n_parts, (part + 1) * self.length // n_parts
        heads = [head for head, start in enumerate(self.starts) if begin <= start and start + self.width <= end]
        if len(heads) != n_scored:
            raise InputError(
                f"'{name}' must score its {self.n_heads} heads, or under tensor parallelism those whose query rows "
                f"this process holds, but scored {n_scored}: split whole heads by ColwiseParallel"
            )
        return torch.tensor(heads)


def _query_rows(view: QueryKeyHeads) -> Rows:
    return view.query if isinstance(view, DotProduct) else view.uq


def _mesh_groups(weight: Tensor) -> Groups:
    return tuple(weight.device_mesh.get_all_groups()) if is_sharded(weight) else ()  # type: ignore[attr-defined]


def _is_complete(model: nn.Module, groups: Groups, is_wrapped: bool) -> bool:
    """Return whether the groups name all processes that may train the same layer.

    DDP and FSDP2 average gradients over all of them. Tensor parallelism alone may be repeated by hand."""
    n_together = 1
    for group in groups:
        n_together *= group.size()
    if is_wrapped or n_together == torch.distributed.get_world_size():
        return True
    return bool(groups) and any(hasattr(module, "set_requires_gradient_sync") for module in model.modules())
