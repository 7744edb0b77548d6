"""Count the memory that a run needs at least, before anything is allocated.

    parameters, gradients, optimizer, average     counted on the model without data (the meta device)           (1)
    forward and backward                          one micro-batch on tensors without data: the largest sum of
                                                  storages that are alive at once                               (2)
    total = parameters + optimizer + average + max((2), gradients) + batch                                      (3)

For (2) the model's own operations run on torch's fake tensors. So it includes what is saved, recomputed and freed, and
a T x T attention map only where the backend makes one. Where gradients exist from the start (accumulation, several
processes), (2) is at least the activations after the forward pass, plus all gradients.

(3) leaves out the workspace inside an operation, an allocator's fragments, compilers, and Python. It is a lower bound,
so a run for which (3) exceeds the free memory cannot fit. A compiled run may save less than the model's own operations
do; for such a run (2) counts the inputs of the blocks alone.
"""

import logging
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attractor.kernels.cross_entropy import held_logits
from attractor.kernels.precision import autocast
from attractor.train.config import TrainConfig
from attractor.train.optimizer import optimizer_groups
from attractor.train.parts import without_data
from attractor.train.recompute import SAVED_OPS

REPEATED = ("n_layers", "n_iterations", "n_rounds", "n_pre", "n_post", "n_slow")  # fields that count equal parts
COUNTED = 3  # repetitions that are counted; each further one adds as much as the last of these did
BEYOND_ANY_MACHINE = 2**46  # bytes; more are not counted, since torch's own counts would overflow
MOMENTS = {"muon": 1}  # tensors that the optimizer keeps for each parameter; AdamW keeps two
BYTES_OF_A_TOKEN = 16  # in a batch: the input and the target, as 64-bit integers


@dataclass(frozen=True)
class ProcessLayout:
    """The number of processes of a run, and whether each holds the whole model (ddp) or a share (fsdp)."""

    size: int = 1
    parallel: str = "ddp"

    @property
    def sharded(self) -> bool:
        return self.size > 1 and self.parallel == "fsdp"


