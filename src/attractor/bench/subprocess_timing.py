"""Run a measurement in a subprocess, so that its memory is counted alone and running out of it ends nothing else."""

import gc
import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from attractor.console import in_bytes, in_time
from attractor.errors import InputError
from attractor.train.process import begin, end_at_once, fresh_processes

ENDING = 5.0  # seconds that a process may take to exit after its answer
SHARE = 0.9  # of the free memory, so that the operating system need not end a process


class NotMeasured(RuntimeError):  # noqa: N818
    """The reason why a case was not measured, in words that a table can show."""


def run_in_subprocess(function: Callable[..., Any], *args: Any, patience: float) -> Any:
    """Return `function(*args)`; raise NotMeasured if it fails or takes more than `patience` seconds."""
    context = fresh_processes()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, function, args, torch.get_num_threads()), daemon=True)
    process.start()
    assert process.pid is not None
    sender.close()
    try:
        if not receiver.poll(patience):
            raise NotMeasured(f"takes more than {in_time(patience)}")
        answer = receiver.recv()
        process.join(ENDING)
    except EOFError:
        raise NotMeasured("its process was ended from outside, as happens where memory runs out") from None
    finally:
        with suppress(ProcessLookupError):  # the process has ended, or has not begun yet
            os.killpg(process.pid, signal.SIGKILL)  # ends the compilers that the process started as well
        process.kill()
        process.join()
        receiver.close()
    if isinstance(answer, NotMeasured):
        raise answer
    return answer


def _answer(sender: Connection, function: Callable[..., Any], args: tuple[Any, ...], threads: int) -> None:
    begin(end_at_once)
    torch.set_num_threads(threads)
    free = free_memory(torch.device("cpu"))
    limit_data(int(SHARE * free))
    try:
        sender.send(function(*args))
    except Exception as error:
        sender.send(NotMeasured(in_words(error, free)))


def limit_data(more: int) -> None:
    """Limit this process to `more` bytes beyond those that it has. An allocation beyond the limit fails, so that the
    operating system kills nothing. Only Linux enforces the limit."""
    statm = Path("/proc/self/statm")
    held = int(statm.read_text().split()[5]) * resource.getpagesize() if statm.exists() else 0
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (held + more, hard))


def in_words(error: Exception, free: int) -> str:
    if isinstance(error, NotMeasured | InputError):
        return str(error)
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error):
        return f"out of memory ({in_bytes(free)} were free)"
    return f"{type(error).__name__}: {(str(error).splitlines() or ['no reason is given'])[0]}"


def free_memory(device: torch.device) -> int:
    """Return the number of bytes that are free on the device."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()  # otherwise the memory that torch caches counts as taken
        return torch.cuda.mem_get_info(device)[0]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(line.split(":") for line in meminfo.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
