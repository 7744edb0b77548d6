"""Save a checkpoint in shards, one for each process, while training goes on; and load it on any number of processes.

    checkpoints/step-00000500/shard-00001-model-00001-of-00001.safetensors    weights and moments of the first process
                              optimizer.pt, state.json, manifest.json         as in the plain format (`checkpoint.py`)

torch.distributed.checkpoint (DCP) writes and reads the shards. Its usual format has an index `.metadata`, which is a
pickle, so whoever alters it executes code. Its format of safetensors (`HuggingFaceStorageWriter`) has no such file. A
shard holds tensors and, as JSON, the place of each in the whole tensor. Nothing of it is unpickled.

A save blocks training while this process's part is copied to host memory, and while an earlier save has not ended. A
thread then writes the copy. So for the time of a save, host memory holds this part once more. The threads agree through
a process group of their own. The first process gives the checkpoint its final name after all shards are on disk, and
only then removes older ones.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from attractor.errors import WritingError, unknown
from attractor.runs.run_folder import RunFolder
from attractor.train import checkpoint
from attractor.train.config import CHECKPOINT_FORMATS
from attractor.train.distributed import World
from attractor.train.shards import copied_to_host, taken_apart, write_shards

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
        with checkpoint.writing_errors(self.folder, state.step, temporary):
            write_shards(temporary, shards, self.group)
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
