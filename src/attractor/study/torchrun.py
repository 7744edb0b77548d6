"""Many runs one after another, each on several processes of this machine, as torchrun would share it out.

The same contract as `launch.py`: finished runs are skipped, interrupted ones resume, a failed one is reported and does
not stop the rest. `n_workers` is the number of processes of one run, which share its batches. torchrun itself is not
used: whoever reaches its rendezvous over the network can execute code in its processes (`train/ranks.py`).
"""

import shlex
import sys
import time
from collections.abc import Callable, Sequence

from attractor.attention.stage import require
from attractor.errors import RunInterrupted
from attractor.study.launch import POLL_SECONDS, Job, carry_out
from attractor.train.config import Runtime
from attractor.train.distributed import World
from attractor.train.interrupt import StopRequest
from attractor.train.ranks import Ranks


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
    with StopRequest() as stop:
        for job in waiting:
            ranks = Ranks(n_workers, carry_out, job, runtime)
            ranks.start()
            try:
                while ranks.is_alive() and stop.signal_number is None:
                    watch([job], ended)
                    time.sleep(POLL_SECONDS)
            finally:
                ranks.terminate()  # asked to stop, they save a checkpoint first
                ranks.join()
            if stop.signal_number is not None and not job.finished:
                break
            ended.append(job)
            if not job.finished:
                failures[job.name] = job.failure(ranks.exitcode)
    watch([], ended)
    if stop.signal_number is not None:
        raise RunInterrupted(
            f"interrupted: {len(ended)} of {len(jobs)} runs ended, the one that ran is saved. "
            f"Resume with the same command: {shlex.join(['attractor', *sys.argv[1:]])}",
            stop.signal_number,
        )
    return failures
