"""Kill a study again and again, and compare its end with that of an undisturbed study.

`python tests/stress/kills.py [n_kills] [seed]`; `make stress` does this with 60 kills.

The study is a real one through the command line. Two runs train at once and save a checkpoint after every step, so that
kills hit every part of a step and of the writing of a checkpoint. The seed determines when a kill comes, and whether it
hits the launcher, a run or all of them. A run that is finished at a kill must not change any more. In the end every run
must equal that of an undisturbed study in weights, optimizer, random state and every record. A study that is finished
before the last kill makes room for a new one. The processes that are killed are forked from one that has imported
torch; those of the undisturbed study are fresh.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attractor.runs.lock import HOLD
from attractor.runs.run_folder import RunFolder
from attractor.runs.study_record import POOL, StudyRecord
from stress.commands import PATIENCE, forked, import_all, typed

STUDY = """
from attractor.study import Scale, Study, axis
from attractor.train.config import TrainConfig

BASE = TrainConfig().replace(corpus="squares.txt", d_model=16, n_heads=2, n_layers=1, d_ff=16, n_steps={n_steps},
    warmup_steps=1, batch_size=2, dropout=0.1, seq_len=16, eval_every=20, eval_batches=4)
STUDY = Study(title="Killed", question="What is left?", source="no table", rows=axis("attention", "standard", "gated"),
    baseline="standard", control=False, scales={{"smoke": Scale(BASE, seeds=(0, 1, 2))}})
"""
MODEL = ("--d-model=16", "--n-heads=2", "--n-layers=2", "--d-ff=32", "--seq-len=16", "--batch-size=4", "--dropout=0.1")
ALONE = ("--save-every=1", "--threads=1", "--device=cpu")
OFTEN = (*ALONE, "--log-every=1", "--eval-every=20", "--eval-batches=2", "--telemetry-every=10")
MEASURED = ("tokens_per_second",)
VICTIMS = ("the launcher", "one of its runs", "all of them")
RUN_NAME = "killed-smoke"
COMMAND = ("study", "run", "killed.py", "--launcher=local", "--workers=2", *ALONE)
PIPES: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}


def command_of(folder: Path, n_steps: int) -> list[str]:
    corpus = folder.parent / "corpus.txt"
    corpus.write_text("".join(f"{i} squared is {i * i}\n" for i in range(400)))
    options = [f"--out={folder}", f"--n-steps={n_steps}", f"--corpus={corpus}", "--attention=coupled-euler"]
    return ["train", *MODEL, *OFTEN, *options]


def start_run(folder: Path, n_steps: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from attractor.cli import main; main()", *command_of(folder, n_steps)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def newest_step(folder: Path) -> int:
    names = [path.name for path in (folder / "checkpoints").glob("step-*")]
    return max((int(name.removeprefix("step-")) for name in names), default=0)


def outcome(folder: Path) -> dict[str, Any]:
    last = folder / "checkpoints" / f"step-{newest_step(folder):08d}"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    records = [{key: value for key, value in line.items() if key not in MEASURED} for line in lines]
    steps = [line["step"] for line in lines if "loss" in line]
    assert steps == sorted(set(steps)), "a step stands twice in the metrics"
    return {
        "weights": hashlib.sha256((last / "model.safetensors").read_bytes()).hexdigest(),
        "optimizer and random state": hashlib.sha256((last / "optimizer.pt").read_bytes()).hexdigest(),
        "steps": len(steps),
        "metrics": hashlib.sha256(json.dumps(records).encode()).hexdigest(),
    }


def prepare(folder: Path, n_steps: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "squares.txt").write_text("".join(f"{i} squared is {i * i}\n" for i in range(3000)))
    (folder / "killed.py").write_text(STUDY.format(n_steps=n_steps))


def start(folder: Path, n_steps: int) -> subprocess.Popen[bytes]:
    prepare(folder, n_steps)
    return subprocess.Popen([sys.executable, "-m", "attractor", *COMMAND], cwd=folder, **PIPES)


def start_forked(folder: Path) -> subprocess.Popen[bytes]:
    return forked(typed(*COMMAND), folder, **PIPES)


def runs_of(folder: Path) -> dict[str, Path]:
    return {path.name: path for path in (folder / "runs" / POOL).glob("*") if (path / "config.json").exists()}


def held_by(folder: Path) -> list[int]:
    """Return the processes that hold runs now, according to the kernel's locks."""
    held = {}
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "->":  # this process waits for a lock
            continue
        held[int(fields[5].rsplit(":", 1)[1])] = int(fields[4])  # the key is the inode
    locks = [path / HOLD for path in runs_of(folder).values()]
    return [held[lock.stat().st_ino] for lock in locks if lock.exists() and lock.stat().st_ino in held]


