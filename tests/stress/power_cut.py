"""Cut the power of a run again and again, and compare the end of what is left on the disk with an undisturbed run.

`python tests/stress/power_cut.py [n_cuts] [seed]`; `make stress` does this with 20 cuts.

A disk keeps what was flushed: the content of a file as it was when the file was flushed, and the names of a folder as
they were when the folder was flushed. Of everything else it may keep the old state, the new one, or the beginning of
the new one. So the run notes what it flushes, ends without a word at a flush that the seed draws, and its folder is
made anew: the seed draws what is left of each file and name that was not flushed. The run is then resumed. It must
continue from the newest checkpoint whose name was flushed, or from a later one, and end like the undisturbed run.
Every second cut hits a run that continues from what the cut before has left.
"""

import os
import random
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attractor import cli
from stress.commands import import_all, in_child
from stress.kills import command_of, newest_step, outcome

N_STEPS = 40


class Disk:
    """What a power cut leaves for certain. Flushed files stay open, so that no new file gets the number of one."""

    def __init__(self, folder: Path) -> None:
        self.contents: dict[int, bytes] = {}
        self.names: dict[int, dict[str, int]] = {}
        for path in (folder, *folder.rglob("*")) if folder.exists() else ():
            descriptor = os.open(path, os.O_RDONLY)
            self.flush(descriptor)
            os.close(descriptor)
        self.n_flushes = 0

    def flush(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if status.st_ino not in self.contents | self.names:
            os.dup(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}")
        if stat.S_ISDIR(status.st_mode):
            self.names[status.st_ino] = {entry.name: entry.inode() for entry in os.scandir(path.resolve())}
        else:
            self.contents[status.st_ino] = path.read_bytes()

    def leave(self, folder: Path, left: Path, generator: random.Random) -> None:
        """Write to `left` what a power cut at this moment may leave of the folder."""
        live = {path.stat().st_ino: path for path in (folder, *folder.rglob("*"))}

        def leave(number: int, place: Path) -> None:
            path = live.get(number)
            if number in self.names or (path is not None and path.is_dir()):
                now = {} if path is None else {entry.name: entry.inode() for entry in os.scandir(path)}
                flushed = self.names.get(number, {})
                place.mkdir()
                for name in sorted(now.keys() | flushed.keys()):
                    chosen = generator.choice((flushed, now)).get(name)
                    if chosen is not None:
                        leave(chosen, place / name)
                return
            flushed, now = self.contents.get(number, b""), b"" if path is None else path.read_bytes()
            states = (flushed, now, now[: generator.randint(min(len(flushed), len(now)), len(now))])
            place.write_bytes(flushed if path is None or now == flushed else generator.choice(states))

        leave(folder.stat().st_ino, left)


def train_until(folder: Path, cut: int, left: Path, generator: random.Random) -> tuple[str, int]:
    """Train, and cut the power after this many flushes. Return `cut` and the step of the newest checkpoint that must be
    left, or `ended` and the number of flushes where the run ended before."""

    def run() -> None:
        disk, fsync = Disk(folder), os.fsync

        def flush(descriptor: int) -> None:
            fsync(descriptor)
            disk.flush(descriptor)
            disk.n_flushes += 1
            if disk.n_flushes == cut:
                disk.leave(folder, left, generator)
                checkpoints = disk.names.get((folder / "checkpoints").stat().st_ino, {})
                steps = [int(name.removeprefix("step-")) for name in checkpoints if name.startswith("step-")]
                print(f"cut {max(steps, default=0)}", flush=True)
                os._exit(0)

        os.fsync = flush
        resume(folder)
        print(f"ended {disk.n_flushes}")

    ended = in_child(run, folder.parent)
    assert ended.code == 0, ended.text
    end, number = ended.out.split()[-2:]
    return end, int(number)


def resume(folder: Path) -> None:
    sys.argv = ["attractor", *command_of(folder, N_STEPS)]
    cli.main()


def cut_and_compare(root: Path, n_cuts: int, seed: int, say: Callable[[str], Any] = print) -> None:
    """Raise an error if a run continues from before its newest checkpoint, or ends in another way."""
    import_all()
    generator = random.Random(seed)
    _, n_flushes = train_until(root / "whole", -1, root / "nothing", generator)
    say(f"{n_cuts} power cuts of a run of {N_STEPS} steps and {n_flushes} flushes, seed {seed}")
    whole = outcome(root / "whole")
    run, left = root / "run", root / "left"
    number = 0
    while number < n_cuts:
        cut = generator.randint(1, n_flushes if number % 2 == 0 else 40)
        end, step = train_until(run, cut, left, random.Random(f"{seed}/{number}"))
        shutil.rmtree(run)
        if end == "ended":  # the run had been cut near its end
            continue
        number += 1
        if number % 2 == 1:
            shutil.copytree(left, run)
        found = newest_step(left)
        say(f"cut {number:>2}: after flush {cut:>4}: step {step} must be left, {found} is")
        assert found >= step, "a checkpoint whose name was flushed is gone"
        ended = in_child(lambda: resume(left), root)
        assert ended.code == 0, f"cut {number} at flush {cut}: {ended.text}"
        assert outcome(left) == whole, f"cut {number} at flush {cut}: the run ended in another way\n{ended.text}"
        shutil.rmtree(left)
    say(f"equal after {n_cuts} power cuts")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:3]]
    with tempfile.TemporaryDirectory() as made:
        cut_and_compare(Path(made), *(given + [20, 0][len(given) :]))
