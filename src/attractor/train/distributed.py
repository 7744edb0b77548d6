"""Carry out one run on several processes: each computes its rows of every batch, and all take one step.

    loss = sum_r (n_r / n) loss_r = mean_r (N n_r / n) loss_r                                               (1)

for N processes, n scored targets in the whole batch and n_r of them in the rows of process r. Gradients are averaged
over processes, so (1) makes them those of the whole batch, however unevenly its targets are scored.

Data-parallel (`ddp`): every process holds the whole model, optimizer and gradients. Fully sharded (`fsdp`): each
process holds a share of every tensor, and a block is gathered while it is computed. NCCL moves tensors on GPUs. gloo
moves tensors on CPUs, and the few numbers and decisions on which all processes must agree.

The processes find one another in one of two ways. Those that attractor starts (`ranks.py`) meet over a file that only
their user can read. Those that torchrun starts meet over its TCP store. The store listens on every network interface,
whatever its options say, and whoever reaches it can execute code in these processes, so `train` warns of it. Processes
that are all on one machine talk to each other through the loopback interface alone.

A collective operation fails when it has waited for `collective_timeout` seconds. Each process that waited says so; the
one that does not is gone or stuck.
"""

import atexit
import gc
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from attractor.errors import InputError, RankLostError, RunStopped, require
from attractor.kernels.cross_entropy import NOT_SCORED
from attractor.models.language_model import LanguageModel
from attractor.tasks import Batch
from attractor.train.process import end_with_parent, save_and_end

T = TypeVar("T")
LossFunction = Callable[..., tuple[Tensor, ...]]
TORCHRUN = "TORCHELASTIC_RUN_ID"  # environment variable that torchrun sets
STORE = "ATTRACTOR_STORE"  # environment variable: the file over which the processes that attractor started meet
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
NCCL_SECONDS = 60.0  # by which torch's watchdog of NCCL, which ends processes at once, comes later than gloo's error
SET_BY_TORCHRUN = "torchrun sets this environment variable; without torchrun, unset RANK and WORLD_SIZE"
OPEN_RENDEZVOUS = (
    "torchrun's rendezvous listens on every network interface without a password, and whoever reaches it can execute "
    "code here: use it only in a private network (docs/many-gpus.md)"
)


def _number(name: str, default: int | None, least: int = 0, below: float = math.inf) -> int:
    """Return a whole number of the environment."""
    text = os.environ.get(name, "" if default is None else str(default))
    fits = text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) < below
    limit = "" if below == math.inf else f" and below {below}"
    require(fits, name, f"a whole number of at least {least}{limit}", text, SET_BY_TORCHRUN)
    return int(text)


