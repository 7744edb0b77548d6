"""Decide before anything is allocated whether a run fits into the free memory, and which micro-batch does.

    a run is refused where  planned_memory(run) > free                                                      (1)
    --batch-size auto takes the largest micro-batch with  margin planned_memory(run) + RESERVED <= free     (2)

On a GPU, the driver says how much memory is free. On Linux it is MemAvailable, or less under the limit of a control
group. On other systems the free memory is unknown, and nothing is refused.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from attractor.console import in_bytes
from attractor.errors import InputError
from attractor.train.calibrate import CalibrationError, OutOfMemory, calibrate
from attractor.train.config import Runtime, TrainConfig
from attractor.train.distributed import World
from attractor.train.hardware import resolve_device
from attractor.train.memory import REPEATED, PlannedMemory, ProcessLayout, planned_memory

# How much more memory a run may take than planned. On a CPU the heap fragments: measured peaks of 0.6 to 1.3 GB were
# 1.15 to 1.75 times the planned ones, and 2.2 times with a softcap. On a GPU the first steps are tried as well.
MARGINS = {"cpu": 2.2, "cuda": 1.1}
RESERVED = 2**28  # bytes for the libraries of a process


def free_bytes(device: torch.device) -> int | None:
    """Return the bytes that a new run could take on a device, or None if that is unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    return min(free_by_limit(Path("/proc"), Path("/sys/fs/cgroup")), default=None)


def free_by_limit(proc: Path, control_groups: Path) -> Iterator[int]:
    """Yield the bytes that each limit of this machine leaves free."""
    try:
        lines = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
        yield int(lines["MemAvailable"].split()[0]) * 1024
        names = [line.split(":", 2) for line in (proc / "self/cgroup").read_text().splitlines()]
    except (OSError, KeyError, ValueError):
        return
    for _, controllers, path in names:
        if controllers == "":  # version 2 of control groups
            root, limit, used = control_groups, "memory.max", "anon"
        elif "memory" in controllers.split(","):
            root, limit, used = control_groups / "memory", "memory.limit_in_bytes", "total_rss"
        else:
            continue
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            try:
                counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                yield max(int((folder / limit).read_text()) - int(counts[used]), 0)
            except (OSError, KeyError, ValueError):  # this group is not mounted here, or its limit is "max"
                continue


