"""Measure for how long saving a sharded checkpoint holds up training, as a share of the 10 minutes between two saves.

    share = (seconds that `save` blocks + seconds by which steps are longer while a thread writes) / 600 s

A model of 350 million parameters takes real steps on a CPU with AdamW in fp32: 4.2 GB of weights and moments. On a GPU
steps are shorter, but the schedule is the same: one save in 10 minutes.

    python benchmarks/saving_cost.py [N_BLOCKS] [FOLDER]        24 blocks of width 1024 by default; exit code 1 above 2%
"""

import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

from attractor.models import TransformerConfig
from attractor.runs.run_folder import RunFolder
from attractor.tasks.text import Text
from attractor.train.config import Runtime, TrainConfig
from attractor.train.display import Display
from attractor.train.loop import Run

INTERVAL = 600.0  # seconds between two saves: the default of --save-every-minutes
LARGEST_SHARE = 0.02
N_STEPS = 2  # steps before the save, whose median time is that of a step


def gibibytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(n_blocks: int, root: Path) -> float:
    corpus = root / "corpus.txt"
    corpus.write_text("".join(f"{i} squared is {i * i}\n" for i in range(2000)))
    model = TransformerConfig(
        vocab_size=32_000, d_model=1024, n_heads=16, n_layers=n_blocks, d_ff=4096, max_seq_len=64, positions="rope"
    )
    config = TrainConfig(
        model, Text(str(corpus)), n_steps=100, batch_size=1, seq_len=32, warmup_steps=1, eval_every=100
    )
    task = config.build_task()
    runtime = Runtime(device="cpu", checkpoint_format="sharded", telemetry_every=None, save_every_minutes=None)
    run = Run(config, RunFolder.create(root / "run", config.identity(task)), task, runtime, Display())

    def step() -> float:
        started = time.perf_counter()
        run.unread.append(run.take_step())
        run.read_steps()
        return time.perf_counter() - started

    usual = statistics.median([step() for _ in range(N_STEPS)])
    before = gibibytes()
    started, processor = time.perf_counter(), time.thread_time()
    run.checkpoints.save()
    blocked, processor = time.perf_counter() - started, time.thread_time() - processor
    during = []
    saver = run.checkpoints.saver
    assert saver is not None
    assert saver.pending is not None
    while not saver.pending.done():
        during.append(step())
    written = time.perf_counter() - started
    run.checkpoints.wait()
    run.close()
    slower = max(0.0, sum(during) - usual * len(during))
    share = (blocked + slower) / INTERVAL
    n_parameters = sum(parameter.numel() for parameter in run.model.parameters())
    print(
        f"{n_parameters / 1e6:.0f}M parameters: blocked {blocked:.1f} s (processor {processor:.1f} s), "
        f"written after {written:.1f} s; {len(during)} steps meanwhile took {slower:.1f} s longer "
        f"({usual:.2f} s each alone); "
        f"{share:.2%} of {INTERVAL:.0f} s; memory {before:.1f} GiB, {gibibytes():.1f} GiB while saving"
    )
    return share


if __name__ == "__main__":
    arguments = sys.argv[1:]
    with tempfile.TemporaryDirectory(dir=arguments[1] if len(arguments) > 1 else None) as made:
        share = measure(int(arguments[0]) if arguments else 24, Path(made))
    sys.exit(int(share > LARGEST_SHARE))
