"""Signals as a request to stop: the step in progress is finished, a checkpoint is saved, then the run ends.

Ctrl-C is SIGINT. systemd and Slurm send SIGTERM, a terminal that is closed sends SIGHUP, and Slurm's warning before the
end of a job (`--signal=USR1@60`) is SIGUSR1.
"""

import signal
import threading
from types import FrameType
from typing import Self

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))


class StopRequest:
    """Inside the `with`, a signal is only noted. A Ctrl-C after the first signal acts as it always does; the others are
    ignored when they are repeated, since a run may be asked twice: by who ends all processes, and by its parent."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __enter__(self) -> Self:
        self._before = {}
        if threading.current_thread() is threading.main_thread():  # elsewhere signals cannot be handled
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS if not _by_nohup(number)}
        return self

    def __exit__(self, *_: object) -> None:
        for number in list(self._before):
            self._restore(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal_number = self.signal_number or number
        self._restore(signal.SIGINT)

    def _restore(self, number: int) -> None:
        if number in self._before:
            handler = self._before.pop(number)
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: it was not set from Python


def _by_nohup(number: int) -> bool:
    """Whether this process was started to survive its terminal."""
    return signal.Signals(number).name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN
