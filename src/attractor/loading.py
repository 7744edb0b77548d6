"""What a terminal sees while modules load, which takes seconds: a text, and one line where Ctrl-C ends the process."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = b"interrupted while the command was loading, before it did anything\n"


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
    if is_shown:
        print(text, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if is_shown:
            print("\r" + " " * len(text) + "\r", end="", file=sys.stderr, flush=True)
