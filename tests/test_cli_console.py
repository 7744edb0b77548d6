"""A command without output for long reports in a log that it is at work, and not on a terminal, which has progress
bars."""

import io
import threading

import pytest
from rich.console import Console

from attractor.cli.console import Heartbeat, LogConsole


class Lines(io.StringIO):
    """A stream that signals each write."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()

    def write(self, text: str) -> int:
        self.written.set()
        return super().write(text)


def test_a_silent_command_reports_that_it_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Lines()
    monkeypatch.setattr("sys.stderr", stderr)
    with Heartbeat(LogConsole(file=io.StringIO()), "attractor data prepare", seconds=0.01):
        assert stderr.written.wait(timeout=60)
    assert stderr.getvalue().startswith("attractor data prepare: at work for ")


@pytest.mark.parametrize(
    ("console", "seconds"),
    [(LogConsole(file=io.StringIO()), 1e6), (LogConsole(file=io.StringIO(), quiet=True), 0.0), (Console(), 0.0)],
    ids=["it has not been long", "another process speaks", "a terminal"],
)
def test_no_unnecessary_line_is_printed(capsys: pytest.CaptureFixture[str], console: Console, seconds: float) -> None:
    """Criterion: there is no line before the time has passed, from the other processes of a run, or on a terminal."""
    with Heartbeat(console, "attractor train", seconds) as heartbeat:
        started = heartbeat.thread.is_alive()
    assert started == (seconds > 0)
    assert capsys.readouterr().err == ""


def test_other_output_delays_the_line() -> None:
    console = LogConsole(file=io.StringIO())
    before = console.printed
    console.print("a line")
    assert console.printed > before
