"""Measure how long `attractor runs list` takes for many runs: with a new index, and with one that is up to date.

`python benchmarks/list_runs.py [n_runs]` makes invented runs (5,000 by default) in a temporary folder. The processor
time is shown beside the wall-clock time, since other programs lengthen the wall-clock time alone.
"""

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from attractor.files import write_json
from attractor.train.config import TrainConfig

PROGRAM = "from attractor.cli import main; main()"


def make_runs(folder: Path, n_runs: int) -> None:
    configs = [TrainConfig().replace(attention=name) for name in ("standard", "gated", "coupled-euler", "mla")]
    for number in range(n_runs):
        config = replace(configs[number % len(configs)], seed=number, lr=10.0 ** -(2 + number % 3))
        run = folder / f"run-{number:05}"
        run.mkdir()
        write_json(run / "config.json", config.to_dict() | {"label": config.label})
        loss = 1 + number / n_runs
        summary = {"steps": 1000, "tokens": 100_000, "valid_loss": loss, "metric": {"name": "perplexity", "value": 3.0}}
        write_json(run / "summary.json", summary)


def measure(folder: Path, *options: str) -> str:
    before, began = os.times(), time.perf_counter()
    command = [sys.executable, "-P", "-c", PROGRAM, "runs", "list", str(folder), "--limit=1", *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after, seconds = os.times(), time.perf_counter() - began
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    return f"{seconds:.2f} s, {processor:.2f} s of a processor"


if __name__ == "__main__":
    n_asked = int(sys.argv[1]) if len(sys.argv) > 1 else 5000
    with TemporaryDirectory() as made:
        make_runs(Path(made), n_asked)
        print(f"{n_asked:,} runs, with a new index: {measure(Path(made))}")
        print(f"{n_asked:,} runs, listed again: {measure(Path(made))}")
        print(f"{n_asked:,} runs, filtered: {measure(Path(made), '--where=attention=gated lr>1e-3')}")
