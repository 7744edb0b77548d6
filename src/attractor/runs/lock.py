"""Lock runs between processes. The kernel releases a lock however its owner ends, so no stale lock remains.

    with hold(folder):      # one process carries out a run; a second process is refused after a second
    with turn(folder):      # several processes write a file; a process waits for its turn of a few microseconds

The lock files stay, because a lock on a file that may be removed protects nothing.
"""

import errno
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from attractor.errors import InputError

HOLD = ".run.lock"
TURN = ".write.lock"
LOOKING_TAKES = 1.0  # seconds, far above the few microseconds for which `is_held` takes the lock
NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)


class RunInUseError(InputError):
    """Another process carries out this run."""


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            descriptor = stack.enter_context(_lock(folder / HOLD, patience=LOOKING_TAKES))
        except BlockingIOError:
            owner = (folder / HOLD).read_text().strip() or "unknown"
            raise RunInUseError(
                f"'{folder}' must be free, and another process (id {owner}) carries out this run; "
                "wait until it ends, or stop it and then resume"
            ) from None
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())  # for the error above
        yield


def is_held(folder: Path) -> bool:
    """Return whether a process carries out the run at this moment, without writing anything."""
    try:
        with _lock(folder / HOLD, patience=0, to_look=True):
            return False
    except BlockingIOError:
        return True
    except (ImportError, OSError):  # nobody has ever held the run, or this system has no locks
        return False


@contextmanager
def turn(folder: Path) -> Iterator[None]:
    with _lock(folder / TURN, patience=None):
        yield


@contextmanager
def _lock(path: Path, patience: float | None, to_look: bool = False) -> Iterator[int]:
    """Take the lock, or raise BlockingIOError after so many seconds; None waits for as long as it takes."""
    import fcntl  # not on every system; results can be read there all the same

    descriptor = os.open(path, os.O_RDONLY if to_look else os.O_RDWR | os.O_CREAT, 0o666)
    kind = fcntl.LOCK_SH if to_look else fcntl.LOCK_EX
    try:
        try:
            if patience is None:
                fcntl.flock(descriptor, kind)
            else:
                _keep_trying(lambda: fcntl.flock(descriptor, kind | fcntl.LOCK_NB), patience)
        except OSError as error:
            if to_look or error.errno not in NO_LOCKS:
                raise
            warnings.warn(f"no locks on the file system of '{path.parent}': run one process at a time", stacklevel=5)
        yield descriptor
    finally:
        os.close(descriptor)


def _keep_trying(take: Callable[[], None], patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            return take()
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.001)
