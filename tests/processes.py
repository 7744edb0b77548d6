"""Processes that tests start, and how the system lists them."""

import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from attractor.train.interrupt import SIGNALS
from attractor.train.process import fresh_processes


def in_fresh_process(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function, which stands at the top of a module, in a process that has imported torch and computed nothing.

    Tests that fork commands do so from there. A process forked from one that has computed with two threads waits
    forever as soon as it does so itself (GNU OpenMP), and any test may have computed with two threads before.
    """
    unblock = (signal.SIG_UNBLOCK, SIGNALS)
    with ProcessPoolExecutor(1, fresh_processes(), signal.pthread_sigmask, unblock) as executor:
        return executor.submit(function, *arguments, **options).result()


def living_family(process: int) -> list[int]:
    """Return the process ids of a process and of all its descendants that live. A zombie does not."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            state, parent = status.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(status.parent.name)] = int(parent)
    family = [process]
    for parent in family:
        family += [child for child, its_parent in parents.items() if its_parent == parent]
    return [member for member in family if member in parents]
