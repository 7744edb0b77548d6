"""Launch many runs: the base of all launchers, and the launcher that gives each run a local process of its own.

Finished runs are skipped, interrupted ones resume, and a failed one is reported and does not stop the rest. A launcher
knows nothing of a run but its folder, from which progress is read.

Runs of one seed are compared with each other, and two processors round in other ways, so a launcher finishes the runs
of a seed on the kind of processor on which its first run began, where there is one.
"""

import os
import shlex
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from attractor.errors import InputError, RankLostError, RunInterrupted, RunStopped, require
from attractor.files import write_text
from attractor.files.code import error_in_executed_code
from attractor.runs.lock import RunInUseError
from attractor.runs.machine import environment
from attractor.runs.run_folder import DIVERGED, RunFolder
from attractor.train.checkpoint import WRITING, list_checkpoints
from attractor.train.config import Runtime, TrainConfig
from attractor.train.display import Display
from attractor.train.distributed import World
from attractor.train.interrupt import SIGNALS, StopRequest
from attractor.train.process import begin, fresh_processes, save_and_end
from attractor.train.ranks import Ranks

FAILURE = "failure.txt"
NOTES = "notes.txt"
POLL_SECONDS = 0.25
STOP_SECONDS = 60.0  # in which a run that was asked to end begins to save: it ends itself after 20 (`interrupt.py`)
STOPPED_BY = {128 + number: number for number in SIGNALS}  # exit codes of runs that saved when a signal asked them to
IN_USE = 75  # the exit code of a run that another process carries out: nothing may be written into its folder
UNGUARDED = 76  # the exit code of a process that found the call which started it in the script that it had to load
GUARD = (
    'a script must train below `if __name__ == "__main__":`, since the processes of its runs load it to find '
    "your mechanism; put the call there"
)


BatchProcess = BaseProcess | Ranks  # what carries out a batch: a process, or several processes that act as one
WatchJobs = Callable[[Sequence["Job"], Sequence["Job"]], None]  # called with the running and the ended jobs
Choose = Callable[[Sequence["Job"]], Sequence["Job"]]  # returns those of the jobs that are wanted, the next one first


@dataclass(frozen=True)
class Job:
    """A run to carry out: its configuration and its folder."""

    config: TrainConfig
    path: Path
    label: str = ""  # the name of the run's row; by default its mechanism

    @property
    def name(self) -> str:
        return f"{self.label or self.config.label} seed {self.config.seed}"

    @property
    def finished(self) -> bool:
        return (self.path / "config.json").exists() and RunFolder(self.path, {}).finished

    @property
    def diverged(self) -> str | None:
        """Why a run that has ended has no result."""
        with suppress(InputError):  # who reads the result of a damaged run reports it, and leaves it out
            return (RunFolder(self.path, {}).summary() or {}).get(DIVERGED)
        return None

    @property
    def has_checkpoint(self) -> bool:
        return bool(list_checkpoints(self.path / "checkpoints"))

    @property
    def is_saving(self) -> bool:
        return any((self.path / "checkpoints").glob(f"{WRITING}*"))

    @property
    def standing(self) -> str:
        """The checkpoint from which the same command continues, in words."""
        checkpoints = list_checkpoints(self.path / "checkpoints")
        if not checkpoints:
            return "it has no checkpoint yet, so the same command starts it anew"
        return f"its newest checkpoint is '{checkpoints[-1].name}', from which the same command goes on"

    def failure(self, exit_code: int | None) -> str:
        """Return why the run failed; `exit_code` is that of its process, or None if it is not known."""
        if exit_code == IN_USE:
            return f"another process carries out the run in '{self.path}'; wait until it ends, then repeat the command"
        if exit_code == UNGUARDED:
            return GUARD
        if exit_code in STOPPED_BY:
            return f"signal {STOPPED_BY[exit_code]} stopped it; {self.standing}"
        if exit_code is not None and exit_code < 0:
            return f"signal {-exit_code} ended its process; {self.standing}"
        for written in (self.path / FAILURE, failure_beside(self.path)):
            if written.exists():
                return written.read_text(errors="replace")
        return "its process ended without an error message"

    def notes(self) -> list[str]:
        """Return what the run noted for a person to read."""
        written = self.path / NOTES
        return written.read_text(errors="replace").splitlines() if written.exists() else []


def failure_beside(run: Path) -> Path:
    """Return the file for the reason of a failure before the run had a folder."""
    return run.with_name(f".{run.name}.{FAILURE}")


