"""Let one rank of a distributed run fail, die or hang, or kill its launcher, and check that the run can be resumed.

`python tests/stress/rank_faults.py`; `make stress` does this.

Both ways to start ranks are tried: torchrun, and the launcher of studies. After each fault every process must have
ended, the newest checkpoint must be intact, and the lock must be free. Who waited for a rank that hangs says so. A rank
that fails shows its traceback, and no other rank does; torchrun adds one of its own.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attractor.runs.lock import is_held
from attractor.train.checkpoint import list_checkpoints, verify
from processes import living_family
from stress.kills import MODEL, STUDY, newest_step, runs_of

LIMIT = 8.0  # seconds that a collective operation may take
N_STEPS = 4000
SAVED = 5  # steps after which the fault comes, when there are checkpoints
PROGRAM = """
import sys, time
from attractor.tasks.text import TextTask
from attractor.train.distributed import World
train_batch = TextTask.train_batch
def disturbed(task, step, batch_size):
    if step == {step} and World.from_environment().rank == 1:
        {fault}
    return train_batch(task, step, batch_size)
TextTask.train_batch = disturbed
from attractor.__main__ import main
main()
"""
SAYS = {
    "error": "ArithmeticError: no number on rank 1",
    "hang": "rank 0 waited in vain for another rank, which is gone or stuck",
    "killed rank": "",  # whoever started the ranks ends them
    "killed launcher": "",
}
FAULTS = {"error": "raise ArithmeticError('no number on rank 1')", "hang": "time.sleep(600)"}


def torchrun(folder: Path, fault: str) -> subprocess.Popen[bytes]:
    program = folder / "program.py"
    program.write_text(PROGRAM.format(step=SAVED + 2, fault=FAULTS.get(fault, "pass")))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]
    options = [*MODEL, "--corpus=squares.txt", f"--n-steps={N_STEPS}", "--eval-every=4000", "--save-every=1"]
    options += ["--device=cpu", "--threads=1", "--log-every=1", "--out=run", f"--collective-timeout={LIMIT}"]
    return begin([*command, "train", *options], folder)


def study(folder: Path, fault: str) -> subprocess.Popen[bytes]:
    (folder / "killed.py").write_text(STUDY.format(n_steps=N_STEPS))
    options = ["--device=cpu", "--launcher=torchrun", "--workers=2", "--threads=1", "--save-every=1", "--part=1/2"]
    options += [f"--collective-timeout={LIMIT}", "--seeds", "0"]
    return begin([sys.executable, "-m", "attractor", "study", "run", "killed.py", *options], folder)


def begin(command: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    (folder / "squares.txt").write_text("".join(f"{i} squared is {i * i}\n" for i in range(3000)))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with (folder / "said.txt").open("wb") as said:
        return subprocess.Popen(command, cwd=folder, stdout=said, stderr=said, env=environment)


STARTS: dict[str, Callable[[Path, str], subprocess.Popen[bytes]]] = {"torchrun": torchrun, "study": study}


def ranks(members: Sequence[int]) -> dict[int, int]:
    """Return the process ids of the ranks among these processes by rank: those that lead a session, in their order."""
    return dict(enumerate(member for member in sorted(members) if os.getsid(member) == member))


def until(holds: Callable[[], Any], what: str, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def run_of(folder: Path) -> Path:
    return next(iter(runs_of(folder).values()), folder / "run")


def disturb(folder: Path, started_by: str, fault: str) -> str:
    """Start a run, disturb it, and check what is left. Return what the processes said."""
    folder.mkdir()
    process = STARTS[started_by](folder, fault)
    try:
        until(lambda: newest_step(run_of(folder)) >= SAVED, "it does not train")
        members = living_family(process.pid)
        if fault == "killed launcher":
            process.kill()
        elif fault == "killed rank":
            os.kill(ranks(members)[1], signal.SIGKILL)
        elif fault == "hang" and started_by == "study":
            os.kill(ranks(members)[1], signal.SIGSTOP)
        process.wait(timeout=240)
        until(lambda: not any(living_family(member) for member in members), "a process outlived the fault")
    finally:
        process.kill()
    said = (folder / "said.txt").read_text()
    assert process.returncode, said
    assert SAYS[fault] in said, said
    assert said.count("Traceback") <= (fault == "error") + (started_by == "torchrun"), said
    assert not is_held(run_of(folder)), "the lock is held"
    verify(list_checkpoints(run_of(folder) / "checkpoints")[-1])
    return said


CASES = [(started_by, fault) for started_by in STARTS for fault in SAYS if (started_by, fault) != ("study", "error")]

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        for number, (started_by, fault) in enumerate(CASES):
            disturb(Path(made) / str(number), started_by, fault)
            print(f"{started_by}, {fault}: ended, with an intact checkpoint and a free lock", flush=True)
    print(f"{len(CASES)} faults of ranks, {len(STARTS)} of them hangs: nothing lost")
