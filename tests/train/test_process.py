"""What a process does whose parent was killed."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attractor.train.process import at_end_of_parent, end_at_once, save_and_end

CONTEXT = multiprocessing.get_context("fork")  # quick, and nothing is computed in these
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def child(act: Callable[[], Any], path: Path) -> None:
    os.setsid()
    signal.signal(signal.SIGTERM, lambda *_: path.with_name("saved").touch())
    at_end_of_parent(act)
    path.write_text(str(os.getpid()))
    while not path.with_name("saved").exists():
        time.sleep(0.01)


def parent(act: Callable[[], Any], path: Path) -> None:
    CONTEXT.Process(target=child, args=(act, path)).start()
    time.sleep(60)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def has_ended(process: int) -> bool:
    """One that nobody waits for stays in the table of processes."""
    status = Path(f"/proc/{process}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are seen through /proc")
@pytest.mark.parametrize(("act", "saves"), [(save_and_end, True), (end_at_once, False)])
def test_without_its_parent_it_ends(tmp_path: Path, act: Callable[[], Any], saves: bool) -> None:
    path = tmp_path / "child"
    process = CONTEXT.Process(target=parent, args=(act, path))
    process.start()
    until(lambda: path.exists() and path.read_text() != "")
    number = int(path.read_text())
    assert not has_ended(number)
    process.kill()
    process.join()
    until(lambda: has_ended(number))
    assert (tmp_path / "saved").exists() == saves
