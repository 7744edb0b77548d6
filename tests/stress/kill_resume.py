"""Kill a run with SIGKILL again and again, and compare its end with that of an undisturbed run.

`python tests/stress/kill_resume.py [n_kills] [seed]`; `make stress` does this with 160 kills of four runs.

The run is a real one through the command line. It saves a checkpoint after every step, so that kills hit every part of
a step and of the writing of a checkpoint. The seed determines each kill: a number of further steps, and a few
milliseconds. The sha256 of the final weights, optimizer and random state must be equal. So must every record of the
metrics, each step once, except measurements such as tokens per second. The processes that are killed are forked from
one that has imported torch; the undisturbed run and the end of the killed one are fresh processes.
"""

import hashlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from stress.commands import PATIENCE, forked, import_all, typed

N_RUNS = 4  # two of them at a time
N_STEPS_A_KILL = 6
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


def command_of(folder: Path, n_steps: int) -> list[str]:
    corpus = folder.parent / "corpus.txt"
    corpus.write_text("".join(f"{i} squared is {i * i}\n" for i in range(400)))
    options = [f"--out={folder}", f"--n-steps={n_steps}", f"--corpus={corpus}", "--attention=coupled-euler"]
    return ["train", *MODEL, *OFTEN, *options]


def start(folder: Path, n_steps: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from attractor.cli import main; main()", *command_of(folder, n_steps)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, said = process.communicate(timeout=PATIENCE)
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


def kill_and_compare(root: Path, n_kills: int, seed: int, n_steps: int, say: Any = print) -> int:
    """Raise an error if the killed run and the undisturbed one differ; return the number of kills that came in time."""
    import_all()
    generator = random.Random(seed)
    say(f"{n_kills} kills of a run of {n_steps} steps, seed {seed}")
    finish(start(root / "whole", n_steps))
    run = typed(*command_of(root / "killed", n_steps))
    n_hits = n_done = 0
    for number in range(1, n_kills + 1):
        steps, seconds = generator.randint(0, n_steps // n_kills), generator.uniform(0, 0.05)
        process = forked(run, root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        where = kill_after(process, root / "killed", steps, seconds)
        n_hits += "inside" in where
        n_done += "ended before" not in where
        say(f"kill {number:>2}: {steps:>2} steps and {1000 * seconds:4.1f} ms on: {where}")
    finish(start(root / "killed", n_steps))
    whole, killed = outcome(root / "whole"), outcome(root / "killed")
    for name, value in whole.items():
        say(f"{name}: {value} {'equal' if killed[name] == value else f'but killed: {killed[name]}'}")
    assert whole == killed, "the killed run differs from the whole one"
    say(f"equal after {n_done} kills, {n_hits} of them inside the writing or removing of a checkpoint")
    return n_done


def kill_a_run(seed: int, n_kills: int) -> tuple[int, list[str]]:
    """Return the number of kills, and what is to be said of them."""
    said: list[str] = []
    with tempfile.TemporaryDirectory() as made:
        n_done = kill_and_compare(Path(made), n_kills, seed, N_STEPS_A_KILL * n_kills, said.append)
    return n_done, said


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    n_asked, seed = given + [160, 0][len(given) :]
    shares = [len(range(number, n_asked, N_RUNS)) for number in range(min(N_RUNS, n_asked))]
    n_done = 0
    import_all()
    with ProcessPoolExecutor(N_RUNS // 2, multiprocessing.get_context("fork")) as pool:
        for done, lines in pool.map(kill_a_run, range(1000 * seed, 1000 * seed + len(shares)), shares):
            n_done += done
            print(*lines, sep="\n", flush=True)
    print(f"{n_done} kills of {len(shares)} runs: nothing lost")
    sys.exit(f"{n_asked} kills were asked for; the other runs had ended before" if n_done < n_asked else 0)
