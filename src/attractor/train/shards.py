"""Take the tensors of a checkpoint apart into shards, which torch.distributed.checkpoint (DCP) writes and reads.

`sharded.py` says why the shards are safetensors, and when they are written.
"""

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from torch import Tensor

from attractor.train.distributed import World, is_spread

IN_FILES = {"DCP_VERSION": "1.0", "format": "pt"}  # DCP's metadata of each file
MARK = "tensor of the shards: "  # in place of a tensor in optimizer.pt


def write_shards(folder: Path, shards: dict[str, Tensor], group: Any) -> None:
    """Write this process's tensors. All processes of the group must call this; None is a single process."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.futures import Future

    class Writer(dcp.HuggingFaceStorageWriter):
        """Writes the file of DCP's own writer without copying it in memory under the interpreter's lock, which would
        hold up the training thread."""

        def write_data(self, plan: dcp.SavePlan, planner: dcp.SavePlanner) -> Future[list[Any]]:
            written: Future[list[Any]] = Future()
            written.set_result([])  # what `finish` needs only to write an index
            tensors = {item.index.fqn: planner.resolve_data(item) for item in plan.items}
            chunks = {item.index.fqn: cast(Any, item.tensor_data).chunk for item in plan.items}
            places = json.dumps({name: {"saved_offsets": list(chunk.offsets)} for name, chunk in chunks.items()})
            if tensors:
                name = f"shard-{plan.storage_data['shard_index']:05}-model-00001-of-00001.safetensors"
                save_file(cast(Any, tensors), folder / name, {**IN_FILES, "DCP_SHARDING_INFO": places})
            return written

    _without_warning()
    writer = Writer(str(folder), save_distributed=True)
    try:
        dcp.save(shards, storage_writer=writer, process_group=group, no_dist=group is None)
    except CheckpointException as error:  # the errors of all processes; it is no Exception
        raise next((failure for failure, _ in error.failures.values()), error) from error


def read_shards(folder: Path, place: Callable[[str], Tensor | None] = lambda name: None) -> dict[str, Any]:
    """Return the tree of a verified checkpoint. A tensor is read like the one that `place` returns for its name.

    If that one is sharded over processes, each process reads its own part alone.
    """
    import torch.distributed.checkpoint as dcp

    _without_warning()
    reader = dcp.HuggingFaceStorageReader(str(folder))
    stored = reader.read_metadata().state_dict_metadata
    shards = {name: _empty(cast(Any, of_tensor), place(name)) for name, of_tensor in stored.items()}
    dcp.load(cast(dict[str, Any], shards), storage_reader=reader, no_dist=True)
    rest = torch.load(folder / "optimizer.pt", map_location="cpu", weights_only=True)
    return put_together(rest, shards)


def _without_warning() -> None:
    """Leave out DCP's warning that a single process saves or loads, which is the intent here."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")


def _empty(stored: Any, like: Tensor | None) -> Tensor:
    if like is not None and is_spread(like) and like.shape == stored.size:
        return torch.empty_like(like.detach(), dtype=stored.properties.dtype)
    return torch.empty(stored.size, dtype=stored.properties.dtype)


def taken_apart(tree: Any, name: str, shards: dict[str, Tensor]) -> Any:
    """Return the tree with a mark in place of every tensor of floating-point numbers that goes into the shards."""
    if isinstance(tree, Tensor) and tree.dim() and tree.is_floating_point():
        shards[name] = tree
        return MARK + name
    if isinstance(tree, Tensor):
        return cast(Any, tree).full_tensor().cpu() if is_spread(tree) else tree.cpu()
    if isinstance(tree, Mapping):
        return {key: taken_apart(value, f"{name}.{key}" if name else str(key), shards) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [taken_apart(value, f"{name}.{index}", shards) for index, value in enumerate(tree)]
    return tree


def put_together(tree: Any, shards: Mapping[str, Tensor]) -> Any:
    """Return the tree with the tensors of the shards in place of their marks."""
    if isinstance(tree, str) and tree.startswith(MARK):
        return shards[tree.removeprefix(MARK)]
    if isinstance(tree, Mapping):
        return {key: put_together(value, shards) for key, value in tree.items()}
    if isinstance(tree, list):
        return [put_together(value, shards) for value in tree]
    return tree


def copied_to_host(tensor: Tensor, world: World) -> Tensor:
    """Return a copy in host memory that training does not change; of a sharded tensor, this process's part."""
    tensor = tensor.detach()
    if not is_spread(tensor):
        return tensor.to("cpu", copy=True).contiguous()
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor

    spread = cast(Any, tensor)
    mesh = spread.device_mesh if tensor.device.type == "cpu" else init_device_mesh("cpu", (world.size,))
    local = spread.to_local().to("cpu", copy=True)
    return DTensor.from_local(
        local, mesh, spread.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )
