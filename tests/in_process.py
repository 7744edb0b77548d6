"""Commands run as a person types them, but in this process, which saves the start of Python and torch."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from attractor import cli

TINY = [
    "--d-model=16",
    "--n-heads=2",
    "--n-layers=1",
    "--d-ff=32",
    "--max-seq-len=64",
    "--seq-len=16",
    "--batch-size=4",
]
SHORT = ["--n-steps=6", "--eval-batches=2", "--device=cpu"]  # options of a run that takes a second


def without_heartbeat(stderr: str) -> str:
    """Return the standard error of a command without the lines that show, on a busy machine, that it is at work."""
    return "".join(line for line in stderr.splitlines(keepends=True) if ": at work for " not in line)


class Said(NamedTuple):
    """The exit code of a command, and what it wrote to standard output and standard error."""

    code: int | str | None
    out: str
    err: str


def assert_refused(said: Said, *parts: str, printed: str = "") -> None:
    """Check that the error is one line with every part, that the exit code is 2, and what was printed before."""
    assert (said.code, said.out) == (2, printed), said
    (line,) = said.err.splitlines()
    assert line.startswith("error: ")
    for part in parts:
        assert part in line


Command = Callable[..., Said]  # takes the arguments of the command


def command_in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["attractor", *arguments])
        code: int | str | None = 0
        try:
            cli.main()
        except SystemExit as stopped:
            code = stopped.code
        out, err = capsys.readouterr()
        return Said(code, out, without_heartbeat(err))

    return run
