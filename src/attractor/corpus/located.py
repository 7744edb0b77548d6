"""Data by name: a configuration says `encyclopedic`, and where that lies is the machine's own matter.

A path is taken as it is. A name that is no path is looked for in the folder that ATTRACTOR_DATA of the environment
names, so that the same configuration, and the same key of a run, hold on every machine.
"""

import os
from pathlib import Path

FOLDER = "ATTRACTOR_DATA"


def located(name: str | os.PathLike[str]) -> Path:
    path = Path(name).expanduser()
    folder = os.environ.get(FOLDER)
    if folder and not path.is_absolute() and not path.exists():
        return Path(folder).expanduser() / path
    return path
