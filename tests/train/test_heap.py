"""Memory that was freed is not asked of the system again."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

HEAP = Path(__file__).parents[2] / "src" / "attractor" / "train" / "heap.py"

FAULTS = """
import resource, runpy, sys
if sys.argv[2] == "kept":
    assert runpy.run_path(sys.argv[1])["keep_freed_memory"]()

def step():
    blocks = [b"x" * (size << 20) for size in (1, 2, 8, 40)]

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

step()
before = faults()
step()
print(faults() - before)
"""


def page_faults(mode: str) -> int:
    """Of the second of two steps that take and free the same 51 MB, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, str(HEAP), mode], capture_output=True, text=True, check=True, timeout=60
    )
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="this C library keeps what it likes")
def test_a_second_step_meets_no_page_faults() -> None:
    """Criterion: less than 1% of its 13,056 pages; without asking, glibc gives most of them away."""
    pages = (51 << 20) // 4096
    assert page_faults("kept") < 0.01 * pages < 0.5 * pages < page_faults("left alone")


def test_a_library_without_the_wish_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from attractor.train.heap import keep_freed_memory

    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not keep_freed_memory()
