"""Send signals to every process of a study, take the reader of its output away, and repeat signals.

`python tests/stress/signals.py [n] [seed]`; `make stress` does this with all 27 + 20 cases. Given n, the seed draws n.

27 cases: SIGTERM, SIGHUP or SIGUSR1 to every process of a study, as systemd and Slurm send them, while its runs start,
train or save; under the launchers local, stacked and torchrun.
20 cases: the reader of a run's or a study's output goes away, or its terminal, or it reads nothing while a signal
comes; and every signal is sent five times within a tenth of a second.

After each case every process has ended with the exit code of the signal, the last line on standard error states how
many runs have a checkpoint, and that is true. There is no traceback. Every run stands at its last recorded step or
beyond, its newest checkpoint is intact, no lock is held, and no run stands before the step of an earlier case.
"""

import fcntl
import os
import pty
import random
import re
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attractor import console
from attractor.runs.lock import is_held
from attractor.runs.run_folder import RunFolder
from attractor.train.checkpoint import HIDDEN, list_checkpoints, verify
from processes import living_family
from stress.commands import as_at_a_terminal, forked, import_all, typed
from stress.kills import MODEL, STUDY, newest_step, runs_of
from stress.rank_faults import until

LAUNCHERS = ("local", "stacked", "torchrun")
PHASES = ("starting", "training", "saving")
TO_GROUPS = [
    (launcher, number, phase)
    for launcher in LAUNCHERS
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    for phase in PHASES
]
EVERY_SIGNAL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
OTHERS: list[tuple[str, int, str]] = [
    *((command, signal.SIGPIPE, "reader gone") for command in ("train", *LAUNCHERS)),
    *((command, signal.SIGPIPE, "reader of both gone") for command in ("train", "local")),
    ("train", signal.SIGHUP, "terminal closed"),
    ("local", signal.SIGHUP, "terminal closed"),
    ("train", signal.SIGTERM, "full pipe"),
    ("train", signal.SIGUSR1, "full pipe"),
    *((command, number, "repeated") for command in ("train", "local") for number in EVERY_SIGNAL),
    ("stacked", signal.SIGTERM, "repeated"),
    ("torchrun", signal.SIGTERM, "repeated"),
]
ENDLESS = 1_000_000  # steps
PIPE_BYTES = 8192  # two pages
LINE = re.compile(r"under way: (\d+), of these with a checkpoint: (\d+)\.")


