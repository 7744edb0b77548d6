"""The entry of the command line. Ctrl-C ends it with one line of text even while modules load, which takes seconds."""

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


def main() -> None:
    with ctrl_c_ends_at_once():
        from attractor.cli import main as run_command
        from attractor.train.interrupt import StopRequest
        from attractor.train.process import safe_path
    StopRequest.ends_process = True
    ended = SystemExit(0)
    try:
        with safe_path():  # torch's compiler starts a Python to try the processor's instructions
            run_command()
    except SystemExit as with_code:
        ended = with_code
    distributed = sys.modules.get("attractor.train.distributed")
    if distributed is not None and distributed.World.from_environment().size > 1:
        distributed.end_process(ended.code or 0)
    raise ended


if __name__ == "__main__":
    main()
