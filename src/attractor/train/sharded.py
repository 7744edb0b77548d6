"""Save a checkpoint in shards, one for each process, while training goes on; and load it on any number of processes.

    checkpoints/step-00000500/shard-00001-model-00001-of-00001.safetensors    weights and moments of the first process
                              optimizer.pt, state.json, manifest.json         as in the plain format (`checkpoint.py`)

torch.distributed.checkpoint (DCP) writes and reads the shards. Its usual format has an index `.metadata`, which is a
pickle, so whoever alters it executes code. Its format of safetensors (`HuggingFaceStorageWriter`) has no such file. A
shard holds tensors and, as JSON, the place of each in the whole tensor. Nothing of it is unpickled.

A save blocks training while this process's part is copied to host memory, and while an earlier save has not ended. A
thread then writes the copy. So for the time of a save, host memory holds this part once more, and two copies of the
file that is being written (`FILE_BYTES`, or the largest tensor). The threads agree through a process group of their
own. The first process gives the checkpoint its final name after all shards are on disk, and only then removes older
ones.
"""

import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from attractor.errors import WritingError, unknown
from attractor.runs.run_folder import RunFolder
from attractor.train import checkpoint
from attractor.train.config import CHECKPOINT_FORMATS
from attractor.train.distributed import World, is_spread

FILE_BYTES = 2**28  # of whole tensors, of which each process writes its part
MARK = "tensor of the shards: "  # in place of a tensor in optimizer.pt
Saved = Callable[[checkpoint.TrainState], None]


class ShardedSaver:
    """Saves checkpoints of one run, one after the other, in a thread."""

    def __init__(self, folder: Path, world: World) -> None:
        self.folder, self.world = folder, world
        self.group = dist.new_group(backend="gloo") if world.size > 1 else None
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self.pending: Future[None] | None = None

    def save(
        self, weights: Mapping[str, Tensor], tensors: dict[str, Any], state: checkpoint.TrainState, then: Saved
    ) -> None:
        """Begin to save. The first process calls `then` with a copy of the state when the checkpoint has its name."""
        self.wait()
        temporary = self.world.first_does(lambda: checkpoint.begin_writing(self.folder, state.step))
        shards: dict[str, Tensor] = {}
        rest = taken_apart({"model": dict(weights), **tensors}, "", shards)
        on_host = {name: copied_to_host(tensor, self.world) for name, tensor in shards.items()}
        self.pending = self.thread.submit(self._write, temporary, on_host, deepcopy(rest), deepcopy(state), then)

    def _write(
        self, temporary: Path, shards: dict[str, Tensor], rest: Any, state: checkpoint.TrainState, then: Saved
    ) -> None:
        write_shards(temporary, shards, self.group, state.step)
        if self.world.is_first:
            with checkpoint.writing_errors(self.folder, state.step, temporary):
                checkpoint.write_tensors(temporary / "optimizer.pt", rest)
                checkpoint.finish_writing(self.folder, temporary, state, checkpoint.SHARDED)
            then(state)

    def wait(self) -> None:
        """Wait until the last save has ended, and raise its error in all processes."""
        if self.pending is None:
            return
        error = self.pending.exception()
        self.pending = None
        if self.world.largest(int(error is not None)):
            raise error or WritingError("another process could not save its part of the checkpoint; see its message")

    def close(self) -> None:
        self.thread.shutdown(wait=True)


def convert_run(path: Path, checkpoint_format: str) -> list[str]:
    """Convert every checkpoint of a run to a format, and return their names. The content stays the same, bit by bit."""
    if checkpoint_format not in CHECKPOINT_FORMATS:
        raise unknown("checkpoint format", checkpoint_format, CHECKPOINT_FORMATS)
    run, to_shards = RunFolder.open(path), checkpoint_format == "sharded"
    with run.hold():
        run.refuse_altered()
        others = [
            path for path in checkpoint.list_checkpoints(run.checkpoints) if checkpoint.is_sharded(path) != to_shards
        ]
        saver = ShardedSaver(run.checkpoints, World())
        try:
            for path in others:
                checkpoint.verify_or_refuse(path)
                weights, tensors, state = checkpoint.read_checkpoint(path)
                if to_shards:
                    saver.save(weights, tensors, state, lambda state: None)
                    saver.wait()
                else:
                    checkpoint.save_checkpoint(run.checkpoints, weights, tensors, state)
        finally:
            saver.close()
    return [path.name for path in others]


def write_shards(folder: Path, shards: dict[str, Tensor], group: Any, step: int) -> None:
    """Write this process's tensors. All processes of the group must call this; None is a single process."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException

    _without_warning()
    writer = dcp.HuggingFaceStorageWriter(str(folder), in_files(shards), save_distributed=True)
    try:
        dcp.save(shards, storage_writer=writer, process_group=group, no_dist=group is None)
    except CheckpointException as error:  # the errors of all processes; it is no Exception
        with checkpoint.writing_errors(folder.parent, step, folder):
            raise next((failure for failure, _ in error.failures.values()), error) from error


def in_files(shards: Mapping[str, Tensor]) -> dict[str, int]:
    """Return for each tensor the number of the file that holds it, from 1, the same in every process.

    DCP makes a file in memory before it writes it, twice, so a file holds about FILE_BYTES.
    """
    numbers, n_bytes = {}, 0
    for name, tensor in shards.items():
        numbers[name] = 1 + n_bytes // FILE_BYTES
        n_bytes += tensor.numel() * tensor.element_size()
    return numbers


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
