"""Many runs in local processes: each a fresh process of its own, so that memory and failures stay its own.

Runs that are finished are skipped, interrupted ones resume, a failed one is reported and does not stop the rest. The
parent knows nothing of a run but its folder: progress is read from there.
"""

import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from attractor.attention.stage import require
from attractor.errors import InputError, RunInterrupted, RunStopped
from attractor.evidence.lock import RunInUseError
from attractor.evidence.run import RunFolder
from attractor.files import write_text
from attractor.train.config import Runtime, TrainConfig
from attractor.train.display import Silent
from attractor.train.distributed import World
from attractor.train.interrupt import StopRequest
from attractor.train.process import at_end_of_parent, fresh_processes, save_and_end

FAILURE = "failure.txt"
NOTES = "notes.txt"
POLL_SECONDS = 0.25
IN_USE = 75  # the exit code of a run that another process carries out: nothing may be written into its folder


@dataclass(frozen=True)
class Job:
    config: TrainConfig
    path: Path
    label: str = ""  # what the run is called; by default its mechanism

    @property
    def name(self) -> str:
        return f"{self.label or self.config.label} seed {self.config.seed}"

    @property
    def finished(self) -> bool:
        return (self.path / "config.json").exists() and RunFolder.open(self.path).finished

    def failure(self, exit_code: int | None) -> str:
        if exit_code == IN_USE:
            return f"another process carries out the run in '{self.path}'; wait until it ends, then repeat the command"
        if exit_code is not None and exit_code < 0:
            return f"signal {-exit_code} ended its process; what it saved is kept, the same command goes on from there"
        written = self.path / FAILURE
        return written.read_text() if written.exists() else "its process ended without a word"

    def notes(self) -> list[str]:
        """What the run wanted a person to know."""
        written = self.path / NOTES
        return written.read_text().splitlines() if written.exists() else []


class Notes(Silent):
    """The display of a run whose console is not its own: the parent passes its notes on."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def start(self) -> None:
        for written in (FAILURE, NOTES):
            (self.path.parent / written).unlink(missing_ok=True)

    def note(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text + "\n")


def share_machine(n_jobs: int, workers: int | None, runtime: Runtime) -> tuple[int, Runtime]:
    """How many runs go side by side, and each one's threads. Small models on a CPU waste least on one thread each; on a
    GPU one run at a time has the device to itself."""
    require(workers is None or workers >= 1, "workers", "at least 1", workers)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    on_gpu = runtime.device.startswith("cuda") or (runtime.device == "auto" and torch.cuda.is_available())
    n_workers = workers or (1 if on_gpu else max(1, min(n_jobs, cores)))
    return n_workers, replace(runtime, threads=runtime.threads or max(1, cores // n_workers))


def launch(
    jobs: Sequence[Job], n_workers: int, runtime: Runtime, watch: Callable[[Sequence[Job], Sequence[Job]], None]
) -> dict[str, str]:
    """Carry out all jobs; returns what failed, by name. `watch` is told of the running and the ended jobs."""
    context = fresh_processes()
    waiting = [job for job in jobs if not job.finished]
    ended = [job for job in jobs if job not in waiting]
    running: dict[Job, BaseProcess] = {}
    failures: dict[str, str] = {}
    with StopRequest() as stop:
        try:
            while waiting or running:
                while waiting and len(running) < n_workers and stop.signal_number is None:
                    job = waiting.pop(0)
                    started = context.Process(target=carry_out, args=(job, runtime))
                    started.start()
                    running[job] = started
                watch(list(running), ended)
                time.sleep(POLL_SECONDS)
                if stop.signal_number is not None:
                    break
                for job in [job for job, process in running.items() if not process.is_alive()]:
                    exit_code = running.pop(job).exitcode
                    ended.append(job)
                    if not job.finished:
                        failures[job.name] = job.failure(exit_code)
        finally:
            for process in running.values():  # asked to stop, each saves a checkpoint first
                process.terminate()
            for process in running.values():
                process.join()
    watch(list(running), ended)
    if stop.signal_number is not None:
        raise RunInterrupted(
            f"interrupted: {len(ended)} of {len(jobs)} runs ended, the running ones are saved. "
            f"Resume with the same command: {shlex.join(['attractor', *sys.argv[1:]])}",
            stop.signal_number,
        )
    return failures


def carry_out(job: Job, runtime: Runtime) -> None:
    """One run, or one rank of it, in a process of its own."""
    from attractor.train.loop import train

    os.setsid()  # Ctrl-C at the terminal is for the parent, which asks each run to stop exactly once
    at_end_of_parent(save_and_end)
    try:
        train(job.config, job.path, runtime, Notes(job.path / NOTES))
    except RunInterrupted as interrupted:
        sys.exit(interrupted.exit_code)
    except RunInUseError:
        sys.exit(IN_USE)
    except (InputError, RunStopped) as error:
        _write_failure(job, str(error))
        sys.exit(2)
    except Exception as error:
        if _write_failure(job, f"{type(error).__name__}: {error}"):
            raise  # with a traceback
        sys.exit(1)


def _write_failure(job: Job, text: str) -> bool:
    """Say why the run failed, and return True; but of several ranks only the first one that fails knows why."""
    first = World.from_environment().fails_first()
    if first and job.path.is_dir():
        write_text(job.path / FAILURE, text + "\n")
    return first
