"""Measure for how long the training thread is blocked by saving a sharded checkpoint, as a share of 10 minutes.

    share = (seconds in `save` + seconds asleep in steps while a thread writes) / 600 s                             (1)

One save in 10 minutes is the schedule of a GPU, whose steps are too slow for 500 of them in this time, or whose
`--save-every` is longer. A model of 350 million parameters takes real steps on a CPU with AdamW in fp32: 4.2 GB of
weights and moments. The training thread computes by itself (one thread), so it sleeps only where it waits: for the
lock of the interpreter, which the writing thread holds at times, or for the disk. On a GPU the device computes and the
two threads have cores of their own. So the time in which this thread waits for its core, because the writing thread or
another process uses it, is no part of (1): the kernel counts this time, and it is subtracted.

    python benchmarks/saving_cost.py [N_BLOCKS] [FOLDER]        19 blocks of width 1024 by default; exit code 1 above 2%
"""

import resource
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from attractor.models import TransformerConfig
from attractor.runs.run_folder import RunFolder
from attractor.tasks.text import Text
from attractor.train.config import Runtime, TrainConfig
from attractor.train.display import Display
from attractor.train.loop import Run

INTERVAL = 600.0  # seconds between two saves: the default of --save-every-minutes
LARGEST_SHARE = 0.02
N_STEPS = 2  # steps before the save


@dataclass(frozen=True)
class ThreadTime:
    """Seconds of this thread: by the clock, at work, and asleep; the rest it waited for a core."""

    clock: float
    work: float
    asleep: float

    @classmethod
    def now(cls) -> "ThreadTime":
        clock = time.monotonic()
        schedule = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()
        work, waited = int(schedule[0]) / 1e9, int(schedule[1]) / 1e9
        return cls(clock, work, clock - work - waited)

    def __sub__(self, before: "ThreadTime") -> "ThreadTime":
        return ThreadTime(self.clock - before.clock, self.work - before.work, self.asleep - before.asleep)


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
    runtime = Runtime(
        device="cpu", threads=1, checkpoint_format="sharded", telemetry_every=None, save_every_minutes=None
    )
    run = Run(config, RunFolder.create(root / "run", config.identity(task)), task, runtime, Display())

    def step() -> None:
        run.unread.append(run.take_step())
        run.read_steps()

    started = ThreadTime.now()
    for _ in range(N_STEPS):
        step()
    alone = ThreadTime.now() - started
    before = gibibytes()
    started = ThreadTime.now()
    run.checkpoints.save()
    blocked = ThreadTime.now() - started
    saver, n_steps = run.checkpoints.saver, 0
    assert saver is not None
    assert saver.pending is not None
    written = ThreadTime.now()
    while not saver.pending.done():
        step()
        n_steps += 1
    during = ThreadTime.now() - written
    run.checkpoints.wait()
    run.close()
    in_save = blocked.work + blocked.asleep
    share = (in_save + during.asleep) / INTERVAL
    n_parameters = sum(parameter.numel() for parameter in run.model.parameters())
    print(
        f"{n_parameters / 1e6:.0f}M parameters: {in_save:.2f} s in `save` ({blocked.work:.2f} s at work), "
        f"{during.asleep:.2f} s asleep in {n_steps} steps while the thread writes ({alone.asleep:.2f} s in {N_STEPS} "
        f"steps before): {share:.2%} of {INTERVAL:.0f} s; written after {during.clock:.0f} s by the clock, at work for "
        f"{during.work:.0f} s; memory {before:.1f} GiB, {gibibytes():.1f} GiB while saving"
    )
    return share


if __name__ == "__main__":
    arguments = sys.argv[1:]
    with tempfile.TemporaryDirectory(dir=arguments[1] if len(arguments) > 1 else None) as made:
        share = measure(int(arguments[0]) if arguments else 19, Path(made))
    sys.exit(int(share > LARGEST_SHARE))
