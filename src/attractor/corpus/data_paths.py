"""Find data by name, so that the same configuration works on machines that store data in different folders.

An existing path is used as it is. Otherwise the data are looked for in the folder that the environment variable
ATTRACTOR_DATA names: first under the whole name, then under its last parts, such as data/texts.txt and texts.txt for
/home/ada/data/texts.txt.
"""

import os
import warnings
from pathlib import Path

from attractor.errors import InputError

FOLDER = "ATTRACTOR_DATA"


def expanded(name: str | os.PathLike[str]) -> Path:
    """Return the path of that name, with the home folder of a user in the place of `~`."""
    if not os.fspath(name):
        raise InputError("data must have a name, got ''; give the path of a file or a folder")
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise InputError(f"~ must stand before / or the name of a user, got '{name}'; give a whole path") from error


def matching_files(pattern: Path) -> list[Path]:
    """Return the files that match a path with wildcards, sorted."""
    below = pattern.relative_to(pattern.anchor)  # empty for '.' and '/', which are no patterns
    try:
        return sorted(path for path in Path(pattern.anchor).glob(str(below)) if path.is_file()) if below.parts else []
    except ValueError as error:
        raise InputError(f"** must be a whole part of a pattern, got '{pattern}'; write it between slashes") from error


def locate(name: str | os.PathLike[str]) -> Path:
    """Return the path of the data; where they do not exist, return the path at which they would first be looked for."""
    path = expanded(name)
    folder = os.environ.get(FOLDER)
    if not folder or path.exists():
        return path
    by_name = expanded(folder) / path  # an absolute path replaces the folder
    if by_name.exists():
        return by_name
    for first in range(1, len(path.parts)):
        substitute = expanded(folder).joinpath(*path.parts[first:])
        if substitute.exists():
            warnings.warn(f"'{path}' does not exist here, so '{substitute}' is used ({FOLDER})", stacklevel=2)
            return substitute
    return by_name


def searched_places(name: str | os.PathLike[str]) -> str:
    """Say where a missing path was looked for, and how to name another folder."""
    if "://" in str(name):
        return "nothing is read from an address, so download it and give the file"
    parent = (Path.cwd() / expanded(name)).parent
    folder = os.environ.get(FOLDER)
    elsewhere = f" and in '{folder}', which {FOLDER} names" if folder else f"; {FOLDER} may name another folder"
    return f"looked for in '{parent}'{elsewhere}"