class Notes(Display):
    """The display of a run without a console: it writes its notes to a file, which the launcher prints."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def start(self) -> None:
        run = self.path.parent
        for written in (run / FAILURE, run / NOTES, failure_beside(run)):
            written.unlink(missing_ok=True)

    def note(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text + "\n")


def begun_on(jobs: Sequence[Job]) -> dict[int, dict[str, Any]]:
    """Return the environment in which the first run of each seed began, of the seeds that have one."""
    begun: dict[int, dict[str, Any]] = {}
    for job in jobs:
        with suppress(InputError):  # a damaged file is reported by the run
            if environment_of_run := RunFolder(job.path, {}).environment:
                begun.setdefault(job.config.seed, environment_of_run)
    return begun


def share_machine(n_jobs: int, workers: int | None, runtime: Runtime) -> tuple[int, Runtime]:
    """Return how many runs go side by side, and the runtime of each with its number of threads.

    Small models on a CPU waste least on one thread each. On a GPU one run at a time has the device to itself.
    """
    require(workers is None or workers >= 1, "workers", "at least 1", workers)
    cores = available_cores()
    on_gpu = runtime.device.startswith("cuda") or (runtime.device == "auto" and torch.cuda.is_available())
    n_workers = workers or (1 if on_gpu else max(1, min(n_jobs, cores)))
    return n_workers, replace(runtime, threads=runtime.threads or max(1, cores // n_workers))


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def launch(
    jobs: Sequence[Job],
    n_workers: int,
    runtime: Runtime,
    watch: WatchJobs,
    choose: Choose = lambda jobs: jobs,
) -> dict[str, str]:
    """Carry out all jobs that are wanted, `n_workers` side by side, and return the failures by name."""
    pool = ProcessPool(n_workers, lambda batch: fresh_processes().Process(target=carry_out, args=(batch, runtime)))
    return pool.carry_out(jobs, watch, choose=choose)


class Pool(ABC):
    """Carries out batches of jobs. A launcher is a pool that says how a batch is started, collected and stopped."""

    def __init__(self) -> None:
        self.batches: dict[Any, Sequence[Job]] = {}  # the running batches, by the process or task that carries them out
        self.failures: dict[str, str] = {}  # the reasons of ended jobs that failed, by name
        self.interrupted: list[Job] = []  # ended jobs that were stopped by a signal which this pool did not send

    def carry_out(
        self,
        jobs: Sequence[Job],
        watch: WatchJobs,
        batches: Sequence[Sequence[Job]] | None = None,
        choose: Choose = lambda jobs: jobs,
    ) -> dict[str, str]:
        """Carry out the unfinished jobs, in these batches or one by one, and return the failures by name.

        A signal stops the loop, and so does the moment from which no job is wanted. Running jobs are saved, and the
        same call continues from there.
        """
        ended = [job for job in jobs if job.finished]
        finished = set(ended)
        one_by_one = [[job] for job in self.in_order(jobs) if job not in finished]
        waiting: list[Sequence[Job]] = [*(one_by_one if batches is None else batches)]
        with self, StopRequest() as stop:
            while stop.signal_number is None:
                wanted = choose([job for batch in waiting for job in batch])
                job = self.next_to_start(wanted)
                if job is not None:
                    batch = next(batch for batch in waiting if job in batch)
                    waiting.remove(batch)
                    self.start(batch)
                elif choose(self.running):
                    watch(self.running, ended)
                    ended += self.collect()
                else:
                    break
            under_way = self.running
            ended += self.stop()
            watch([], ended)
            if stop.signal_number is not None:
                # A signal to all processes may have ended runs before this process received it.
                ended = [job for job in ended if job not in self.interrupted]
                halted = [job for job in [*self.interrupted, *under_way] if job not in ended]
                raise RunInterrupted(
                    f"interrupted: {len(ended)} of {len(jobs)} runs ended; under way: {len(halted)}, of these with a "
                    f"checkpoint: {sum(job.has_checkpoint for job in halted)}. "
                    f"Resume with the same command: {shlex.join(['attractor', *sys.argv[1:]])}",
                    stop.signal_number,
                )
        return self.failures

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop()

    @property
    def running(self) -> list[Job]:
        return [job for batch in self.batches.values() for job in batch]

    def in_order(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Return the jobs in the order in which they are started where there is room for all."""
        return jobs

    @abstractmethod
    def next_to_start(self, wanted: Sequence[Job]) -> Job | None:
        """Return the first of these jobs for which there is room."""

    @abstractmethod
    def start(self, batch: Sequence[Job]) -> None: ...

    @abstractmethod
    def collect(self) -> list[Job]:
        """Wait for a moment, and return the jobs that have ended since the last call."""

    @abstractmethod
    def stop(self) -> list[Job]:
        """Ask all running jobs to save and end, wait for them, and return those that finished or failed."""


