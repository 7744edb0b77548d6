"""Run all stress scripts, two at a time. Each line of their output begins with the name of the script.

`python tests/stress/all_scripts.py [n] [seed]`; `make stress` does this. Scripts that draw their cases draw n of them,
or as many as stand below.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

DRAWN = {"flip_bytes": 100, "signals": 47, "kills": 60, "power_cut": 20}
SCRIPTS = (*DRAWN, "rank_faults", "hostile_files")  # the longest first
TESTS = Path(__file__).parents[1]


def run(script: str) -> bool:
    """Run a script, and return whether it found nothing."""
    started = time.monotonic()
    n, seed = (sys.argv[1:] + ["all", "0"][len(sys.argv) - 1 :])[:2]
    numbers = (str(DRAWN[script]) if n == "all" else n, seed) if script in DRAWN else ()
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, "-u", str(TESTS / "stress" / f"{script}.py"), *numbers],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    for line in process.stdout:
        print(f"{script}: {line}", end="", flush=True)
    said = "failed" if process.wait() else "passed"
    print(f"{script}: {said}, {(time.monotonic() - started) / 60:.1f} min", flush=True)
    return process.returncode == 0


if __name__ == "__main__":
    with ThreadPoolExecutor(2) as pool:
        sys.exit(not all(list(pool.map(run, SCRIPTS))))
