"""Kill a run with SIGKILL again and again, and compare its end with that of an undisturbed run.

`python tests/stress/kill_resume.py [n_kills] [seed]`; `make stress` does this with 25 kills.

The run is a real one through the command line. It saves a checkpoint after every step, so that kills hit every part of
a step and of the writing of a checkpoint. The seed determines each kill: a number of further steps, and a few
milliseconds. The sha256 of the final weights, optimizer and random state must be equal. So must every record of the
metrics, each step once, except measurements such as tokens per second.
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
from pathlib import Path
from typing import Any

MODEL = ("--d-model=16", "--n-heads=2", "--n-layers=2", "--d-ff=32", "--seq-len=16", "--batch-size=4", "--dropout=0.1")
OFTEN = (
    "--save-every=1",
    "--log-every=1",
    "--eval-every=20",
    "--eval-batches=2",
    "--telemetry-every=10",
    "--threads=1",
    "--device=cpu",
)
MEASURED = ("tokens_per_second",)


def as_at_a_terminal() -> None:
    """Restore the signals that a background process of a shell, or one under nohup, ignores."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start(folder: Path, n_steps: int) -> subprocess.Popen[bytes]:
    corpus = folder.parent / "corpus.txt"
    corpus.write_text("".join(f"{i} squared is {i * i}\n" for i in range(400)))
    command = [sys.executable, "-c", "from attractor.cli import main; main()", "train", f"--out={folder}"]
    options = [*MODEL, *OFTEN, f"--n-steps={n_steps}", f"--corpus={corpus}", "--attention=coupled-euler"]
    return subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, said = process.communicate(timeout=600)
    if process.returncode:
        raise SystemExit(f"the run ended with {process.returncode}: {said.decode()}")


def newest_step(folder: Path) -> int:
    names = [path.name for path in (folder / "checkpoints").glob("step-*")]
    return max((int(name.removeprefix("step-")) for name in names), default=0)


def kill_after(process: subprocess.Popen[bytes], folder: Path, steps: int, seconds: float) -> str:
    """Kill the process once this many more steps are saved and some time has passed; return what it left."""
    first = newest_step(folder)
    while process.poll() is None and newest_step(folder) < first + steps:
        time.sleep(0.001)
    time.sleep(seconds)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    if process.returncode != -signal.SIGKILL:
        return "the run had ended before"
    half = [path.name for path in (folder / "checkpoints").glob(".*")]
    metrics = (folder / "metrics.jsonl").read_bytes() if (folder / "metrics.jsonl").exists() else b""
    torn = " and a torn line" if metrics and not metrics.endswith(b"\n") else ""
    return f"at step {newest_step(folder)}, {'inside ' + ', '.join(half) if half else 'between checkpoints'}{torn}"


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


def kill_and_compare(root: Path, n_kills: int, seed: int, n_steps: int, say: Any = print) -> None:
    """Raise an error if the killed run and the undisturbed one differ."""
    generator = random.Random(seed)
    say(f"{n_kills} kills of a run of {n_steps} steps, seed {seed}")
    finish(start(root / "whole", n_steps))
    n_hits = 0
    for number in range(1, n_kills + 1):
        steps, seconds = generator.randint(0, n_steps // n_kills), generator.uniform(0, 0.05)
        where = kill_after(start(root / "killed", n_steps), root / "killed", steps, seconds)
        n_hits += "inside" in where
        say(f"kill {number:>2}: {steps:>2} steps and {1000 * seconds:4.1f} ms on: {where}")
    finish(start(root / "killed", n_steps))
    whole, killed = outcome(root / "whole"), outcome(root / "killed")
    for name, value in whole.items():
        say(f"{name}: {value} {'equal' if killed[name] == value else f'but killed: {killed[name]}'}")
    assert whole == killed, "the killed run differs from the whole one"
    say(f"equal after {n_kills} kills, {n_hits} of them inside the writing or removing of a checkpoint")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as made:
        kill_and_compare(Path(made), *(given + [25, 0][len(given) :]), n_steps=150)
