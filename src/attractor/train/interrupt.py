"""Signals as a request to stop: the step in progress is finished, a checkpoint is saved, then the run ends.

Ctrl-C is SIGINT. systemd and Slurm send SIGTERM, a terminal that is closed sends SIGHUP, and Slurm's warning before the
end of a job (`--signal=USR1@60`) is SIGUSR1.

Who sends SIGINT or SIGTERM waits for the end. So a process whose step has not come to its end GRACE_SECONDS later is
ended by a thread, and the last checkpoint is what counts. Python hears of a signal between two of its instructions, and
one operation of torch may take minutes: the thread therefore reads signals from a pipe, into which the interpreter's
own handler in C writes them at once (`signal.set_wakeup_fd`).
"""

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from multiprocessing import parent_process
from types import FrameType
from typing import Self

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))
GRACE_SECONDS = 20.0  # torchrun, as others, kills 30 seconds after it has asked
URGENT = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Inside the `with`, a signal is only noted. A Ctrl-C after the first signal acts as it always does; the others are
    ignored when they are repeated, since a run may be asked twice: by who ends all processes, and by its parent.

    `overdue` says what is saved. Where it is given, a process that has not come to `saving` or to the end of the `with`
    GRACE_SECONDS after an urgent signal says so and ends."""

    def __init__(self, overdue: Callable[[], str] | None = None) -> None:
        self.signal_number: int | None = None
        self._deadline = Deadline(overdue)

    def __enter__(self) -> Self:
        self._before = {}
        if threading.current_thread() is threading.main_thread():  # elsewhere signals cannot be handled
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS if not _by_nohup(number)}
            self._deadline.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._deadline.__exit__()
        for number in list(self._before):
            self._restore(number)

    def saving(self) -> None:
        """The step in progress is done, and what is left to do is worth waiting for."""
        self._deadline.met()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal_number = self.signal_number or number
        self._restore(signal.SIGINT)

    def _restore(self, number: int) -> None:
        if number in self._before:
            handler = self._before.pop(number)
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: it was not set from Python


class Deadline:
    """Inside the `with`, a thread ends the process GRACE_SECONDS after an urgent signal that has a handler, unless the
    deadline is met by then. `overdue` gives the line that is said before; None: there is no deadline here, nor that of
    a `with` around this one."""

    def __init__(self, overdue: Callable[[], str] | None) -> None:
        self._overdue = overdue
        self._met = threading.Event()
        self._signals: socket.socket | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            receiver, self._signals = socket.socketpair()
            self._signals.setblocking(False)
            self._before = signal.set_wakeup_fd(self._signals.fileno(), warn_on_full_buffer=False)
            threading.Thread(target=self._watch, args=(receiver,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.met()
        if self._signals is not None:
            signal.set_wakeup_fd(self._before)
            self._signals.close()  # the thread reads the end, and ends
            self._signals = None

    def met(self) -> None:
        self._met.set()

    def _watch(self, receiver: socket.socket) -> None:
        with receiver:
            while heard := receiver.recv(1):  # nothing, once the other end is closed
                if heard[0] in URGENT and self._overdue is not None and not self._met.wait(GRACE_SECONDS):
                    self._end(heard[0], self._overdue)

    def _end(self, number: int, overdue: Callable[[], str]) -> None:
        try:
            if parent_process() is None:  # of a process that was started for a launcher, the launcher speaks
                print(overdue(), file=sys.stderr, flush=True)
        finally:
            os._exit(128 + number)


def _by_nohup(number: int) -> bool:
    """Whether this process was started to survive its terminal."""
    return signal.Signals(number).name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN
