"""Python files that commands execute: studies, and the mechanisms of one's own that they define."""

from pathlib import Path

from rich.console import Console

from attractor.runs.machine import is_tracked


def announce_code(file: Path, console: Console) -> None:
    """Say that a study's file is code that is executed, unless it belongs to attractor's repository."""
    if file.is_file() and file.suffix == ".py" and not is_tracked(file):  # others are refused
        console.print(
            f"'{file}' is Python code from outside of attractor's repository, and is executed now",
            markup=False,
            soft_wrap=True,
        )


def define_mechanisms(study: Path | None, console: Console) -> None:
    """Execute the file of a study, so that runs of the mechanisms that it defines can be opened."""
    from attractor.study.study import load_study

    if study is not None:
        announce_code(study, console)
        load_study(study)
