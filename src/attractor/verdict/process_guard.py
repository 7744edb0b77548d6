"""Run a command so that nothing of it outlives its parent: `python process_guard.py DESCRIPTOR WORD ...`.

The guard leads a process group of its own, which the command joins. The parent holds the other end of the guard's
standard input, and the kernel closes that end however the parent ends, by SIGKILL, too. The guard then kills the group.
When the command has ended, the guard writes its exit code to the descriptor and kills what is left of the group. This
file imports nothing of attractor, since it must start at once.
"""

import os
import signal
import subprocess
import sys
import threading


def kill_group() -> None:
    os.killpg(0, signal.SIGKILL)


def end_with_parent() -> None:
    os.read(0, 1)  # the parent writes nothing, so this returns when the parent is gone
    kill_group()


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: None)  # these are for the command, whose handlers exec resets
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        answer = str(subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL).wait())
    except (OSError, ValueError) as error:
        answer = f"it cannot be started: {error}"
    os.write(int(sys.argv[1]), answer.encode(errors="replace"))
    kill_group()


if __name__ == "__main__":
    main()