class Disturbed:
    """A run or study in a folder, with its standard output and standard error."""

    def __init__(self, folder: Path, command: str, how: str) -> None:
        self.folder, self.command, self.how = folder, command, how
        folder.mkdir(exist_ok=True)
        (folder / "squares.txt").write_text("".join(f"{i} squared is {i * i}\n" for i in range(3000)))
        (folder / "killed.py").write_text(STUDY.format(n_steps=ENDLESS))
        self.before = {run: newest_step(run) for run in self.runs()}
        if command == "train":
            often = [] if how != "full pipe" else ["--eval-every=1", "--eval-batches=1"]
            options = ["train", *MODEL, "--corpus=squares.txt", f"--n-steps={ENDLESS}", "--out=runs/runs/run", *often]
        else:
            options = ["study", "run", "killed.py", f"--launcher={command}", "--workers=2"]
            options += ["--part=1/2", "--seeds", "0", "1"]
        options += ["--device=cpu", "--threads=1", f"--save-every={1 if how == 'saving' else ENDLESS}"]
        self.output, output = pty.openpty() if how == "terminal closed" else os.pipe()
        if how == "full pipe":
            fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.said = folder / "said.txt"
        both = how in ("reader of both gone", "terminal closed")
        with self.said.open("wb") as said:
            streams: dict[str, Any] = {"stdout": output, "stderr": output if both else said}
            self.process = self.begin(options, {"OMP_NUM_THREADS": "1", "COLUMNS": "100"}, **streams)
        os.close(output)
        self.closed = False

    def begin(self, words: list[str], environment: dict[str, str], **options: Any) -> subprocess.Popen[bytes]:
        """Start the command. The end of Python is part of the cases of single runs and of repeated signals."""
        options |= {"stdin": subprocess.DEVNULL, "start_new_session": True}
        if self.command != "train" and self.how != "repeated":
            return forked(typed(*words), self.folder, environment, **options)
        command = [sys.executable, "-m", "attractor", *words]
        environment = os.environ | environment
        return subprocess.Popen(command, cwd=self.folder, preexec_fn=as_at_a_terminal, env=environment, **options)

    def runs(self) -> list[Path]:
        return list(runs_of(self.folder).values())

    def reached(self) -> bool:
        """Whether the phase has come in which the case disturbs the study."""
        assert self.process.poll() is None, self.said.read_text()
        if self.how == "starting":
            return any(is_held(run) for run in self.runs())
        if self.how == "saving":
            return any(list((run / "checkpoints").glob(f"{HIDDEN[0]}*")) for run in self.runs())
        if self.how == "full pipe":
            waiting = fcntl.ioctl(self.output, termios.FIONREAD, bytes(4))
            return int.from_bytes(waiting, sys.byteorder) > PIPE_BYTES // 2  # a write would begin another page
        return any(newest_recorded(run) > self.before.get(run, 0) for run in self.runs())

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self.output)

    def disturb(self, number: int, generator: random.Random) -> None:
        until(self.reached, "it does not train")
        time.sleep(generator.uniform(0, 0.3) if self.how != "saving" else 0)
        self.members = living_family(self.process.pid)
        if number == signal.SIGPIPE or self.how == "terminal closed":
            self.close()
        if number != signal.SIGPIPE:
            for _ in range(5 if self.how == "repeated" else 1):
                for member in generator.sample(self.members, len(self.members)):
                    try:
                        os.kill(member, number)
                    except ProcessLookupError:
                        continue
                time.sleep(generator.uniform(0, 0.02))
        self.process.wait(timeout=240)
        until(lambda: not any(living_family(member) for member in self.members), "a process was left")
        self.close()

    def check(self, number: int) -> str:
        said = self.said.read_text()
        assert self.process.returncode == 128 + number, (self.process.returncode, said)
        assert "Traceback" not in said, said
        runs = self.runs()
        assert not any(is_held(run) for run in runs), "a lock is held"
        for run in runs:
            recorded, saved = newest_recorded(run), newest_step(run)
            assert saved >= max(recorded, self.before.get(run, 0)), f"recorded {recorded}, saved {saved}"
            for path in list_checkpoints(run / "checkpoints"):
                verify(path)
        if self.how in ("reader of both gone", "terminal closed"):
            return ""
        line = said.splitlines()[-1]
        if self.command == "train":
            assert f"interrupted after step {newest_step(runs[0])}, saved." in line, said
        else:
            counts = LINE.search(line)
            assert counts is not None, said
            with_checkpoint = sum(bool(list_checkpoints(run / "checkpoints")) for run in runs)
            assert int(counts[2]) == with_checkpoint <= int(counts[1]), said
        return line


def newest_recorded(run: Path) -> int:
    if not (run / "metrics.jsonl").exists():
        return 0
    return max((record["step"] for record in RunFolder.open(run).metrics()), default=0)


def send_and_check(root: Path, cases: Sequence[tuple[str, int, str]], seed: int) -> None:
    """Carry out each case in the folder of its command, where the next case of the same command continues."""
    import_all()
    console.SECONDS_BETWEEN = 1.0  # a forked study notices at its next line that nobody reads
    generator = random.Random(seed)
    for count, (command, number, how) in enumerate(cases, start=1):
        name = signal.Signals(number).name
        disturbed = Disturbed(root / (how if how == "full pipe" else command), command, how)
        try:
            disturbed.disturb(number, generator)
            line = disturbed.check(number)
        except BaseException:
            print(f"{count:>2}: {command}, {name}, {how}: {disturbed.said.read_text()}")
            raise
        finally:
            disturbed.close()
            disturbed.process.kill()
        print(f"{count:>2}: {command}, {name}, {how}: {line.partition(' Resume')[0]}", flush=True)


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    every = [*TO_GROUPS, *OTHERS]
    n, seed = (given + [len(every), 0][len(given) :])[:2]
    drawn = every if n >= len(every) else random.Random(seed).sample(every, n)
    with tempfile.TemporaryDirectory() as made:
        send_and_check(Path(made), drawn, seed)
    n_groups = sum(case in TO_GROUPS for case in drawn)
    print(
        f"{n_groups} signals to whole studies, {len(drawn) - n_groups} lost readers and repeated signals: nothing lost"
    )
