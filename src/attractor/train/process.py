"""Start each run in a process of its own, so that its memory and its failures are its own.

They are forked from a server that has imported what all runs need. torch loads its compiler as soon as an optimizer is
made, even if nothing is compiled. That costs seconds and tens of megabytes, which every run would otherwise pay again
and count as its own memory.

A signal that is sent to all processes of a job must not end the server: without it, the parent would no longer learn
when its processes end. So the server blocks signals, and each fresh process unblocks them.

Python looks for the modules of a program that it starts with -c in the current folder first. The folder may hold data
of a stranger, so the server is started without it.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from typing import Any

from attractor.train.interrupt import SIGNALS, StopRequest

PARENT_SECONDS = 0.5  # between looks at a parent that has no pipe to this process
NEEDED = ["attractor.train.loop", "torch._dynamo"]


@contextmanager
def safe_path() -> Iterator[None]:
    """Keep the current folder off the module path of each Python that is started in this block, and by those in turn.

    Environment variables that are set in the block do not outlast it.
    """
    before = dict(os.environ)
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def fresh_processes() -> ForkServerContext:
    """Start the server, if it is not running yet, and return the context that forks processes from it."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(NEEDED)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        for start in (resource_tracker.ensure_running, forkserver.ensure_running):
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # each time: starting the tracker unblocks some
            with safe_path():
                start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def begin(at_end: Callable[[], Any]) -> None:
    """Detach a fresh process from the terminal, unblock its signals, and call `at_end` if its parent ends.

    The parent keeps the terminal and asks its processes to stop, unless it was killed. A signal that no run handles
    ends the process without a traceback. No signal disturbs the end of a run that was interrupted.
    """
    os.setsid()
    StopRequest.ends_process = True
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        at_end()

    threading.Thread(target=watch, daemon=True).start()


def end_with_parent(at_end: Callable[[], Any]) -> None:
    """Call `at_end` if the parent of this process ends, such as a torchrun that is killed and can stop nobody."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_SECONDS)
        at_end()

    threading.Thread(target=watch, daemon=True).start()


def save_and_end() -> None:
    """End this process as its parent would: the run saves a checkpoint first."""
    os.kill(os.getpid(), signal.SIGTERM)


def end_at_once() -> None:
    """End this process and all that it started, such as compilers. It must lead a process group of its own."""
    os.killpg(0, signal.SIGKILL)
