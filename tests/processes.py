"""Processes that tests start, and how the system lists them."""

import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from attractor.train.interrupt import SIGNALS
from attractor.train.process import fresh_processes
from stress.commands import import_all


def in_fresh_process(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function, which stands at the top of a module, in a process that has imported all and computed nothing.

    Tests that fork commands do so from there. A process forked from one that has computed with two threads waits
    forever as soon as it does so itself (GNU OpenMP), and any test may have computed with two threads before.
    """
    return _process_with_imports().submit(_call_in_fork, function, arguments, options).result()


@cache
def _process_with_imports() -> ProcessPoolExecutor:
    """Return a process that imports all, once for all tests of this process, and then only forks."""
    return ProcessPoolExecutor(1, fresh_processes(), _prepare)


def _prepare() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    import_all()


def _call_in_fork(function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as executor:
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
