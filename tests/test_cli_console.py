"""Long work is reported: by lines that appear soon and then regularly, and by a command that is silent in a log."""

import io
import threading
from contextlib import redirect_stderr

import pytest
from rich.console import Console

from attractor import console as shared_console
from attractor.cli.console import FilteredConsole, heartbeat
from attractor.console import SignOfLife
from attractor.corpus.prepare import Progress
from attractor.corpus.progress import LivePreparation


def test_long_work_is_reported_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_console, "SECONDS_BETWEEN", 0.001)
    said: list[str] = []
    several = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 3:
            several.set()

    with SignOfLife(say, lambda seconds: f"busy, {seconds >= 0}", first_seconds=0.001):
        assert several.wait(60)
    n_lines = len(said)
    assert set(said) == {"busy, True"}
    assert len(said) == n_lines, "the thread has ended"


def test_short_work_is_not_reported() -> None:
    said: list[str] = []
    with SignOfLife(said.append, str, first_seconds=600):
        pass
    assert said == []


def test_a_failure_passes_through_and_ends_the_lines() -> None:
    before = threading.active_count()
    with pytest.raises(ValueError, match="wrong"), SignOfLife(print, str, first_seconds=600):
        raise ValueError("wrong")
    assert threading.active_count() == before


class Lines(io.StringIO):
    """A stream that signals when it is given a text with these words."""

    def __init__(self, awaited: str = "") -> None:
        super().__init__()
        self.awaited, self.written = awaited, threading.Event()

    def write(self, text: str) -> int:
        if self.awaited in text:
            self.written.set()
        return super().write(text)


def test_without_a_terminal_a_preparation_names_its_source_at_once_and_its_progress_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_console, "SECONDS_BETWEEN", 0.001)
    said = Lines("tokenising: 50% 5.00k tokens of 15 documents")
    with LivePreparation(Console(file=said, width=150), "texts.jsonl") as live:
        assert said.getvalue().startswith("reading texts.jsonl\n")
        live(Progress("tokenising", 0.5, 5000, 15))
        assert said.written.wait(60)


def test_a_silent_command_reports_that_it_is_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = Lines()
    monkeypatch.setattr("sys.stderr", stderr)
    with (
        heartbeat(FilteredConsole(file=io.StringIO()), "attractor data prepare", seconds=0.01),
        redirect_stderr(io.StringIO()) as message,  # as where a wrong command line is read
    ):
        assert stderr.written.wait(timeout=60)
    assert message.getvalue() == ""
    assert stderr.getvalue().startswith("attractor data prepare: at work for ")


@pytest.mark.parametrize(
    ("console", "seconds"),
    [
        (FilteredConsole(file=io.StringIO()), 1e6),
        (FilteredConsole(file=io.StringIO(), quiet=True), 0.0),
        (FilteredConsole(force_terminal=True), 0.0),
    ],
    ids=["it has not been long", "another process speaks", "a terminal"],
)
def test_no_unnecessary_line_is_printed(capsys: pytest.CaptureFixture[str], console: Console, seconds: float) -> None:
    """Criterion: there is no line before the time has passed, from the other processes of a run, or on a terminal."""
    before = threading.active_count()
    with heartbeat(console, "attractor train", seconds):
        assert threading.active_count() == before + (seconds > 0)
    assert capsys.readouterr().err == ""


def test_other_output_delays_the_line() -> None:
    console = FilteredConsole(file=io.StringIO())
    before = console.printed
    console.print("a line")
    assert console.printed > before
