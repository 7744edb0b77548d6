"""Record what each process of a distributed run is doing, so that those that wait for it can say where it is stuck.

Every process has a slot of a shared file, into which it writes its step and phase whenever they change. That takes
microseconds, and the record of a process that is stopped or killed remains. A process whose collective operation fails
records that, too. The process that then records nothing is the one that is gone or stuck.
"""

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

SLOT = 2048  # bytes
ANSWER_SECONDS = 3.0  # in which all other processes have noticed that one is gone, or said that they failed
WAITS = "waits in vain"


@dataclass(frozen=True)
class RankRecord:
    """A process, what it is doing, and since when."""

    process: int = 0
    phase: str = "starting"
    step: int | None = None
    since: float = 0.0
    end: str = ""  # WAITS, or the error that ended the process

    def __str__(self) -> str:
        step = "" if self.step is None else f", at step {self.step + 1},"
        return f"process {self.process}; {time.time() - self.since:.0f} s ago{step} it began {self.phase}"


class RankRecords:
    """The records of all processes. The file at `path` is in a folder that all of them see."""

    def __init__(self, path: Path, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.record = RankRecord()
        self.doing("starting")

    def doing(self, phase: str, step: int | None = None) -> None:
        self._write(RankRecord(os.getpid(), phase, step, time.time()))

    def ended(self, how: str) -> None:
        self._write(RankRecord(**asdict(self.record) | {"end": how[: SLOT // 16]}))

    def _write(self, record: RankRecord) -> None:
        self.record = record
        with suppress(OSError):  # a full disk ends the run where it saves, and not here
            os.pwrite(self.descriptor, json.dumps(asdict(record)).encode().ljust(SLOT), self.rank * SLOT)

    def others(self) -> dict[int, RankRecord]:
        """Return the records of the other processes by rank."""
        records = {}
        for rank in range(self.size):
            slot = os.pread(self.descriptor, SLOT, rank * SLOT).strip(b" \0")
            if rank != self.rank:
                records[rank] = RankRecord(**json.loads(slot)) if slot else RankRecord()
        return records

    def why_lost(self, error: BaseException) -> tuple[str, bool]:
        """Say which process is missing after a collective operation has failed in this one, and whether this process
        is the first of those that noticed."""
        self.ended(WAITS)
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline and not _failed(others := self.others()):
            if all(record.end for record in others.values()):
                break
            time.sleep(0.05)
        others = self.others()
        is_first = all(rank > self.rank for rank, record in others.items() if record.end == WAITS)
        if failed := _failed(others):
            rank, record = min(failed.items())
            return f"rank {rank} failed: {record.end}", is_first
        silent = {rank: record for rank, record in others.items() if not record.end}
        if not silent:
            return f"the processes have lost one another: {str(error).partition(chr(10))[0]}", is_first
        return "; ".join(f"rank {rank} is gone or stuck ({record})" for rank, record in silent.items()), is_first

    def close(self) -> None:
        os.close(self.descriptor)


def _failed(others: Mapping[int, RankRecord]) -> dict[int, RankRecord]:
    return {rank: record for rank, record in others.items() if record.end not in ("", WAITS)}