@dataclass(frozen=True)
class World:
    """The processes of a run, seen from one of them. With a single process nothing is shared or sent."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # rank among the processes of this machine
    local_size: int = 1
    store: str | None = None  # file over which the processes meet; None: torchrun's TCP store

    @classmethod
    def from_environment(cls) -> Self:
        """Return the world that torchrun or `ranks.py` describes in the environment."""
        size = _number("WORLD_SIZE", 1, least=1)
        rank = _number("RANK", 0, below=size)
        local_size = _number("LOCAL_WORLD_SIZE", 1, least=1, below=size + 1)
        local_rank = _number("LOCAL_RANK", 0, below=local_size)
        store = os.environ.get(STORE)
        if size > 1 and store is None:
            _number("MASTER_PORT", None, below=2**16)
            require(bool(os.environ.get("MASTER_ADDR")), "MASTER_ADDR", "an address", "", SET_BY_TORCHRUN)
        return cls(rank, size, local_rank, local_size, store)

    @property
    def is_first(self) -> bool:
        """Whether this process writes the folder of the run and reports its progress."""
        return self.rank == 0

    @property
    def group(self) -> Any:
        """The process group of these processes, or () for one."""
        return dist.group.WORLD if self.size > 1 else ()

    @property
    def warning(self) -> str | None:
        """A warning about the way in which the processes meet."""
        return OPEN_RENDEZVOUS if self.size > 1 and self.store is None else None

    @property
    def program(self) -> str:
        """The words that start `attractor` on as many processes."""
        if self.size == 1:
            return "attractor"
        machines = self.size // self.local_size
        nodes = f"--nnodes {machines} " if machines > 1 else ""
        return f"torchrun {nodes}--nproc-per-node {self.local_size} --no-python attractor"

    @contextmanager
    def joined(self, device: torch.device, collective_timeout: float) -> Iterator[None]:
        """Connect the processes while the block runs. The process group stays for later runs of this process.

        The time limit is that of the first run of this process.
        """
        if self.size == 1:
            yield
            return
        if not dist.is_initialized():
            self._connect(device, collective_timeout)
        try:
            yield
        except (InputError, RunStopped) as stopped:  # mostly raised on all processes alike
            traceback.clear_frames(stopped.__traceback__)  # the frames hold the model, which holds the group
            raise
        except RuntimeError as error:
            atexit.unregister(_leave)
            if not isinstance(error, dist.DistError) and "/gloo/" not in str(error):
                raise
            reason = str(error).partition("\n")[0]
            raise RankLostError(
                f"rank {self.rank} waited in vain for another rank, which is gone or stuck ({reason}). The last "
                "checkpoint counts; the same command goes on from there"
            ) from None
        except BaseException:
            # This process alone failed. It must not wait for the others, which may be waiting for it: whoever started
            # them (torchrun, or `ranks.py`) sees it end, and ends them.
            atexit.unregister(_leave)
            raise

    def _connect(self, device: torch.device, collective_timeout: float) -> None:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if self.local_size == self.size:
            os.environ |= {"GLOO_SOCKET_IFNAME": LOOPBACK, "NCCL_SOCKET_IFNAME": f"={LOOPBACK}"}
        if TORCHRUN in os.environ:
            end_with_parent(save_and_end)
        store = None if self.store is None else dist.FileStore(self.store, self.size)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        limit = timedelta(seconds=collective_timeout)
        later = limit + timedelta(seconds=NCCL_SECONDS) if device.type == "cuda" else limit
        try:
            dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=later)
        except RuntimeError as error:  # of several kinds, by the kind of store
            reason = str(error).partition("\n")[0]
            raise RankLostError(
                f"the {self.size} processes of the run must find one another within {collective_timeout:g} s "
                f"(collective_timeout), and did not ({reason}); see which of them did not start"
            ) from error
        cast(Any, self.group)._get_backend(torch.device("cpu"))._set_default_timeout(limit)
        atexit.register(_leave)

    def fails_first(self) -> bool:
        """Return whether no other process failed before: the others may fail only because this one is gone."""
        if self.store is None:
            return True
        try:
            Path(self.store).with_name("failed").open("x").close()
        except FileExistsError:
            return False
        return True

    def refuse_uneven(self, batch_size: int, accumulation: int) -> None:
        if batch_size // accumulation % self.size:
            raise InputError(
                f"batch_size / accumulation must be divisible by the number of processes, {self.size}, got "
                f"{batch_size} / {accumulation}; change one of them, or start torchrun with another --nproc-per-node"
            )

    def parts(self, batch: Batch, accumulation: int) -> list[tuple[Batch, float]]:
        """Return this process's rows of every micro-batch with scored targets, and their factors N n_r / n of (1).

        With several processes no micro-batch is left out, since all processes must take part in every sum.
        """
        n = max(n_scored(batch), 1)
        mine = [micro_batch.split(self.size)[self.rank] for micro_batch in batch.split(accumulation)]
        shared = [(with_scored_targets(rows), self.size * n_scored(rows) / n) for rows in mine]  # (1)
        return [(rows, share) for rows, share in shared if share or self.size > 1]

    def seed(self, seed: int, step: int) -> None:
        """Seed the random numbers of a step by (seed, step, rank), unless there is a single process.

        So no two processes drop the same units, and no checkpoint needs the random states of all processes.
        """
        if self.size > 1:
            torch.manual_seed(int(np.random.default_rng([seed, step, self.rank]).integers(2**63)))

    def mean(self, *numbers: Tensor) -> list[Tensor]:
        """Return scalars averaged over all processes, with the same bits on each."""
        if self.size == 1:
            return list(numbers)
        stacked = torch.stack([number.float() for number in numbers])
        dist.all_reduce(stacked)
        return list((stacked / self.size).unbind())

    def rows_of_all(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes one after another. Each has as many."""
        if self.size == 1:
            return rows
        parts = [torch.empty_like(rows) for _ in range(self.size)]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    def largest(self, number: int) -> int:
        if self.size == 1:
            return number
        shared = torch.tensor(number)
        dist.all_reduce(shared, dist.ReduceOp.MAX)
        return int(shared)

    def agreed(self, value: T) -> T:
        """Return the value of the first process, so that all processes decide alike."""
        return self.first_does(lambda: value)

    def first_does(self, action: Callable[[], T]) -> T:
        """Act in the first process alone. All processes return its result, or raise its InputError."""
        if self.size == 1:
            return action()
        outcome: list[Any] = [None, None]
        if self.is_first:
            try:
                outcome[0] = action()
            except InputError as error:
                dist.broadcast_object_list([None, (type(error), str(error))])
                raise
        dist.broadcast_object_list(outcome)
        if outcome[1] is not None:
            kind, text = outcome[1]
            raise kind(text)
        return cast(T, outcome[0])

    def spread(
        self, model: LanguageModel, parallel: str, compiler: Callable[[LossFunction], LossFunction]
    ) -> LossFunction:
        """Return the compiled loss, whose backward pass leaves gradients averaged over all processes.

        Under `fsdp` this shards the parameters of the model.
        """
        if self.size > 1 and parallel == "fsdp":
            _shard(model, self.size)
        loss = compiler(model.loss_of_step)
        if self.size > 1 and parallel == "ddp":
            return DistributedDataParallel(_Loss(model, loss), gradient_as_bucket_view=True)
        return loss


