"""Describe the machine and how a run uses it: device, peak memory, and model FLOPs utilisation (MFU)."""

import resource
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attractor.console import in_time
from attractor.errors import InputError
from attractor.kernels.precision import HALF_PRECISIONS
from attractor.kernels.wide_products import has_instructions
from attractor.tasks import Batch
from attractor.train.distributed import World
from attractor.train.heap import give_back_freed_memory

# Dense bf16 peaks in FLOP/s from the makers' data sheets. The MFU of any other device is shown as "n/a".
PEAK_FLOPS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,  # must stand before "H100", which is part of this name
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}


def resolve_device(name: str) -> torch.device:
    """Return the device of this name, `auto` included, and refuse a device that is not there.

    Each of several processes of a run gets a GPU of its own.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    world = World.from_environment()
    if world.size > 1 and name.startswith("cuda"):
        n_gpus = torch.cuda.device_count()
        if name != "cuda" or world.local_size > n_gpus:
            rule = f"cuda with at most {n_gpus} processes here, one for each GPU,"
            raise InputError(f"device must be {rule} got '{name}' with {world.local_size}; change --nproc-per-node")
        name = f"cuda:{world.local_rank}"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"device must be one that torch can use here, got '{name}'; try cpu, cuda or auto") from error
    return device


def gpu_of(name: str) -> str | None:
    """Return the name of the GPU on which a device of this name computes, or None if it computes on no GPU that is
    here."""
    is_gpu = torch.cuda.is_available() and name.startswith(("auto", "cuda"))
    return torch.cuda.get_device_name(None if name == "auto" else name) if is_gpu else None


def slow_precision(precision: str, device: torch.device) -> str | None:
    """Say that this processor has no instructions for half precision, if that is so."""
    dtype = HALF_PRECISIONS.get(precision)
    if device.type != "cpu" or dtype is None or has_instructions(dtype):
        return None
    return (
        f"precision {precision} gains no time here: this processor has no instructions for it, so products are "
        "computed in fp32 and rounded"
    )


def arithmetic(device: torch.device, n_processes: int = 1) -> str:
    """Describe what decides in which order sums are added, and so how they are rounded."""
    n_threads = torch.get_num_threads()
    on_cpu = f"{device.type} with {n_threads} thread{'s' * (n_threads > 1)}"
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else on_cpu
    return f"{name}, torch {torch.__version__}" + f", {n_processes} processes" * (n_processes > 1)


def moved(array: np.ndarray, device: torch.device) -> Tensor:
    """Return the array as a tensor on the device, without waiting for earlier operations of the device."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def on_device(batch: Batch, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the inputs, the targets and the mask of real positions, as tensors on the device."""
    real = None if batch.real is None else moved(batch.real, device)
    return moved(batch.inputs, device), moved(batch.targets, device), real


class PeakMemory:
    """The largest number of bytes that a run held, beyond what the process held when the run began.

    Where several runs share the process, each counts an equal share.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.n_shares = device, 1
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self._before, self._peak = _forget_peak(), 0

    def read(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) // self.n_shares
        self._peak = max(self._peak, _resident("VmHWM") - self._before)  # the system updates its count with a delay
        return self._peak // self.n_shares


def _forget_peak() -> int:
    """Let the system forget the peak of this process, and return the bytes that the process holds.

    Where the system cannot forget it, return the peak. Free memory is given back first, because a run could otherwise
    use it without being seen.
    """
    give_back_freed_memory()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return _resident("VmHWM")
    return _resident("VmRSS")


def _resident(kind: str) -> int:
    """Return the resident bytes of a kind that Linux names; other systems know the peak alone."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024  # kilobytes everywhere but on a Mac
    return int(lines[kind].split()[0]) * 1024


def time_of_a_gpu(flops: float) -> str:
    """Say how long a GPU takes for so many FLOPs, at a utilisation that large models reach. Small ones take longer."""
    return f"{in_time(flops / (0.4 * PEAK_FLOPS['H100']))} of an H100 at 40% of its peak"


def model_flops_utilisation(flops_per_second: float, device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((flops_per_second / peak for key, peak in PEAK_FLOPS.items() if key in name), None)
