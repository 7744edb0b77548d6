"""Progress lines appear soon and then regularly while work lasts, and no line appears after it."""

import threading
from io import StringIO

import pytest
from rich.console import Console

from attractor import sign_of_life
from attractor.corpus.prepare import Progress
from attractor.corpus.progress import LivePreparation
from attractor.sign_of_life import SignOfLife


def test_long_work_is_reported_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign_of_life, "SECONDS_BETWEEN", 0.001)
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
    life = SignOfLife(print, str, first_seconds=600)
    with pytest.raises(ValueError, match="wrong"), life:
        raise ValueError("wrong")
    assert not life._thread.is_alive()


def test_without_a_terminal_a_preparation_names_its_source_at_once_and_its_progress_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("attractor.corpus.progress.SECONDS_BETWEEN", 0.001)
    monkeypatch.setattr(sign_of_life, "SECONDS_BETWEEN", 0.001)
    said = StringIO()
    seen = threading.Event()

    class Spoken(StringIO):
        def write(self, text: str) -> int:
            if "tokenising: 50% 5.00k tokens of 15 documents" in text:
                seen.set()
            return said.write(text)

    with LivePreparation(Console(file=Spoken(), width=150), "texts.jsonl") as live:
        assert said.getvalue().startswith("reading texts.jsonl\n")
        live(Progress("tokenising", 0.5, 5000, 15))
        assert seen.wait(60)