def _leave() -> None:
    """Leave the process group. Its threads would abort the process if anything held the group when Python ends."""
    gc.collect()
    dist.destroy_process_group()


def end_process(exit_code: int) -> NoReturn:
    """End a process of several, as Python does, but without taking the interpreter apart.

    Under fsdp, caches of torch hold the process group beyond `_leave`. If one of its threads then releases a tensor
    while Python takes itself apart, the process can abort, although the run has ended well.
    """
    atexit._run_exitfuncs()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    os._exit(exit_code)


def n_scored(batch: Batch) -> int:
    return int(np.count_nonzero(batch.targets != NOT_SCORED))


def with_scored_targets(batch: Batch) -> Batch:
    """Return a batch whose mean loss is defined: without scored targets, it gets arbitrary ones, as its weight is 0."""
    return batch if n_scored(batch) else batch._replace(targets=np.zeros_like(batch.targets))


class _Loss(nn.Module):
    """A module whose forward is the loss, since DistributedDataParallel wraps `forward` alone."""

    def __init__(self, model: LanguageModel, loss: LossFunction) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *batch: Tensor | None) -> tuple[Tensor, ...]:
        return self.loss(*batch)


def _shard(model: LanguageModel, n_processes: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(model.device.type, (n_processes,))
    for block in model.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for name in ("loss", "segment_loss", "judge", "next_logits"):  # methods that are called instead of `forward`
        if hasattr(model, name):
            register_fsdp_forward_method(model, name)
    # gloo cannot average, so sums are divided.
    model.set_force_sum_reduction_for_comms(model.device.type == "cpu")  # type: ignore[operator]


def accumulating(loss: LossFunction, more: bool) -> AbstractContextManager[None]:
    """Postpone averaging gradients under `ddp` while more micro-batches follow; shards must average each time."""
    return loss.no_sync() if more and isinstance(loss, DistributedDataParallel) else nullcontext()


@contextmanager
def unsharded(model: LanguageModel) -> Iterator[None]:
    """Gather the parameters outside layers while the block runs, so that the model can be called without its loss."""
    sharded = cast(Any, model)
    if not hasattr(sharded, "unshard"):
        yield
        return
    sharded.unshard()
    yield
    sharded.reshard()


def is_spread(value: object) -> bool:
    """Return whether a value is a DTensor, without importing that class, which takes a second."""
    return hasattr(value, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    return cast(Any, tensor).full_tensor() if is_spread(tensor) else tensor


def held_here(tensor: Tensor) -> Tensor:
    """Return the part of a sharded tensor that this process holds, or the whole of any other."""
    return cast(Any, tensor).to_local() if is_spread(tensor) else tensor


def gathered(tree: Any, keep: bool = True) -> Any:
    """Return nested dictionaries and lists with every sharded tensor gathered, in the memory of the CPU.

    All processes must take part. A process that does not `keep` the result gets None in place of these tensors.
    """
    if is_spread(tree):
        tensor = whole(tree)
        return tensor.cpu() if keep else None
    if isinstance(tree, Mapping):
        return {name: gathered(value, keep) for name, value in tree.items()}
    if isinstance(tree, list):
        return [gathered(value, keep) for value in tree]
    return tree


def placed_as(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a whole tensor as it is, or this process's shard of it if `like` is sharded."""
    if not is_spread(like) or tensor.shape != like.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    spread = cast(Any, like)
    return distribute_tensor(tensor.to(like.device), spread.device_mesh, spread.placements, src_data_rank=None)
