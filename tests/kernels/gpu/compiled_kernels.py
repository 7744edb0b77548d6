"""Processes in which kernels are compiled, since the process of the tests interprets them."""

import os
import subprocess
import sys


def printed_by_python(*arguments: str) -> str:
    """Return what a fresh Python process prints that runs these arguments and compiles kernels."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
