"""What a step frees stays with the process, for the next step.

A step takes as much memory as the one before it and frees it. glibc hands what lies free at the end of its heap back to
the system, and every large block; then each page of 4 kB is mapped and zeroed again in the next step, for which the
arithmetic waits (LOG.md has how long). The peak stays what it was, but is held until the steps are over.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of mallopt(3)
NEVER = 2**31 - 1
ALONE = 2**30  # bytes of a block that still comes from the system, and goes back to it, alone
USUAL_ALONE = 2**25  # where glibc itself arrives once it has met large blocks; it trims at twice that


@contextmanager
def freed_memory_kept() -> Iterator[bool]:
    """Inside, in the whole process; False where the C library is another one, which has no such setting."""
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
    """What lies free in the heap, to the system."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
