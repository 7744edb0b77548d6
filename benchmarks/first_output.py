"""Time what a person waits for first: the import, the help, a list, and the first letter of a training run.

python benchmarks/first_output.py        prints the median of five of each, beside the longest that it should take
"""

import os
import pty
import sys
import time
from statistics import median

ATTRACTOR = [sys.executable, "-m", "attractor"]
WAITS = {
    "import attractor": ([sys.executable, "-c", "import attractor; print()"], 0.1),
    "attractor --help": ([*ATTRACTOR, "--help"], 0.5),
    "attractor list": ([*ATTRACTOR, "list"], 0.6),
    "attractor train": ([*ATTRACTOR, "train", "--n-steps", "1"], 2.0),
}


def seconds_to_first_output(words: list[str]) -> float:
    """Return the seconds until a terminal shows the first letter, and end the command there."""
    begun = time.perf_counter()
    process, terminal = pty.fork()
    if process == 0:
        os.execv(words[0], words)
    os.read(terminal, 1)
    seconds = time.perf_counter() - begun
    os.kill(process, 9)
    os.waitpid(process, 0)
    os.close(terminal)
    return seconds


if __name__ == "__main__":
    for name, (words, longest) in WAITS.items():
        print(f"{name:<20} {median(seconds_to_first_output(words) for _ in range(5)):.2f} s of {longest:.1f} s")
