"""A process ends when its parent was killed."""

import multiprocessing
import multiprocessing.forkserver
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from attractor.errors import RunInterrupted
from attractor.train.interrupt import SIGNALS, StopRequest
from attractor.train.process import begin, end_at_once, fresh_processes, save_and_end

CONTEXT = multiprocessing.get_context("fork")  # forking is quick, and these processes compute nothing
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def child(act: Callable[[], Any], path: Path) -> None:
    signal.signal(signal.SIGTERM, lambda *_: path.with_name("saved").touch())
    begin(act)
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
    """Return whether the process has ended; until its parent waits for it, it stays in the process table."""
    status = Path(f"/proc/{process}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are seen through /proc")
@pytest.mark.parametrize(("act", "saves"), [(save_and_end, True), (end_at_once, False)])
def test_a_process_ends_without_its_parent(tmp_path: Path, act: Callable[[], Any], saves: bool) -> None:
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


def end_when_asked(folder: Path) -> None:
    """End with the number of the first of these signals, once the test permits it."""
    begin(end_at_once)
    for number in SIGNALS:
        signal.signal(number, lambda number, _: (folder / "asked").write_text(str(number)))
    (folder / "listens").touch()
    until(lambda: (folder / "let").exists())
    sys.exit(int((folder / "asked").read_text()))


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_to_all_processes_reaches_fresh_processes_and_spares_the_fork_server(
    number: signal.Signals, tmp_path: Path
) -> None:
    """Criterion: the parent knows that the fresh process is alive and later learns its exit code; the fork server
    reports both."""
    process = fresh_processes().Process(target=end_when_asked, args=(tmp_path,))
    process.start()
    until((tmp_path / "listens").exists)
    server = multiprocessing.forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    assert process.pid is not None
    for member in (server, process.pid):
        os.kill(member, number)
    until((tmp_path / "asked").exists)
    assert process.is_alive()
    (tmp_path / "let").touch()
    process.join()
    assert process.exitcode == number
    assert not has_ended(server)


def interrupted_twice(number: int) -> None:
    """End with 7 unless the second signal disturbs the end of the run that the first one interrupted."""
    begin(end_at_once)
    with suppress(RunInterrupted), StopRequest():
        signal.raise_signal(number)
        raise RunInterrupted("saved", number)
    signal.raise_signal(number)
    sys.exit(7)


def interrupted_before_its_run(number: int) -> None:
    begin(end_at_once)
    signal.raise_signal(number)


@pytest.mark.parametrize("number", SIGNALS)
def test_signals_to_a_fresh_process_end_it_without_a_traceback(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    """Criterion: before its run the signal ends the process; a repeated one after an interrupted run does nothing."""
    for act, exit_code in ((interrupted_twice, 7), (interrupted_before_its_run, -number)):
        process = CONTEXT.Process(target=act, args=(number,))
        process.start()
        process.join()
        assert process.exitcode == exit_code
    assert capfd.readouterr().err == ""
