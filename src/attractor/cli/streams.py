"""The standard output and error of a command, which neither hold up a run nor end it unsaved.

A stream may be closed, its reader may go away (`| head`), its disk may be full, its pipe may be full while a signal
asks the run to stop, and it may accept ASCII alone. When standard output can no longer be written, a run in progress
is asked to stop as by a signal, and saves. Whatever is written later is dropped.

Names and texts of others never reach a terminal as its commands: `FilteredText` spells control characters. Rich writes
commands of its own, so it writes past this filter, and its console filters the texts alone (`cli/console.py`).
"""

import errno
import io
import os
import select
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

from attractor.console import without_controls
from attractor.train.interrupt import StopRequest

SIGPIPE = 13  # not in Python's `signal` on Windows
POLL_SECONDS = 0.1
PATIENCE = 2.0  # seconds that a process which is to stop waits for the reader of a full pipe


class OutputLost(SystemExit):
    """The reader of standard output went away before anything was in progress that could be saved."""


class Stream(io.RawIOBase):
    """A file descriptor that is written without waiting for ever. `loss` says why it cannot be written any more."""

    def __init__(self, descriptor: int, is_output: bool = True) -> None:
        self.descriptor, self.is_output = descriptor, is_output
        self.loss: str | None = None
        self.is_ending = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self.descriptor

    def isatty(self) -> bool:
        return os.isatty(self.descriptor)

    def write(self, data: "bytes | memoryview") -> int:  # type: ignore[override]
        if self.loss is not None:
            return len(data)
        try:
            if self._is_ready():
                return os.write(self.descriptor, data[: select.PIPE_BUF])
            self.loss = "nobody reads the output"
        except OSError as error:
            gone = error.errno in (errno.EPIPE, errno.EIO)  # of a pipe, and of a terminal
            self.loss = "the reader of the output went away" if gone else f"the output is lost: {error.strerror}"
            self._report(error, gone)
        return len(data)

    def _is_ready(self) -> bool:
        """Wait until the descriptor takes PIPE_BUF bytes. Return False if it does not after a stop request."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLOUT)
        deadline: float | None = None
        while not poll.poll(1000 * POLL_SECONDS):
            if StopRequest.was_made:
                deadline = deadline or time.monotonic() + PATIENCE
                if time.monotonic() > deadline:
                    return False
        return True

    def _report(self, error: OSError, gone: bool) -> None:
        """Ask a run in progress to stop, or else raise. The loss of standard error is not reported."""
        if not self.is_output or self.is_ending:
            return
        if StopRequest.listening:
            StopRequest.listening[-1].note(SIGPIPE)
        elif not gone:
            raise OSError(error.errno, error.strerror, "standard output") from error
        elif not StopRequest.was_made:  # otherwise the run has saved by now
            raise OutputLost(128 + SIGPIPE) from error


class FilteredText:
    """A text stream that spells control characters. Rich looks for `rich_proxied_file`, and writes to that."""

    def __init__(self, unfiltered: TextIO) -> None:
        self.rich_proxied_file = unfiltered

    def write(self, text: str) -> int:
        return self.rich_proxied_file.write(without_controls(text))

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def guard_streams() -> None:
    """Replace standard output and standard error by a `Stream` each. What is written to a closed one is dropped."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # otherwise the next file opened would take its place
        pass
    os.close(descriptor)
    for name, descriptor in ("stdout", 1), ("stderr", 2):
        setattr(sys, name, _guarded(getattr(sys, name), descriptor))


def _guarded(stream: TextIO | None, descriptor: int) -> TextIO | FilteredText:
    if stream is None:
        return Path(os.devnull).open("w")
    is_real = stream is sys.__stdout__ or stream is sys.__stderr__  # not one that a test or a notebook put there
    if not is_real or not isinstance(stream, io.TextIOWrapper):
        return stream
    if hasattr(select, "poll"):  # Windows cannot poll
        raw = io.BufferedWriter(Stream(descriptor, descriptor == 1))  # type: ignore[type-var]
        stream = io.TextIOWrapper(raw, stream.encoding, "backslashreplace", line_buffering=stream.line_buffering)
    return FilteredText(stream)


def loss_of_output() -> str | None:
    """Return why standard output cannot be written any more, or None."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw.loss if isinstance(raw, Stream) else None


def end_streams() -> None:
    """Write what is left to write. From now on, a loss is reported to nobody, since the process ends."""
    for stream in (sys.stdout, sys.stderr):
        raw = getattr(getattr(stream, "buffer", None), "raw", None)
        if isinstance(raw, Stream):
            raw.is_ending = True
            stream.flush()