class ProcessPool(Pool):
    """A pool of up to `n_at_once` processes of this machine; `process_of` makes the process of a batch.

    `set_aside` receives the exit code of each batch, and returns whether the batch counts as neither ended nor failed.
    """

    batches: dict[BatchProcess, Sequence[Job]]

    def __init__(
        self,
        n_at_once: int,
        process_of: Callable[[Sequence[Job]], BatchProcess],
        set_aside: Callable[[Sequence[Job], int | None], bool] = lambda batch, exit_code: False,
    ) -> None:
        super().__init__()
        self.n_at_once, self.process_of, self.set_aside = n_at_once, process_of, set_aside

    def in_order(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Return the jobs with those last whose seed began on another processor, where this one rounds differently."""
        here, begun = environment()["processor"], begun_on(jobs)
        return sorted(jobs, key=lambda job: begun.get(job.config.seed, {}).get("processor", here) != here)

    def next_to_start(self, wanted: Sequence[Job]) -> Job | None:
        return wanted[0] if wanted and len(self.batches) < self.n_at_once else None

    def start(self, batch: Sequence[Job]) -> None:
        process = self.process_of(batch)
        process.start()
        self.batches[process] = batch

    def collect(self) -> list[Job]:
        time.sleep(POLL_SECONDS)
        ended: list[Job] = []
        for process in [process for process in self.batches if not process.is_alive()]:
            process.join()
            batch = self.batches.pop(process)
            if self.set_aside(batch, process.exitcode):
                continue
            ended += batch
            unfinished = [job for job in batch if not job.finished]
            self.failures |= {job.name: job.failure(process.exitcode) for job in unfinished}
            if process.exitcode in STOPPED_BY or -(process.exitcode or 0) in SIGNALS:
                self.interrupted += unfinished
        return ended

    def stop(self) -> list[Job]:
        """Ask all processes to end, and kill those that neither save nor end in time, or all if Ctrl-C comes again."""
        for process in self.batches:
            process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        while alive := {process: batch for process, batch in self.batches.items() if process.is_alive()}:
            is_late = time.monotonic() > deadline
            for process, batch in alive.items():
                if StopRequest.insists or (is_late and not any(job.is_saving for job in batch)):
                    process.kill()
            time.sleep(POLL_SECONDS)
        for process in self.batches:
            process.join()
        ended = [job for job in self.running if job.finished]
        self.batches = {}
        return ended


def train_one(batch: Sequence[Job], runtime: Runtime) -> None:
    from attractor.train.loop import train

    (job,) = batch
    train(job.config, job.path, runtime, Notes(job.path / NOTES))


def carry_out(
    batch: Sequence[Job],
    runtime: Runtime,
    train_batch: Callable[[Sequence[Job], Runtime], None] = train_one,
) -> None:
    """Carry out a batch in a process or rank that was started for it."""
    begin(save_and_end)
    exit_code, _ = attempt(batch, lambda: train_batch(batch, runtime))
    sys.exit(exit_code)


def attempt(batch: Sequence[Job], train_batch: Callable[[], None]) -> tuple[int, str | None]:
    """Train, and return an exit code and the reason of a failure, which is also written to the folders of the runs."""
    exit_code, reason = 0, None
    try:
        train_batch()
    # Where a signal, another process or another rank ended the batch, its sender, owner or rank gives the reason.
    except RunInterrupted as interrupted:
        exit_code = interrupted.exit_code
    except RunInUseError:
        exit_code = IN_USE
    except Exception as error:
        exit_code = 1
        if World.from_environment().fails_first():
            if isinstance(error, InputError | RunStopped):
                exit_code, reason = 1 if isinstance(error, RankLostError) else 2, str(error)
            else:
                with suppress(OSError):  # the reader of standard error may be gone
                    traceback.print_exc()
                reason = str(error_in_executed_code(error) or f"{type(error).__name__}: {error}")
    for job in batch if reason is not None else ():
        try:
            job.path.parent.mkdir(parents=True, exist_ok=True)
            place = job.path / FAILURE if job.path.is_dir() else failure_beside(job.path)
            write_text(place, f"{reason}\n")
        except OSError:  # the reason of the failure may be that nothing can be written there
            print(f"{job.name}: {reason}", file=sys.stderr)
    return exit_code, reason
