"""Fresh processes for runs: each with memory and failures of its own, forked from one that has imported what all need.

torch loads its compiler at the first model that is built on paper and the first optimizer, though nothing be compiled:
seconds, and tens of megabytes, that every run would pay again and count as its own.

A signal that is sent to all processes of a job must not end the server that forks them: without the server, their
parent would no longer know when they end. So the server blocks signals, and each fresh process lets them through again.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext
from typing import Any

from attractor.train.interrupt import SIGNALS

NEEDED = ["attractor.train.loop", "torch._dynamo"]


def fresh_processes() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(NEEDED)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        for start in (resource_tracker.ensure_running, forkserver.ensure_running):
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # again each time: the tracker's start lets some through
            start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def begin(at_end: Callable[[], Any]) -> None:
    """What a fresh process does first: it leaves the terminal to its parent, which asks it to stop, and lets signals
    through again. Without its parent it does `at_end`."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    at_end_of_parent(at_end)


def at_end_of_parent(act: Callable[[], Any]) -> None:
    """In a process that was started for another: a parent that was killed can ask nothing, so `act` runs without it."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        act()

    threading.Thread(target=watch, daemon=True).start()


def save_and_end() -> None:
    """As its parent asks a run to: it saves, and ends."""
    os.kill(os.getpid(), signal.SIGTERM)


def end_at_once() -> None:
    """With the compilers that it started; for a process that leads a group of its own."""
    os.killpg(0, signal.SIGKILL)
