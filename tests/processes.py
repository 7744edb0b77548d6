"""The processes that a test has started, as the system lists them."""

from contextlib import suppress
from pathlib import Path


def living_family(process: int) -> list[int]:
    """Return the process ids of a process and of all its descendants that live. A zombie does not."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            state, parent = status.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(status.parent.name)] = int(parent)
    family = [process]
    for parent in family:
        family += [child for child, its_parent in parents.items() if its_parent == parent]
    return [member for member in family if member in parents]
