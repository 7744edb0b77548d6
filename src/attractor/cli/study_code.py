"""Python files that commands execute: studies, and the mechanisms of one's own that they define."""

from pathlib import Path

from rich.console import Console

from attractor.cli.console import say
from attractor.files.code import CLAIMS_FILE
from attractor.runs.machine import is_tracked


def announce_code(place: Path, console: Console) -> None:
    """Say that a study or a folder of papers is code to be executed, unless it is of attractor's repository."""
    code = [place] if place.suffix == ".py" else [*place.glob(CLAIMS_FILE), *place.glob(f"*/{CLAIMS_FILE}")]
    if not all(map(is_tracked, filter(Path.is_file, code))):  # what is no file is refused
        say(console, f"'{place}' is Python code from outside of attractor's repository, and is executed now")


def define_mechanisms(code: str | None, console: Console) -> None:
    """Execute the file or module that a command names, so that runs of the mechanisms that it defines can be opened."""
    from attractor.attention.named import defined_by

    if code is not None:
        if code.endswith(".py"):
            announce_code(Path(code), console)
        defined_by(code)
