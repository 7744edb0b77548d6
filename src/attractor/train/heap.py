"""Keep the memory that a step frees in the process, for the next step.

Each step allocates as much memory as the one before, and frees it. glibc returns free memory at the end of its heap,
and every large block, to the system. In the next step each page of 4 kB is then mapped and zeroed again, and the
arithmetic waits for that (LOG.md, 2026-11-22, has the times). The peak stays what it was, but is held until the
steps are over.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt(3)
NEVER = 2**31 - 1
ALONE = 2**30  # a block of at least so many bytes is still mapped by itself, and goes back to the system when freed
USUAL_ALONE = 2**25  # the largest value to which glibc itself raises this threshold; it then trims at twice the value


@contextmanager
def freed_memory_kept() -> Iterator[bool]:
    """Keep freed memory while the block runs, in the whole process; yields False where the C library is not glibc."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt"):
        yield False
        return
    try:
        yield bool(library.mallopt(MMAP_THRESHOLD, ALONE) and library.mallopt(TRIM_THRESHOLD, NEVER))
    finally:
        library.mallopt(MMAP_THRESHOLD, USUAL_ALONE)
        library.mallopt(TRIM_THRESHOLD, 2 * USUAL_ALONE)
        give_back_freed_memory()


def give_back_freed_memory() -> None:
    """Return the free memory of the heap to the system."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
