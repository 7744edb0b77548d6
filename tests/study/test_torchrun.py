"""`launch` with several processes for one run keeps the contract of `study/launch.py`."""

import ipaddress
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from attractor.errors import InputError, RunInterrupted
from attractor.files import MACHINE
from attractor.runs.run_folder import RunFolder
from attractor.study.launch import Job, carry_out
from attractor.study.torchrun import launch
from attractor.train import ranks
from attractor.train.config import Runtime, TrainConfig
from attractor.train.loop import Run
from attractor.train.ranks import Ranks, remove_left_folders
from attractor.train.trainer import StepResult
from stress.rank_faults import CASES, disturb

LISTENS = "0A"  # this is the state of a listening socket in /proc/net/tcp
on_linux = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="processes are seen through /proc")
RUNTIME = Runtime(device="cpu", threads=1, log_every=1)


def ignore(running: Sequence[Job], ended: Sequence[Job]) -> None: ...


def once_it_trains(job: Job, act: Callable[[], None]) -> Callable[[Sequence[Job], Sequence[Job]], None]:
    """Return a `watch` that acts once, when the run has taken its first step."""
    acted = []

    def watch(running: Sequence[Job], ended: Sequence[Job]) -> None:
        if not acted and (job.path / "metrics.jsonl").exists() and RunFolder.open(job.path).metrics():
            acted.append(True)
            act()

    return watch