@dataclass(frozen=True)
class FreeMemory:
    """The free memory, in bytes, of the device and the processes on which runs will be carried out."""

    device: torch.device
    processes: ProcessLayout
    on_device: int | None  # None: unknown
    on_cpu: int | None

    @classmethod
    def of(cls, runtime: Runtime, processes: ProcessLayout | None = None) -> "FreeMemory":
        """Return the free memory of one process. The processes of torchrun share the memory of a CPU evenly."""
        world, device = World.from_environment(), resolve_device(runtime.device)
        on_device, on_cpu = free_bytes(device), free_bytes(torch.device("cpu"))
        if device.type == "cpu" and on_device is not None:
            on_device //= world.local_size
        return cls(device, processes or ProcessLayout(world.size, runtime.parallel), on_device, on_cpu)

    @classmethod
    def of_absent_gpu(cls, processes: ProcessLayout) -> "FreeMemory":
        """Return the unknown memory of a GPU that this machine does not have, for plans."""
        return cls(torch.device("cuda"), processes, None, None)

    def plan(self, config: TrainConfig) -> PlannedMemory:
        return planned_memory(config, self.processes, self.device.type)

    def refuse_any(self, configs: Sequence[TrainConfig], n_at_once: int = 1) -> list[PlannedMemory]:
        """Refuse runs with (1), and return the planned memory of all others.

        Nothing is planned, and the list is empty, where a quick bound shows that the `n_at_once` largest fit at once.
        """
        at_once = sorted((_generous_bytes(config) for config in configs), reverse=True)[:n_at_once]
        if self.on_device is None or sum(at_once) <= self.on_device:
            return []
        return [self.refuse_oversized(config) for config in configs]

    def holds(self, config: TrainConfig, margin: float = 1.0) -> bool:
        return self.on_device is None or margin * self.plan(config).total <= self.on_device

    def refuse_oversized(self, config: TrainConfig) -> PlannedMemory:
        """Refuse a run with (1), and return the planned memory of any other run."""
        memory = self.plan(config)
        if self.on_cpu is not None and memory.batch > self.on_cpu:
            remedy = "a smaller batch_size"
            raise _oversized("batch_size", config.batch_size, memory.batch, self.on_cpu, "cpu", remedy)
        if self.on_device is not None and memory.total > self.on_device:
            field, value, remedy = self._to_change(config, memory)
            raise _oversized(field, value, memory.total, self.on_device, str(self.device), remedy)
        return memory

    def _to_change(self, config: TrainConfig, memory: PlannedMemory) -> tuple[str, int, str]:
        """Return the field that takes most of the memory, its value, and what to give in its place."""
        assert self.on_device is not None
        if memory.of_the_model > self.on_device:
            field = _largest_size(config)
            return field, getattr(config.model, field), f"a smaller {field}"
        if (smaller := self.smaller_micro_batch(config)) is not None:
            return "batch_size", config.batch_size, f"accumulation={smaller.accumulation}, or a smaller batch_size"
        recomputed = config if config.activation_checkpointing else config.replace(activation_checkpointing=True)
        if self.holds(recomputed):
            return "seq_len", config.seq_len, "activation_checkpointing, or a smaller seq_len"
        if (smaller := self.smaller_micro_batch(recomputed)) is not None:
            remedy = f"accumulation={smaller.accumulation} with activation_checkpointing, or a smaller batch_size"
            return "batch_size", config.batch_size, remedy
        return "seq_len", config.seq_len, "a smaller seq_len"

    def smaller_micro_batch(self, config: TrainConfig, margin: float = 1.0) -> TrainConfig | None:
        """Return the config with the least accumulation, not below its own, that fits; None if none fits."""
        size, n_processes = config.batch_size, self.processes.size
        divisors = [n for n in range(config.accumulation, size + 1) if size % n == 0 and size // n % n_processes == 0]
        # The planned memory falls as accumulation grows.
        first = bisect_left(divisors, True, key=lambda n: self.holds(config.replace(accumulation=n), margin))
        return config.replace(accumulation=divisors[first]) if first < len(divisors) else None

    def refuse_side_by_side(self, memories: Sequence[PlannedMemory], n_at_once: int) -> None:
        """Refuse a number of workers whose largest runs do not fit at once."""
        totals = sorted((memory.total for memory in memories), reverse=True)
        needed, free = sum(totals[:n_at_once]), self.on_device
        if free is None or needed <= free:
            return
        fitting = max(n for n in range(1, n_at_once + 1) if sum(totals[:n]) <= free or n == 1)
        raise InputError(
            f"workers must be few enough for the memory that is free, got {n_at_once}: their runs need at least "
            f"{in_bytes(needed)} at once, and {in_bytes(free)} are free; give --workers {fitting}, or smaller runs"
        )


def auto_batch(config: TrainConfig, runtime: Runtime, processes: ProcessLayout) -> TrainConfig:
    """Return the config with the least accumulation whose micro-batch fits (2). On a GPU its first steps are tried."""
    if World.from_environment().size > 1:
        raise InputError(
            "batch_size must be a number under torchrun, got auto; 'attractor plan --batch-size auto' with its "
            "option --devices says which accumulation fits"
        )
    World(size=processes.size).refuse_uneven(config.batch_size, 1)
    memory = FreeMemory.of(runtime, processes)
    spared = replace(memory, on_device=None if memory.on_device is None else memory.on_device - RESERVED)
    fitting = spared.smaller_micro_batch(config.replace(accumulation=1), MARGINS.get(memory.device.type, 1.0))
    if fitting is None:  # the smallest micro-batch may fit without the margin
        fitting = config.replace(accumulation=config.batch_size // processes.size)
        memory.refuse_oversized(fitting)
    return _verified(fitting, runtime) if memory.device.type == "cuda" and processes.size == 1 else fitting


def said_of_auto(config: TrainConfig, processes: ProcessLayout, free: int | None) -> str:
    """Return the line that says which micro-batch fits."""
    n_sequences = config.micro_batch_size // processes.size
    of_free = "" if free is None else f", of {in_bytes(free)} free"
    return (
        f"batch_size=auto: accumulation={config.accumulation} with batch_size={config.batch_size}, so that "
        f"{n_sequences} sequence{'s' * (n_sequences > 1)} go through the model at once{of_free}"
    )


def _verified(config: TrainConfig, runtime: Runtime) -> TrainConfig:
    """Return the config; its micro-batch is at least halved whenever its first steps run out of memory."""
    while True:
        try:
            calibrate(config, runtime)
        except OutOfMemory as full:
            size = config.batch_size
            more = next((n for n in range(2 * config.accumulation, size + 1) if size % n == 0), None)
            if more is None:
                raise InputError(f"batch_size must leave a micro-batch that fits, got auto: {full}") from full
            config = config.replace(accumulation=more)
        except CalibrationError as failed:
            raise InputError(f"batch_size must be a number here, got auto: first steps failed: {failed}") from failed
        else:
            return config


def _generous_bytes(config: TrainConfig) -> int:
    """Return more bytes than a run of this config needs: many times the numbers that its layers hold."""
    model = config.model
    n_layers = math.prod(getattr(model, name, 0) + 1 for name in REPEATED)
    numbers_per_token = model.d_model + model.d_ff + model.n_heads * config.seq_len
    tokens = config.micro_batch_size * config.seq_len
    weights = model.d_model * (model.vocab_size + model.max_seq_len + 10 * n_layers * (model.d_model + model.d_ff))
    return 64 * (n_layers * (tokens * numbers_per_token) + weights + tokens * model.vocab_size)


def _largest_size(config: TrainConfig) -> str:
    """Return the field of the model from which most of its parameters come."""
    model = config.model
    n_layers = getattr(model, "n_layers", 1)
    sizes = {
        "vocab_size": model.vocab_size,
        "max_seq_len": model.max_seq_len if model.positions == "learned" else 0,
        "d_ff": n_layers * model.d_ff,
        "d_model": n_layers * model.d_model,
    }
    largest = max(sizes, key=lambda name: sizes[name])
    return "n_layers" if largest in ("d_ff", "d_model") and n_layers > getattr(model, largest) else largest


def _oversized(field: str, value: int, needed: int, free: int, device: str, remedy: str) -> InputError:
    return InputError(
        f"{field} must leave the run within the memory that is free, got {value}: it needs at least "
        f"{in_bytes(needed)}, and {in_bytes(free)} are free on {device}; give {remedy}"
    )
