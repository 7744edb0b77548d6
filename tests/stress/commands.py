"""Run commands of attractor in child processes that inherit the imported modules, so that hundreds take minutes."""

import os
import pkgutil
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import attractor
from attractor import cli

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
    for name in DRAWING:
        import_module(f"matplotlib.backends.{name}")
    names = [module.name for module in pkgutil.walk_packages(attractor.__path__, "attractor.")]
    for name in [name for name in names if ".gpu" not in name and name != "attractor.evidence"]:
        with suppress(ImportError):  # an extra that is not installed
            import_module(name)


def command(*words: str, folder: Path) -> Ended:
    """Run `attractor WORDS` in a folder."""

    def run() -> None:
        sys.argv = ["attractor", *words]
        cli.main()

    return in_child(run, folder)


def in_child(run: Callable[[], None], folder: Path) -> Ended:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.chdir(folder)
            os.dup2(out.fileno(), 1)
            os.dup2(error.fileno(), 2)
            sys.stdout, sys.stderr = (
                os.fdopen(1, "w", closefd=False),
                os.fdopen(2, "w", closefd=False),
            )  # pytest has its own
            code = 0
            warnings.resetwarnings()  # pytest makes errors of them
            try:
                run()
            except SystemExit as stopped:
                code = stopped.code if isinstance(stopped.code, int) else 1
            except BaseException:
                traceback.print_exc()
                code = 1
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        texts = []
        for file in (out, error):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return Ended(os.waitstatus_to_exitcode(status), *texts)