@dataclass(frozen=True)
class PlannedMemory:
    """Bytes of one process. `total` is less than the sum, since gradients appear while activations are freed."""

    parameters: int
    gradients: int
    optimizer: int
    average: int
    gathered: int  # under fsdp: the largest layer and the parameters outside layers, unsharded
    activations: int  # after the forward pass of a micro-batch
    batch: int  # batch of a whole step, in the memory of the CPU
    total: int

    @property
    def of_the_model(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.average + self.gathered


class ModelBytes(NamedTuple):
    parameters: int  # the share of one process
    optimizer: int  # the share of one process
    largest_layer: int  # unsharded
    outside_layers: int  # unsharded


class PassBytes(NamedTuple):
    """Bytes of a forward and backward pass: activations and new gradients, without parameters."""

    after_forward: int
    at_most: int


Counts = TypeVar("Counts", ModelBytes, PassBytes)


def planned_memory(
    config: TrainConfig, processes: ProcessLayout | None = None, device_type: str = "cpu"
) -> PlannedMemory:
    """Return (3) for one process. On a GPU it leaves out the batch, which lies in the memory of the CPU.

    Where there is no GPU, (2) of one is counted as on a CPU.
    """
    processes = processes or ProcessLayout()
    config = config.replace(seed=0)
    model = _extrapolated(partial(_model_bytes, n_shares=processes.size if processes.sharded else 1), config)
    rows = max(config.micro_batch_size // processes.size, 1)
    counted_on = "cpu" if device_type == "cuda" and not torch.cuda.is_available() else device_type
    passes = _pass_bytes_or_least(config, rows, counted_on, model.parameters)
    average = model.parameters if config.ema is not None else 0
    gathered = model.largest_layer + model.outside_layers if processes.sharded else 0
    batch = config.batch_size * config.seq_len * BYTES_OF_A_TOKEN
    gradients = model.parameters
    if processes.sharded:  # the gradients of one layer at a time are unsharded
        working = passes.after_forward + gathered
    elif config.accumulation > 1 or processes.size > 1:
        working = max(passes.at_most, passes.after_forward + gradients)
    else:
        working = passes.at_most
    total = model.parameters + model.optimizer + average + max(working, gradients)
    return PlannedMemory(
        parameters=model.parameters,
        gradients=gradients,
        optimizer=model.optimizer,
        average=average,
        gathered=gathered,
        activations=passes.after_forward,
        batch=batch,
        total=total + (batch if device_type == "cpu" else 0),
    )


def shard_bytes(tensor: Tensor, n_shares: int) -> int:
    """Return the bytes of the largest share of a tensor that is split along its first dimension."""
    rows = tensor.shape[0] if tensor.dim() else 1
    return -(-rows // n_shares) * (tensor.numel() // max(rows, 1)) * tensor.element_size()


def layer_bytes(config: TrainConfig) -> tuple[list[int], int]:
    """Return the bytes of each layer's parameters, which fsdp gathers one at a time, and of all other parameters."""
    model = without_data(config.model)
    layers = [sum(p.numel() * p.element_size() for p in layer.parameters()) for layer in model.layers]
    return layers, sum(p.numel() * p.element_size() for p in model.parameters()) - sum(layers)


def _extrapolated(count: Callable[[TrainConfig], Counts], config: TrainConfig) -> Counts:
    """Return the counts of a configuration, where only COUNTED of many repetitions are really counted."""
    for name in REPEATED:
        differing = (getattr(config.model, field, None) for field in ("global_layers", "no_rope_every"))
        alike = name != "n_layers" or all(value is None for value in differing)
        unit = config.model.steps_of_batch if name == "n_iterations" else 1  # a step runs n_iterations / unit of them
        if alike and (number := getattr(config.model, name, 0) // unit) > COUNTED:
            few, more = (_extrapolated(count, config.replace(**{name: n * unit})) for n in (COUNTED - 1, COUNTED))
            return type(more)(*(b + (b - a) * (number - COUNTED) for a, b in zip(few, more, strict=True)))
    return count(config)


@lru_cache(maxsize=256)
def _model_bytes(config: TrainConfig, n_shares: int) -> ModelBytes:
    """Count (1)."""
    layers, rest = layer_bytes(config)
    optimizer = 0
    for group in optimizer_groups(without_data(config.model), config):
        moments = MOMENTS.get(group.get("rule", "adamw"), 2)
        optimizer += moments * sum(shard_bytes(parameter, n_shares) for _, parameter in group["params"])
    parameters = sum(shard_bytes(p, n_shares) for p in without_data(config.model).parameters())
    return ModelBytes(parameters, optimizer, max(layers, default=0), rest)


def _pass_bytes_or_least(config: TrainConfig, rows: int, device_type: str, parameters: int) -> PassBytes:
    """Count (2). Where it cannot be counted, count the embeddings of the tokens alone."""
    embedded = rows * config.seq_len * max(4 * config.model.d_model, 2 * config.model.d_ff)
    least = PassBytes(embedded, embedded)
    count = partial(_pass_bytes, rows=rows, device_type=device_type)
    if max(embedded, parameters) > BEYOND_ANY_MACHINE:
        return least
    log = logging.getLogger("torch._subclasses.fake_tensor")  # prints a traceback of what it cannot run
    was_disabled, log.disabled = log.disabled, True
    try:
        if not config.compile:
            return _extrapolated(count, config)
        recomputed = config.replace(compile=False, activation_checkpointing=True, recompute="blocks")
        after_forward = _extrapolated(count, recomputed).after_forward
        return PassBytes(after_forward, after_forward)
    except Exception:  # operations of an equilibrium depend on data; and no estimate may end a run
        return least
    finally:
        log.disabled = was_disabled


@lru_cache(maxsize=256)
def _pass_bytes(config: TrainConfig, rows: int, device_type: str) -> PassBytes:
    """Count (2)."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # takes a second to import

    with FakeTensorMode(), torch.device(device_type):
        model = config.model.build_uninitialised()
        model.train()
        model.activation_checkpointing = config.activation_checkpointing
        model.saved_ops = SAVED_OPS[config.recompute]
        tokens = torch.zeros(rows, config.seq_len, dtype=torch.long)
        targets = tokens if config.model.n_classes is None else tokens[:, 0]
        with LiveStorages() as live:
            with autocast(device_type, config.precision):
                loss, aux_loss = model.loss(tokens, targets)
            after_forward = live.now
            (loss + aux_loss).backward()
    return PassBytes(after_forward, live.peak)


class LiveStorages(TorchDispatchMode):
    """Counts the bytes of storages that operations create, for as long as something refers to them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = {id(x.untyped_storage()) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        result = operation(*args, **(kwargs or {}))
        if operation.name() == "attractor::linear_cross_entropy":
            self.peak = max(self.peak, self.now + held_logits(*args[:2]))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and id(tensor.untyped_storage()) not in given:
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._known:
            return
        n_bytes = storage.nbytes()
        self._known.add(key)
        self.now += n_bytes
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key, n_bytes)

    def _forget(self, key: int, n_bytes: int) -> None:
        self._known.discard(key)
        self.now -= n_bytes
