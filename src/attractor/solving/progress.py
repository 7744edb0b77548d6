"""How far a long computation has come: a bar with the time left, or in a log a line now and then."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from attractor.numerals import in_time
from attractor.solving.evaluation import Watch
from attractor.solving.voting import Told
from attractor.train.console import now_and_then, print_line, run_progress


@contextmanager
def progress(console: Console) -> Iterator[Watch]:
    if not console.is_terminal:
        yield lambda what, n: _in_lines(console, what, n)
        return
    with run_progress(console) as bars:

        def bar(what: str, n: int) -> Told:
            task = bars.add_task(what, total=n, numbers="")
            return lambda more: bars.update(task, advance=more)

        yield bar


def _in_lines(console: Console, what: str, n: int) -> Told:
    done, began, due = 0, time.monotonic(), now_and_then()

    def told(more: int) -> None:
        nonlocal done
        done += more
        if done < n and due():
            left = (time.monotonic() - began) / done * (n - done)
            print_line(console, f"{done:,} of {n:,} {what}, {in_time(left)} left")

    return told
