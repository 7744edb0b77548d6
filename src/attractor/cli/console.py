"""Print lines, and show signs of life in a log while a command prints nothing."""

import shlex
import sys
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from attractor.console import SECONDS_BETWEEN, SignOfLife, in_time, without_controls


class FilteredConsole(Console):
    """A console whose texts cannot command the terminal: only the control codes of Rich itself reach it.

    `answer` is what the command found, for --json, and `printed` is when the console printed last."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.answer: dict[str, Any] = {}
        self.printed = time.monotonic()

    def print(self, *things: Any, **options: Any) -> None:
        super().print(*things, **options)
        self.printed = time.monotonic()

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(without_controls(segment.text), segment.style)


def answer(console: Console, **facts: Any) -> None:
    """Add what a command found to the one JSON object that --json prints."""
    getattr(console, "answer", {}).update(facts)


def say(console: Console, text: str) -> None:
    """Print a text as it is: without markup or colours, and in unbroken lines, so that paths can be copied."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def command_line() -> str:
    """Return the command as it was typed, for records."""
    return shlex.join(["attractor", *sys.argv[1:]])


def heartbeat(console: Console, command: str, seconds: float = SECONDS_BETWEEN) -> AbstractContextManager[Any]:
    """Return a context that prints to stderr how long the command has been at work, if nothing else was printed for
    `seconds`. A terminal needs no such lines, since it shows progress bars."""
    if not isinstance(console, FilteredConsole) or console.is_terminal or console.quiet:
        return nullcontext()

    def line(at_work: float) -> str:
        is_silent = time.monotonic() - console.printed >= 0.9 * seconds
        return f"{command}: at work for {in_time(at_work)}" if is_silent else ""

    return SignOfLife(partial(print, file=sys.stderr, flush=True), line, seconds)
