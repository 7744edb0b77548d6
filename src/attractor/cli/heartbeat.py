"""Signs of life in a log: a command that has printed nothing for a while says on standard error that it is at work."""

import sys
import threading
import time
from typing import Any, Self

from rich.console import Console

from attractor.numerals import in_time

SECONDS = 30.0


class LogConsole(Console):
    """A console for a file or a pipe. It remembers when it printed last."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.printed = time.monotonic()

    def print(self, *things: Any, **options: Any) -> None:
        super().print(*things, **options)
        self.printed = time.monotonic()


class Heartbeat:
    """Inside the `with`, a line says how long the command has been at work, whenever nothing else has been printed for
    so many seconds. On a terminal progress bars show it."""

    def __init__(self, console: Console, command: str, seconds: float = SECONDS) -> None:
        self.console, self.command, self.seconds = console, command, seconds
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Self:
        if isinstance(self.console, LogConsole) and not self.console.quiet:
            self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()

    def _beat(self) -> None:
        assert isinstance(self.console, LogConsole)
        began = latest = time.monotonic()
        while not self.over.wait(self.seconds / 30):
            now, latest = time.monotonic(), max(latest, self.console.printed)
            if now - latest >= self.seconds:
                print(f"{self.command}: at work for {in_time(now - began)}", file=sys.stderr, flush=True)
                latest = now
