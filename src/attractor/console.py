"""What the console shows: numbers as text, tables, the progress of long work, and a text while modules load.

Rich is imported where something is shown, since modules that only name a number load without it.
"""

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Self

from attractor.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

PREFIXES = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
FIRST_SECONDS, SECONDS_BETWEEN = 2.0, 30.0  # before the first line about long work, and between two in a log
INTERRUPTED = b"interrupted while the command was loading, before it did anything\n"

# What a terminal obeys instead of showing it: control characters, and marks that reverse the direction of writing. The
# ends of lines and tabs stay.
CONTROLS = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|\r(?!\n)")
Advance = Callable[[int], None]  # takes the number of units that were done since the last call
StartProgress = Callable[[str, int], Advance]  # takes the name of the units and their number


def without_controls(text: str) -> str:
    """Spell control characters as JSON does: names and texts come from anybody, and must not command a terminal."""
    return CONTROLS.sub(lambda control: f"\\u{ord(control[0]):04x}", text)


def with_prefix(value: float) -> str:
    """Return three digits and a prefix: `1.23M`, `45.1k`, `870`, `181P`."""
    for size, sign in PREFIXES:
        if value >= size:
            scaled = value / size
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f}{sign}"
    return f"{value:.0f}"


def in_bytes(value: int) -> str:
    """Return one digit after the point and a unit: `1.2 GB`; below that, whole megabytes: `870 MB`."""
    exponent, unit = next(((size, sign) for size, sign in PREFIXES if 1e9 <= size <= value), (1e6, "M"))
    return f"{value / exponent:.{0 if unit == 'M' else 1}f} {unit}B"


def in_time(seconds: float) -> str:
    """Return two digits and a unit: `45 ms`, `4.5 s`, `12 min`, `3.4 h`, `5.1 days`."""
    for size, sign in ((86_400, "days"), (3_600, "h"), (60, "min"), (1, "s")):
        if seconds >= 2 * size:
            return f"{seconds / size:.{1 if seconds < 10 * size else 0}f} {sign}"
    return f"{1e3 * seconds:.{1 if seconds < 0.01 else 0}f} ms"


def seconds_of(text: str, field: str = "budget") -> float:
    """Convert a time such as `90s`, `10m`, `2h` or `1h30m` to seconds."""
    if not re.fullmatch(r"(\d+(\.\d+)?[smh])+", text):
        raise InputError(f"{field} must be a time with its unit, got '{text}'; give 90s, 10m or 2h")
    return sum(float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+)([smh])", text))


def print_line(console: "Console", text: str) -> None:
    """Print a line. A terminal breaks it between words; a file holds it in one line."""
    console.print(text, markup=False, highlight=False, soft_wrap=not console.is_terminal)


def console_table(
    headings: Sequence[str],
    left: Collection[str] | None = None,
    padding: tuple[int, ...] = (0, 1),
    no_wrap: bool = False,
) -> "Table":
    """Return the empty table that all commands share: a line below the headings, labels on the left, numbers on the
    right. `left` names the columns that are aligned to the left; the default is the first one."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=padding)  # type: ignore[arg-type]
    for place, heading in enumerate(headings):
        is_left = place == 0 if left is None else heading in left
        table.add_column(Text(heading), justify="left" if is_left else "right", overflow="fold", no_wrap=no_wrap)
    return table


class SignOfLife:
    """Say a line after two seconds, and another every half minute, until the context ends.

    `message` returns the line, given the seconds since the beginning, or nothing to say.
    """

    def __init__(
        self, say: Callable[[str], None], message: Callable[[float], str], first_seconds: float | None = None
    ) -> None:
        self._say, self._message = say, message
        self._first_seconds = FIRST_SECONDS if first_seconds is None else first_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._speak, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _speak(self) -> None:
        began, seconds = time.monotonic(), self._first_seconds
        while not self._ended.wait(seconds):
            if line := self._message(time.monotonic() - began):
                self._say(line)
            seconds = SECONDS_BETWEEN


def waiting(doing: str) -> SignOfLife:
    """Say on stderr what is going on if it takes long, so that the line is no part of a command's output."""
    return SignOfLife(
        lambda line: print(line, file=sys.stderr, flush=True), lambda seconds: f"{doing}: {in_time(seconds)} so far"
    )


def now_and_then() -> Callable[[], bool]:
    """Return a function that says whether a log may have another line: at most one in SECONDS_BETWEEN."""
    latest = time.monotonic()

    def due() -> bool:
        nonlocal latest
        now = time.monotonic()
        if now - latest < SECONDS_BETWEEN:
            return False
        latest = now
        return True

    return due


def run_progress(console: "Console", counts: bool = True) -> "Progress":
    """Return a progress bar with steps, or the share done, the time left and the latest numbers. It shrinks in a narrow
    terminal."""
    from rich import progress as rich
    from rich.table import Column

    done = rich.MofNCompleteColumn(table_column=Column(no_wrap=True)) if counts else rich.TaskProgressColumn()
    return rich.Progress(
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(bar_width=24),
        done,
        rich.TimeRemainingColumn(elapsed_when_finished=counts, table_column=Column(no_wrap=True)),
        rich.TextColumn("{task.fields[numbers]}", markup=False),
        console=console,
        refresh_per_second=4,
    )


def no_advance(n_done: int) -> None: ...


def no_progress(units: str, n: int) -> Advance:
    return no_advance


@contextmanager
def progress(console: "Console") -> Iterator[StartProgress]:
    """Report long work by a bar with the time left, or in a log by a line from time to time."""
    if not console.is_terminal:
        yield lambda units, n: _in_lines(console, units, n)
        return
    with run_progress(console) as bars:

        def bar(units: str, n: int) -> Advance:
            task = bars.add_task(units, total=n, numbers="")
            return lambda n_done: bars.update(task, advance=n_done)

        yield bar


def _in_lines(console: "Console", units: str, n: int) -> Advance:
    total, began, due = 0, time.monotonic(), now_and_then()

    def advance(n_done: int) -> None:
        nonlocal total
        total += n_done
        if total < n and due():
            left = (time.monotonic() - began) / total * (n - total)
            print_line(console, f"{total:,} of {n:,} {units}, {in_time(left)} left")

    return advance


@contextmanager
def ctrl_c_ends_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process in this block. A module that is being imported could lose a KeyboardInterrupt."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # such as the background process of a shell, which ignores Ctrl-C
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(number: int, frame: FrameType | None) -> None:
    try:
        os.write(2, b"\r" * os.isatty(2) + INTERRUPTED)
    finally:
        os._exit(128 + number)


@contextmanager
def temporary_text(text: str) -> Iterator[None]:
    """Show a text on the terminal while PyTorch loads, and remove it afterwards; a log shows nothing."""
    is_shown = sys.stderr.isatty() and "torch" not in sys.modules
    stream = getattr(sys.stderr, "rich_proxied_file", sys.stderr)  # the filter of control characters lies before it
    if is_shown:
        print(text, end="", file=stream, flush=True)
    try:
        yield
    finally:
        if is_shown:
            print("\r" + " " * len(text) + "\r", end="", file=stream, flush=True)
