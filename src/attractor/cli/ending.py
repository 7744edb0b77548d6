"""How a command that carries out many runs ends: with its page as the last line, and an exit code that tells."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console

from attractor.errors import RunStopped


def end_with(page: Path, failures: Mapping[str, str], console: Console) -> None:
    console.print(str(page), markup=False, highlight=False, soft_wrap=True)
    if failures:
        count = "1 run" if len(failures) == 1 else f"{len(failures)} runs"
        raise RunStopped(f"{count} failed, as said above; the report is of the others. The same command tries again")