def finished_in(folder: Path) -> dict[str, int]:
    """Return the finished runs with the time at which each of their files was written."""
    return {
        str(file.relative_to(folder)): file.stat().st_mtime_ns
        for path in runs_of(folder).values()
        if RunFolder.open(path).finished
        for file in path.rglob("*")
        if file.is_file() and file.name != HOLD
    }


def kill(process: subprocess.Popen[bytes], folder: Path, victim: str) -> str:
    runs = held_by(folder)
    if victim == "one of its runs" and runs:
        os.kill(runs[0], signal.SIGKILL)  # the launcher reports the failure and continues with the others
        process.communicate(timeout=PATIENCE)
        return f"the launcher ended with {process.returncode}"
    os.kill(process.pid, signal.SIGKILL)
    if victim == "all of them":
        for run in runs:
            os.kill(run, signal.SIGKILL)
    process.communicate()
    return f"{len(runs)} runs were under way"


def kill_and_compare(root: Path, n_kills: int, seed: int, n_steps: int, say: Any = print) -> None:
    """Raise an error if a finished run changed, or if a killed study and the undisturbed one differ."""
    import_all()
    generator = random.Random(seed)
    say(f"{n_kills} kills of studies of six runs of {n_steps} steps, seed {seed}")
    finish(start(root / "whole", n_steps))
    n_done = n_studies = 0
    while n_done < n_kills:
        n_studies += 1
        killed = root / f"killed-{n_studies}"
        prepare(killed, n_steps)
        for where in kills_of(killed, n_kills - n_done, generator):
            n_done += 1
            say(f"kill {n_done:>2}: {where}")
        finished = finished_in(killed)
        finish(start_forked(killed))
        assert finished.items() <= finished_in(killed).items(), "a finished run was touched"
        compare(killed, root / "whole")
    say(f"equal after {n_done} kills of {n_studies} studies")


def kills_of(killed: Path, n_kills: int, generator: random.Random) -> Iterator[str]:
    """Kill a study up to this many times, until it ends before the next kill; yield what each kill hit."""
    finished: dict[str, int] = {}
    for number in range(n_kills):
        victim = VICTIMS[number % len(VICTIMS)]
        process = start_forked(killed)
        deadline = time.monotonic() + PATIENCE
        while process.poll() is None and not held_by(killed) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(generator.uniform(0, 0.6))
        where = kill(process, killed, victim) if process.poll() is None else None
        wait_until_free(killed)
        now = finished_in(killed)
        assert finished.items() <= now.items(), "a finished run was touched"
        if where is None:
            return
        finished = now
        n_finished = sum(RunFolder.open(path).finished for path in runs_of(killed).values())
        yield f"{victim}: {where}; {n_finished} runs are finished"


def compare(killed: Path, whole: Path) -> None:
    """Raise an error unless the runs of the killed study ended as those of the undisturbed one."""
    assert StudyRecord.read(killed / "runs" / RUN_NAME).finished == 6
    assert runs_of(killed).keys() == runs_of(whole).keys()
    for name, path in runs_of(whole).items():
        assert outcome(runs_of(killed)[name]) == outcome(path), f"the killed run {name} differs from the whole one"


def wait_until_free(folder: Path) -> None:
    """Wait until the runs of a killed launcher have saved and ended."""
    deadline = time.monotonic() + 60
    while held_by(folder):
        assert time.monotonic() < deadline, "a run outlived its launcher"
        time.sleep(0.01)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, said = process.communicate(timeout=PATIENCE)
    if process.returncode:
        raise SystemExit(f"the study ended with {process.returncode}: {said.decode()}")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as made:
        kill_and_compare(Path(made), *(given + [60, 0][len(given) :]), n_steps=200)
