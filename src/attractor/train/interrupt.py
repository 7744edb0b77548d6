"""Treat signals as a request to stop: finish the step in progress, save a checkpoint, then end the run.

Ctrl-C is SIGINT. systemd and Slurm send SIGTERM, a terminal that is closed sends SIGHUP, and Slurm can warn before the
end of a job with SIGUSR1 (`--signal=USR1@60`). A reader of standard output that goes away counts as SIGPIPE; the
command line reports it (`cli/streams.py`), since Python ignores the signal itself.

Whoever sends SIGINT or SIGTERM waits for the end. So if a step has not ended GRACE_SECONDS later, a thread ends the
process, and the last checkpoint counts. Python handles a signal between two of its instructions, but one operation of
torch may take minutes. The thread therefore reads signals from a pipe, to which the interpreter's handler in C writes
them at once (`signal.set_wakeup_fd`).
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import parent_process
from types import FrameType
from typing import ClassVar, Self

from attractor.errors import RunInterrupted

NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))
GRACE_SECONDS = 20.0  # torchrun and others kill a process 30 seconds after they asked it to stop
SUCCESSION_SECONDS = 1.0
URGENT = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """Inside the `with`, signals are only noted: `signal_number` is the first one.

    Repeated signals are ignored, since a run may be asked several times: by an impatient person, by whoever ends all
    processes, and by its parent. Where `ends_process` is set, they are ignored even after the `with`, if it is left by
    RunInterrupted.

    `overdue` returns a line that says what is saved. If it is given, and neither `saving` nor the end of the `with` is
    reached GRACE_SECONDS after an urgent signal, the line is printed and the process ends.
    """

    ends_process: ClassVar[bool] = False  # whether this process ends as soon as a run was interrupted
    listening: ClassVar[list["StopRequest"]] = []  # requests whose `with` is entered, the innermost last
    was_made: ClassVar[bool] = False  # whether the latest request noted a signal
    insists: ClassVar[bool] = False  # whether a person pressed Ctrl-C again, who did not want to wait

    def __init__(self, overdue: Callable[[], str] | None = None) -> None:
        self.signal_number: int | None = None
        self._noted = 0.0
        self._deadline = Deadline(overdue)

    def __enter__(self) -> Self:
        self._before = {}
        if threading.current_thread() is threading.main_thread():  # elsewhere signals cannot be handled
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS if not _by_nohup(number)}
            self._deadline.__enter__()
            self.listening.append(self)
            StopRequest.was_made = StopRequest.insists = False
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self in self.listening:
            self.listening.remove(self)
        self._deadline.__exit__()
        if not (self.ends_process and kind is not None and issubclass(kind, RunInterrupted)):
            for number, handler in self._before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: it was set outside Python

    def saving(self) -> None:
        """Say that the step in progress is done, so that the process may take its time to save."""
        self._deadline.met()

    def note(self, number: int) -> None:
        """Note a signal, unless there was one before. Signals in quick succession count as one."""
        if self.signal_number is None:
            self.signal_number, self._noted = number, time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self._noted > SUCCESSION_SECONDS:
            StopRequest.insists = True
        StopRequest.was_made = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.note(number)


class Deadline:
    """Inside the `with`, a thread ends the process GRACE_SECONDS after an urgent signal, unless `met` is called.

    The thread prints the line that `overdue` returns. With None there is no deadline, not even that of an outer `with`.
    """

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
            self._signals.close()  # this ends the thread, too
            self._signals = None

    def met(self) -> None:
        self._met.set()

    def _watch(self, receiver: socket.socket) -> None:
        with receiver:
            while received := receiver.recv(1):  # empty as soon as the other end is closed
                if received[0] in URGENT and self._overdue is not None and not self._met.wait(GRACE_SECONDS):
                    self._end(received[0], self._overdue)

    def _end(self, number: int, overdue: Callable[[], str]) -> None:
        try:
            if parent_process() is None:  # a launcher speaks for the processes that it started
                print(overdue(), file=sys.stderr, flush=True)
        finally:
            os._exit(128 + number)


def _by_nohup(number: int) -> bool:
    """Return whether `nohup` protects this process from the signal."""
    return signal.Signals(number).name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN
