"""Run a command that trains with a seed, keep what it prints in a log, and read its value from the log.

The command runs without a shell unless one is wanted, and with the environment of its parent.
"""

import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from attractor.errors import InputError, require
from attractor.verdict.words import on_one_line

GUARD = Path(__file__).with_name("process_guard.py")
LADDER = ((0.0, signal.SIGINT), (10.0, signal.SIGTERM), (15.0, signal.SIGKILL))  # seconds after a run is to end
NOT_FINITE = re.compile(r"(?<![\w.])[-+]?(?:nan|inf(?:inity)?)(?!\w)", re.IGNORECASE)
NUMBER = re.compile(r"(?:(?<!\w)[-+])?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?")
LONGEST = 160  # characters of a line of a log in a message
STANDS_FOR_IT = "9.18273645"  # a number that patterns of losses match


def words_of(command: str, seed: int | str, shell: bool) -> list[str]:
    """Return the words of a command with the seed in place of `{seed}`."""
    if shell:
        return ["/bin/sh", "-c", command.replace("{seed}", str(seed))]
    return [word.replace("{seed}", str(seed)) for word in shlex.split(command)]


def require_command(field: str, command: str, shell: bool) -> None:
    rule = "a command with {seed}, which the race replaces by 1, 2, 3 and so on"
    require("{seed}" in command, field, rule, command, "as 'python train.py --seed {seed}'")
    try:
        words_of(command, 1, shell)
    except ValueError as error:
        raise InputError(f"{field} must be words as a shell reads them, got {command!r}: {error}; quote it") from error


def last_value(log: Path, pattern: str) -> tuple[float | None, str]:
    """Return the number of the last match in a log, or None and the reason why there is no number.

    The pattern is matched line by line. Where a pattern such as `loss: ([0-9.]+)` allows digits alone, a final
    `loss: nan` counts as well. Otherwise the last finite value of a diverged run would be taken. A group that takes a
    part of a number, as `.*([0-9.]+)` takes its last digit, gives no value.
    """
    last = None
    with log.open(errors="replace") as file:  # a carriage return, as of a progress bar, ends a line, too
        for line in file:
            for match in re.finditer(pattern, NOT_FINITE.sub(STANDS_FOR_IT, line)):
                last = match
    if last is None:
        return None, f"the value {pattern!r} matches nothing that it printed"
    start, end = last.span(1)
    if any(start < match.end() and match.start() < end for match in re.finditer(re.escape(STANDS_FOR_IT), last.string)):
        return math.nan, ""
    matched = on_one_line(last[1])[:LONGEST].rstrip(".,;")
    for number in NUMBER.finditer(last.string):
        is_within = number.start() <= start and end <= number.end()
        if is_within and number[0].lstrip("+") != matched.lstrip("+"):
            return None, f"the value {pattern!r} takes {matched!r} of {number[0]!r}; its group must take all of it"
    try:
        return float(matched), ""
    except ValueError:
        return None, f"the value {pattern!r} matches {matched!r}, which is no number"


def last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4000))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line[:LONGEST] for line in map(on_one_line, reversed(lines)) if line), "")


class CommandRun:
    """A command that was started. `poll` returns None until it has ended, then its value and why it has none."""

    def __init__(self, words: list[str], log: Path, pattern: str, timeout: float | None = None) -> None:
        self.log, self.pattern, self.timeout = log, pattern, timeout
        self.began, self.to_end_since, self.n_signals = time.monotonic(), math.inf, 0
        self.result: tuple[float | None, str] | None = None
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)  # what still writes into the log of an earlier try must not reach this one
        self.answer, writing = os.pipe()
        try:
            with log.open("wb") as file:
                self.process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(GUARD), str(writing), *words],
                    stdin=subprocess.PIPE,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    pass_fds=[writing],
                    start_new_session=True,
                )
        finally:
            os.close(writing)

    def end(self) -> None:
        """Ask the command to end. While it does not, `poll` sends stronger signals to its process group."""
        self.to_end_since = min(self.to_end_since, time.monotonic())

    def poll(self) -> tuple[float | None, str] | None:
        if self.result is None and self.process.poll() is None:
            now = time.monotonic()
            if self.timeout is not None and now - self.began > self.timeout:
                self.end()
            while self.n_signals < len(LADDER) and now - self.to_end_since >= LADDER[self.n_signals][0]:
                with suppress(ProcessLookupError, PermissionError):  # it has ended meanwhile
                    os.killpg(self.process.pid, LADDER[self.n_signals][1])
                self.n_signals += 1
        elif self.result is None:
            self.result = self._result()
        return self.result

    def _result(self) -> tuple[float | None, str]:
        with os.fdopen(self.answer, "rb") as pipe:
            answer = pipe.read().decode(errors="replace")
        assert self.process.stdin is not None
        self.process.stdin.close()
        if self.to_end_since < math.inf:
            return None, f"it took longer than the timeout of {self.timeout:g} s" if self.timeout else "it was ended"
        if answer == "0":
            return last_value(self.log, self.pattern)
        if answer == "-9" or not answer:
            reason = "it was killed, as happens where memory runs out"
        elif answer.startswith("-"):
            reason = f"signal {answer[1:]} ended it"
        else:
            reason = f"exit code {answer}" if answer.isdigit() else on_one_line(answer)[:LONGEST]
        said = last_line(self.log)
        return None, reason + (f"; its log ends with: {said}" if said else "")
