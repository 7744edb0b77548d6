"""Many runs one after another, each on several processes of this machine that torchrun starts.

The same contract as `launch.py`: finished runs are skipped, interrupted ones resume, a failed one is reported and does
not stop the rest. `n_workers` is the number of processes of one run, which share its batches.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from attractor.attention.stage import require
from attractor.errors import InputError, RunInterrupted, RunStopped
from attractor.evidence.lock import RunInUseError
from attractor.files import write_text
from attractor.study.launch import FAILURE, IN_USE, NOTES, POLL_SECONDS, Job, Notes
from attractor.train.config import Runtime, TrainConfig
from attractor.train.distributed import World
from attractor.train.interrupt import StopRequest

PARENT_POLL_SECONDS = 1.0


def launch(
    jobs: Sequence[Job], n_workers: int, runtime: Runtime, watch: Callable[[Sequence[Job], Sequence[Job]], None]
) -> dict[str, str]:
    """Carry out all jobs; returns what failed, by name. `watch` is told of the running and the ended jobs."""
    require(n_workers >= 1, "workers", "at least 1", n_workers)
    for job in jobs:
        World(size=n_workers).refuse_uneven(job.config.batch_size, job.config.accumulation)
    waiting = [job for job in jobs if not job.finished]
    ended = [job for job in jobs if job not in waiting]
    failures: dict[str, str] = {}
    with StopRequest() as stop, tempfile.TemporaryDirectory(prefix="attractor-torchrun-") as folder:
        for number, job in enumerate(waiting):
            outcome = Path(folder) / str(number)
            process = subprocess.Popen(
                _command(job, n_workers, runtime, outcome),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a failure is told in the run's folder, in one line
                start_new_session=True,  # Ctrl-C at the terminal is for this process, which asks the run to stop once
            )
            try:
                while process.poll() is None and stop.signal_number is None:
                    watch([job], ended)
                    time.sleep(POLL_SECONDS)
            finally:
                if process.poll() is None:  # asked to stop, it saves a checkpoint first
                    process.terminate()
                exit_code = process.wait()
            if stop.signal_number is not None and not job.finished:
                break
            ended.append(job)
            if not job.finished:
                failures[job.name] = job.failure(int(outcome.read_text()) if outcome.exists() else exit_code)
    watch([], ended)
    if stop.signal_number is not None:
        raise RunInterrupted(
            f"interrupted: {len(ended)} of {len(jobs)} runs ended, the one that ran is saved. "
            f"Resume with the same command: {shlex.join(['attractor', *sys.argv[1:]])}",
            stop.signal_number,
        )
    return failures


def _command(job: Job, n_workers: int, runtime: Runtime, outcome: Path) -> list[str]:
    given = {
        "config": job.config.to_dict(),
        "path": str(job.path),
        "runtime": asdict(runtime),
        "outcome": str(outcome),
        "parent": os.getpid(),
    }
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n_workers}"]
    return [*torchrun, "-m", "attractor.study.torchrun", json.dumps(given)]


# --- inside one of a run's processes --------------------------------------------------------------------------------


def carry_out(job: Job, runtime: Runtime, outcome: Path) -> None:
    """This process's part of the run. torchrun reports any failure as 1, so the exit code is left beside it, too."""
    from attractor.train.loop import train

    try:
        train(job.config, job.path, runtime, Notes(job.path / NOTES))
    except RunInterrupted as interrupted:
        sys.exit(interrupted.exit_code)
    except RunInUseError:
        write_text(outcome, str(IN_USE))
        sys.exit(IN_USE)
    except (InputError, RunStopped) as error:
        _write_failure(job, outcome, str(error))
        sys.exit(2)
    except Exception as error:
        _write_failure(job, outcome, f"{type(error).__name__}: {error}")
        raise


def _write_failure(job: Job, outcome: Path, text: str) -> None:
    """The first process that fails says why; the others fail for want of it."""
    if job.path.is_dir() and not outcome.exists():
        write_text(outcome, "2")
        write_text(job.path / FAILURE, text + "\n")


def _stop_without(parent: int) -> None:
    """Whoever was killed can ask nothing: without torchrun, or without the process that started it, the run saves and
    stops by itself."""
    torchrun = os.getppid()
    while os.getppid() == torchrun and _alive(parent):
        time.sleep(PARENT_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def main() -> None:
    given = json.loads(sys.argv[1])
    threading.Thread(target=_stop_without, args=(given["parent"],), daemon=True).start()
    job = Job(TrainConfig.from_dict(given["config"]), Path(given["path"]))
    carry_out(job, Runtime(**given["runtime"]), Path(given["outcome"]))


if __name__ == "__main__":
    main()
