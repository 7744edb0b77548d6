"""The processes of a run say which of them is missing."""

import os
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest
import torch

from attractor.errors import RankLostError
from attractor.files import MACHINE
from attractor.train import rank_records
from attractor.train.distributed import World
from attractor.train.rank_records import RankRecord, RankRecords
from attractor.train.ranks import remove_left_folders
from stress.rank_faults import CASES, disturb

LOST = RuntimeError("[third_party/gloo/gloo/transport/tcp/pair.cc] Connection closed by peer")


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[RankRecords]:
    monkeypatch.setattr(rank_records, "ANSWER_SECONDS", 0.3)
    return [RankRecords(tmp_path / "records", rank, 3) for rank in range(3)]


def test_the_silent_rank_is_named_with_what_it_did_last(three: list[RankRecords]) -> None:
    """Criterion: of the two that wait in vain the first one speaks."""
    three[1].doing("reading its batch", 7)
    answers: dict[int, tuple[str, bool]] = {}
    threads = [threading.Thread(target=lambda r=r: answers.update({r: three[r].why_lost(LOST)})) for r in (0, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in (0, 2):
        message, speaks = answers[rank]
        assert message.startswith(f"rank 1 is gone or stuck (process {os.getpid()}; ")
        assert message.endswith(" s ago, at step 8, it began reading its batch)")
        assert speaks == (rank == 0)


def test_a_rank_that_failed_is_named_with_its_error(three: list[RankRecords]) -> None:
    three[2].ended("MemoryError: no room")
    assert three[0].why_lost(LOST) == ("rank 2 failed: MemoryError: no room", True)


def test_if_all_wait_the_error_is_told(three: list[RankRecords]) -> None:
    for rank in (1, 2):
        three[rank].ended(rank_records.WAITS)
    assert three[0].why_lost(LOST) == (f"the processes have lost one another: {LOST}", True)
    assert three[1].why_lost(LOST) == (f"the processes have lost one another: {LOST}", False)


def test_folders_of_killed_launchers_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: those of living processes and of other machines stay."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    names = {f"{MACHINE}-{ended.pid}-a": False, f"{MACHINE}-{os.getpid()}-b": True, "0-1-c": True}
    for name in names:
        (tmp_path / f"attractor-ranks-{name}" / "in").mkdir(parents=True)
    remove_left_folders()
    assert {name: (tmp_path / f"attractor-ranks-{name}").exists() for name in names} == names


def test_a_record_fits_its_slot(three: list[RankRecords]) -> None:
    """Criterion: long errors in any letters leave the slot of the next rank as it was."""
    three[1].doing("validating", 10**12)
    three[0].ended("\U0001f3d6" * 1000)
    assert three[2].others()[1].phase == "validating"
    assert three[2].others()[0].end.startswith("\U0001f3d6")
    assert three[0].others()[2] == RankRecord(os.getpid(), "starting", None, three[2].record.since)


def test_a_rank_that_never_starts_ends_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: one line names the time limit instead of a traceback of torch."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    alone = World(rank=0, size=2, local_size=2, store=str(tmp_path / "store"))
    rule = r"the 2 processes .* within 0.5 s \(collective_timeout\)"
    with pytest.raises(RankLostError, match=rule) as lost, alone.joined(torch.device("cpu"), tmp_path, 0.5):
        raise AssertionError("nobody else is there")
    assert lost.value.speaks
    assert not torch.distributed.is_initialized()


@pytest.mark.slow
@pytest.mark.parametrize(("started_by", "fault"), CASES)
def test_a_fault_of_one_rank_ends_all_and_loses_nothing(started_by: str, fault: str, tmp_path: Path) -> None:
    """Criterion: that of `disturb`. A rank that hangs costs its run the time limit, not more."""
    disturb(tmp_path / "faulty", started_by, fault)
