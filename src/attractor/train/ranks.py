"""Start the ranks of one distributed run on this machine, without torchrun.

torchrun's rendezvous is a TCP store that listens on every network interface, asks for no password, and is read by
unpickling. Ranks that are started here meet over a file in a folder that only this user may enter (`distributed.py`).
"""

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from attractor.files import MACHINE, is_running, remove
from attractor.train.distributed import STORE
from attractor.train.process import fresh_processes

PREFIX = "attractor-ranks-"
GRACE_SECONDS = 30.0  # as torchrun: gloo tells the other ranks at once that one is gone, NCCL may leave them waiting


class Ranks:
    """The processes of one distributed run, to be handled like the one process of an ordinary run.

    Each process calls `act(*arguments)`. When a rank has failed, the other ranks are given GRACE_SECONDS to notice,
    and are then killed.
    """

    def __init__(self, size: int, act: Callable[..., Any], *arguments: Any) -> None:
        remove_left_folders()
        prefix = f"{PREFIX}{MACHINE}-{os.getpid()}-"
        self.folder = tempfile.TemporaryDirectory(prefix=prefix)  # mkdtemp makes it with mode 0700
        store = str(Path(self.folder.name) / "store")
        context = fresh_processes()
        self.processes = [
            context.Process(target=_be_rank, args=(rank, size, store, act, arguments)) for rank in range(size)
        ]
        self.first_failure: int | None = None
        self.deadline: float | None = None

    def start(self) -> None:
        for process in self.processes:
            process.start()

    def is_alive(self) -> bool:
        """Whether any rank is at work. Ranks that outlive the failure of another for too long are killed here."""
        alive = [process for process in self.processes if process.is_alive()]
        failures = [process.exitcode for process in self.processes if process.exitcode]
        if failures and self.deadline is None:
            # A signal (a negative code) comes first: ranks that miss the one that was killed fail with an error.
            self.first_failure, self.deadline = min(failures), time.monotonic() + GRACE_SECONDS
        if self.deadline is not None and time.monotonic() > self.deadline:
            self.kill()
        return bool(alive)

    @property
    def exitcode(self) -> int | None:
        """None while a rank is alive, then the exit code of the rank that failed first, or 0."""
        return None if self.is_alive() else self.first_failure or 0

    def terminate(self) -> None:
        for process in self.processes:
            process.terminate()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

    def join(self) -> None:
        while self.is_alive():
            time.sleep(0.05)
        self.folder.cleanup()


def remove_left_folders() -> None:
    """Remove the folders that killed processes of this machine left, in which their ranks met."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}{MACHINE}-*"):
        process = folder.name.removeprefix(f"{PREFIX}{MACHINE}-").partition("-")[0]
        if process.isdecimal() and not is_running(int(process)):
            with suppress(OSError):  # it belongs to another user
                remove(folder)


def _be_rank(rank: int, size: int, store: str, act: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    names = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size, STORE: store}
    os.environ |= {name: str(value) for name, value in names.items()}
    act(*arguments)
