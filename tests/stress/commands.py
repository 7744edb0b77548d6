"""Run commands of attractor in forked processes that inherit the imported modules, so that hundreds take minutes.

Such a process has what a fresh one has: its own streams, signals as at the start of Python, no other open files. The
fork server from which a study starts its runs is forked, too. What it lacks is the end of the interpreter, and another
seed of Python's hashes, so the scripts start some of their processes as a person would.
"""

import gc
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path
from types import ModuleType
from typing import Any

from matplotlib.figure import Figure

import attractor
from attractor import __main__
from attractor.train.process import NEEDED, fresh_processes

PATIENCE = 1800.0  # seconds that a script waits for work to be done, since the machine may have other work
DRAWING = ("backend_agg", "backend_svg", "backend_pdf")


@dataclass(frozen=True)
class Ended:
    """How a command ended; `code` is negative where a signal ended it, as where the interpreter crashed."""

    code: int
    out: str
    error: str

    @property
    def text(self) -> str:
        return self.out + self.error

    @property
    def is_clean(self) -> bool:
        """Whether the command ended in its own words: no traceback, no crash, and an error of one line."""
        one_line = self.code != 2 or sum(line.startswith("error: ") for line in self.error.splitlines()) == 1
        return self.code in (0, 1, 2) and "Traceback (most recent" not in self.text and one_line


def import_all() -> None:
    """Import what the commands import, once for all children."""
    names = [f"matplotlib.backends.{name}" for name in DRAWING]
    names += [module.name for module in pkgutil.walk_packages(attractor.__path__, "attractor.")]
    for name in [*names, *NEEDED]:
        if ".gpu" not in name:
            with suppress(ImportError):  # an extra that is not installed
                import_module(name)
    gc.collect()
    gc.freeze()  # the children's collections pass over the modules, whose pages stay shared


def command(*words: str, folder: Path) -> Ended:
    """Run `attractor WORDS` in a folder."""
    return in_child(typed(*words), folder)


def typed(*words: str) -> Callable[[], None]:
    """Return what a process does that is started as `attractor WORDS`."""

    def run() -> None:
        sys.argv = ["attractor", *words]
        if words[:2] == ("study", "run"):
            fresh_processes()  # now, because the fork server has no signal handlers and threads of the command
        __main__.main()

    return run


def undrawn(*words: str) -> Callable[[], None]:
    """Return what `typed` returns, without the drawing of figures, which takes most of the time of many commands."""

    def run() -> None:
        Figure.savefig = lambda figure, file, **options: file.write(b"<svg></svg>")
        typed(*words)()

    return run


def in_child(run: Callable[[], None], folder: Path) -> Ended:
    """Run something in a forked process, and return how it ended."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        code = forked(run, folder, stdout=out, stderr=error).wait()
        texts = []
        for file in (out, error):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return Ended(code, *texts)


def forked(
    run: Callable[[], None], folder: Path, environment: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[bytes]:
    """Start a forked process; `options` are those of Popen. It acts before Popen would start another program."""

    def act() -> None:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # Popen waits until its pipe is closed
        os.environ.update(environment or {})
        end_process(run)

    sys.stdout.flush()
    return subprocess.Popen(["attractor"], cwd=folder, preexec_fn=act, restore_signals=False, **options)


def end_process(run: Callable[[], None]) -> None:
    """Run something as a fresh process would, and end the process."""
    code = 1
    try:
        be_fresh()
        run()
        code = 0
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def as_at_a_terminal() -> None:
    """Restore the signals that a background process of a shell, or one under nohup, ignores."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def be_fresh() -> None:
    """Give a forked process the streams, signals and state that Python has at its start."""
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", buffering=1 if os.isatty(1) else -1, closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    gc.enable()  # Popen disables it
    as_at_a_terminal()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warnings.resetwarnings()  # pytest makes errors of them
    sys.modules["__main__"] = ModuleType("__main__")
    forkserver._forkserver.__init__()  # those of the parent do not belong to this process
    resource_tracker._resource_tracker.__init__()
    util.spawnv_passfds = fork_server


def fork_server(path: str, arguments: list[str], descriptors: list[int]) -> int:
    """Run the Python code of the last argument in a forked process with these open files, and return its id."""
    child = os.fork()
    if child == 0:
        low = 3
        for descriptor in [*sorted(descriptors), os.sysconf("SC_OPEN_MAX")]:
            os.closerange(low, descriptor)
            low = descriptor + 1
        end_process(lambda: exec(arguments[-1], {"__name__": "__main__"}))
    return child
