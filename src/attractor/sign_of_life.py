"""Print lines that say what a long operation is doing while it reports nothing itself."""

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from attractor.numerals import in_time

FIRST_SECONDS, SECONDS_BETWEEN = 2.0, 30.0


class SignOfLife:
    """Say a line after two seconds, and another every half minute, until the context ends.

    `message` returns the line, given the seconds since the beginning.
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
            self._say(self._message(time.monotonic() - began))
            seconds = SECONDS_BETWEEN


def waiting(doing: str) -> SignOfLife:
    """Say on stderr what is going on if it takes long, so that the line is no part of a command's output."""
    return SignOfLife(
        lambda line: print(line, file=sys.stderr, flush=True), lambda seconds: f"{doing}: {in_time(seconds)} so far"
    )