def descendants() -> list[int]:
    """Return the process ids of all descendants of this process."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:  # the process has ended
            continue
    found = [os.getpid()]
    for parent in found:
        found += [process for process, its_parent in parents.items() if its_parent == parent]
    return found[1:]


def listening(processes: Sequence[int]) -> set[str]:
    """Return the addresses at which these processes accept TCP connections."""
    inodes = set()
    for process in processes:
        for descriptor in Path(f"/proc/{process}/fd").glob("*"):
            try:
                inodes.add(str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
    addresses = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:] if Path(table).exists() else ():
            words = line.split()
            if words[3] == LISTENS and words[9] in inodes:
                digits = bytes.fromhex(words[1].partition(":")[0])  # words of 32 bits in the machine's byte order
                packed = b"".join(
                    digits[i : i + 4][:: -1 if sys.byteorder == "little" else 1] for i in range(0, len(digits), 4)
                )
                addresses.add(str(ipaddress.ip_address(packed)))
    return addresses


@on_linux
def test_listening_sockets_are_seen() -> None:
    """This is the control for the test below: a socket at a known address is found at this address."""
    with socket.create_server(("127.0.0.1", 0)):
        assert listening([os.getpid()]) == {"127.0.0.1"}
    with socket.create_server(("", 0)):
        assert listening([os.getpid()]) == {"0.0.0.0"}


@on_linux
@pytest.mark.slow
def test_no_process_of_a_run_can_be_reached_from_another_machine(base: TrainConfig, tmp_path: Path) -> None:
    """Criterion: while a run trains, its ranks listen on the loopback interface, where gloo connects them, and no
    process of the launcher listens anywhere else. (A TCP store of torch listens on all interfaces, and unpickles what
    it receives.)"""
    job = Job(base.replace(n_steps=4000, eval_every=4000, warmup_steps=0), tmp_path / "run")
    seen: list[set[str]] = []

    def look_and_stop() -> None:
        seen.append(listening(descendants()))
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(RunInterrupted):
        launch([job], 2, RUNTIME, once_it_trains(job, look_and_stop))
    assert seen == [{"127.0.0.1"}]


@on_linux
@pytest.mark.slow
def test_a_killed_rank_ends_the_others_and_the_run_continues_later(base: TrainConfig, tmp_path: Path) -> None:
    """Criterion: the failure names the signal, not the lost connection of the other rank. No process of the run is
    left, and the same call finishes the run."""
    job = Job(base.replace(n_steps=400, eval_every=400), tmp_path / "run")
    others = set(descendants())
    left: list[int] = []

    def kill_one() -> None:
        left.extend(process for process in descendants() if process not in others and is_rank(process))
        os.kill(left[-1], signal.SIGKILL)

    failures = launch([job], 2, RUNTIME, once_it_trains(job, kill_one))
    assert len(left) == 2
    assert failures == {job.name: job.failure(-signal.SIGKILL)}
    assert not set(left) & set(descendants())
    assert launch([job], 2, RUNTIME, ignore) == {}
    assert job.finished


def is_rank(process: int) -> bool:
    """Return whether the process has the loopback sockets that gloo opens in each rank."""
    return bool(listening([process]))


def break_the_last_rank(job: Job) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "of a cluster"  # the launcher must override this, or gloo would not start
    take_step = Run.take_step

    def broken(run: Run) -> StepResult:
        if run.step == 3 and run.world.rank == 1:
            raise MemoryError("no room on rank 1")
        return take_step(run)

    Run.take_step = broken  # type: ignore[method-assign]
    carry_out([job], RUNTIME)


@pytest.mark.slow
def test_the_message_of_the_rank_that_failed_first_is_kept(base: TrainConfig, tmp_path: Path) -> None:
    """Criterion: rank 0 also fails, since it loses its connection, but the reported reason is that of rank 1."""
    job = Job(base, tmp_path / "run")
    both = Ranks(2, break_the_last_rank, job)
    both.start()
    both.join()
    assert [process.exitcode for process in both.processes] == [1, 1]
    assert job.failure(both.exitcode) == "MemoryError: no room on rank 1\n"


def fail_or_wait(folder: Path) -> None:
    """Let rank 1 fail once rank 0 waits for ever; rank 0 ignores SIGTERM."""
    if os.environ["RANK"] == "1":
        while not (folder / "waits").exists():
            time.sleep(0.01)
        sys.exit(3)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (folder / "waits").touch()
    time.sleep(600)


def test_a_rank_that_waits_for_ever_for_a_failed_one_is_killed(tmp_path: Path, monkeypatch) -> None:
    """Criterion: the reported exit code is that of the rank that failed, not of the one that was killed because of
    it."""
    monkeypatch.setattr(ranks, "GRACE_SECONDS", 0.1)
    both = Ranks(2, fail_or_wait, tmp_path)
    both.start()
    both.join()
    assert both.exitcode == 3
    assert not any(process.is_alive() for process in both.processes)


@pytest.mark.slow
def test_runs_one_after_another_and_a_failed_one_does_not_stop_the_rest(base: TrainConfig, tmp_path: Path) -> None:
    """Criterion: the failure is the line that `train` would print, and the other run ends on two processes. A second
    call starts and changes nothing."""
    jobs = [Job(base, tmp_path / "taken"), Job(base.replace(seed=1), tmp_path / "good")]
    RunFolder.create(jobs[0].path, base.replace(lr=1e-4).to_dict())
    failures = launch(jobs, 2, RUNTIME, ignore)
    assert failures.keys() == {"standard seed 0"}
    assert "holds a run with another configuration: lr is 0.0001 there" in failures["standard seed 0"]
    summary = RunFolder.open(jobs[1].path).summary()
    assert summary is not None
    assert (summary["steps"], summary["processes"]) == (12, 2)
    assert launch(jobs[1:], 2, RUNTIME, ignore) == {}
    assert RunFolder.open(jobs[1].path).summary() == summary


def test_a_batch_that_does_not_divide_is_refused_before_anything_starts(base: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="divisible by the number of processes, 3, got 4 / 1"):
        launch([Job(base, tmp_path / "run")], 3, RUNTIME, ignore)
    assert not (tmp_path / "run").exists()


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


@pytest.mark.slow
@pytest.mark.parametrize(("started_by", "fault"), CASES)
def test_a_fault_of_one_rank_ends_all_and_loses_nothing(started_by: str, fault: str, tmp_path: Path) -> None:
    """Criterion: that of `disturb`. A rank that hangs costs its run the time limit, not more."""
    disturb(tmp_path / "faulty", started_by, fault)
