"""Data by name: a configuration says `encyclopedic`, and where that lies is the machine's own matter.

A path is taken as it is. What does not exist is looked for in the folder that ATTRACTOR_DATA of the environment names,
so that the same configuration, and the same key of a run, hold on every machine: first under its whole name, then under
the end of it, as data/texts.txt and texts.txt for /home/ada/data/texts.txt.
"""

import os
import warnings
from pathlib import Path

FOLDER = "ATTRACTOR_DATA"


def located(name: str | os.PathLike[str]) -> Path:
    path = Path(name).expanduser()
    folder = os.environ.get(FOLDER)
    if not folder or path.exists():
        return path
    by_name = Path(folder).expanduser() / path  # an absolute path stays as it is
    if by_name.exists():
        return by_name
    for first in range(1, len(path.parts)):
        found = Path(folder).expanduser().joinpath(*path.parts[first:])
        if found.exists():
            warnings.warn(f"'{path}' does not exist here, so '{found}' is taken for it ({FOLDER})", stacklevel=2)
            return found
    return by_name


def searched(name: str | os.PathLike[str]) -> str:
    """Where a path that does not exist was looked for, and how to name another place."""
    here = (Path.cwd() / Path(name).expanduser()).parent
    folder = os.environ.get(FOLDER)
    there = f" and in '{folder}', which {FOLDER} names" if folder else f"; {FOLDER} may name another folder"
    return f"looked for in '{here}'{there}"
