"""Estimate the time and memory of a run by carrying out its first steps in a fresh process.

    seconds = start + first step + (n_steps - 1) median step + evaluations + saves                          (1)

The steps are those of the run: its model, data, micro-batches, precision and optimizer. In a fresh process the peak
memory is what the run's summary would say. (1) leaves out starting Python and reading the corpus. The first step
includes the time of compiling.
"""

import math
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from attractor.errors import InputError, RunInterrupted
from attractor.runs.run_folder import RunFolder
from attractor.train.config import Runtime, TrainConfig
from attractor.train.display import Display
from attractor.train.evaluate import validate
from attractor.train.heap import freed_memory_kept
from attractor.train.interrupt import StopRequest
from attractor.train.loop import Run
from attractor.train.process import begin, end_at_once, fresh_processes

SECONDS = 2.0  # how long steps are taken; two are taken in any case, since memory peaks in the second
POLL_SECONDS = 0.1
NEXT_STEP = "try more accumulation or a smaller batch_size"


class CalibrationError(RuntimeError):
    """The first steps could not be carried out, for the reason in the message."""


class OutOfMemory(CalibrationError):  # noqa: N818
    """The first steps do not fit into the free memory."""


@dataclass(frozen=True)
class RunCosts:
    """The costs of one run. Seconds are those of one step, one whole evaluation and one checkpoint."""

    device: str
    threads: int
    measured_steps: int
    start_seconds: float  # for building the model and the optimizer
    first_step_seconds: float
    step_seconds: float
    evaluation_seconds: float
    save_seconds: float
    total_seconds: float
    peak_memory_bytes: int


def calibrate(config: TrainConfig, runtime: Runtime) -> RunCosts:
    """Return the estimate, within a few seconds unless a single step takes longer."""
    context = fresh_processes()
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="attractor-plan-") as folder, StopRequest() as stop:
        process = context.Process(target=_answer, args=(sender, config, runtime, Path(folder) / "run"))
        process.start()
        sender.close()
        try:
            while not receiver.poll(POLL_SECONDS):
                if stop.signal_number is not None:
                    raise RunInterrupted("interrupted while calibrating; nothing is written", stop.signal_number)
            answer = receiver.recv()
        except EOFError:
            answer = OutOfMemory(f"its process was ended from outside, as happens where memory runs out; {NEXT_STEP}")
        finally:
            process.kill()
            process.join()
            receiver.close()
    if isinstance(answer, CalibrationError):
        raise answer
    assert isinstance(answer, RunCosts)
    return answer


def _answer(sender: Connection, config: TrainConfig, runtime: Runtime, folder: Path) -> None:
    begin(end_at_once)
    try:
        sender.send(measure(config, runtime, folder))
    except Exception as error:
        sender.send(_in_words(error))


def _in_words(error: Exception) -> CalibrationError:
    text = str(error).splitlines()[0] if str(error) else "no reason is given"
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in text:
        return OutOfMemory(f"out of memory ({text}); {NEXT_STEP}")
    return CalibrationError(text if isinstance(error, InputError) else f"{type(error).__name__}: {text}")


@freed_memory_kept()
def measure(config: TrainConfig, runtime: Runtime, folder: Path) -> RunCosts:
    """Carry out the first steps, an evaluation of one batch and a save, as the run would."""
    task = config.build_task()
    started = time.perf_counter()
    run = Run(config, RunFolder.create(folder, config.to_dict()), task, runtime, Display())
    start_seconds = time.perf_counter() - started
    run.model.train()

    def take_and_read_step() -> None:
        run.unread.append(run.take_step())
        run.read_steps()

    steps: list[float] = []
    while len(steps) < min(2, config.n_steps) or (len(steps) < config.n_steps and sum(steps) < SECONDS):
        steps.append(_seconds(take_and_read_step))

    one_batch = partial(validate, run.model, task, config.replace(eval_batches=1))
    batch_seconds = statistics.median(_seconds(one_batch) for _ in range(3))
    save_seconds = _seconds(run.checkpoints.save)
    memory = run.memory.read()
    n_batches = sum(1 for _ in task.valid_batches(config.micro_batch_size, config.eval_batches))
    step_seconds = statistics.median(steps[1:] or steps)
    evaluation_seconds = n_batches * batch_seconds
    n_evaluations, n_saves = occasions(config, runtime)
    total = start_seconds + steps[0] + (config.n_steps - 1) * step_seconds  # (1)
    if runtime.save_every_minutes is not None:
        n_saves = max(n_saves, int(total / (60 * runtime.save_every_minutes)))
    return RunCosts(
        device=str(run.device),
        threads=torch.get_num_threads(),
        measured_steps=len(steps),
        start_seconds=start_seconds,
        first_step_seconds=steps[0],
        step_seconds=step_seconds,
        evaluation_seconds=evaluation_seconds,
        save_seconds=save_seconds,
        total_seconds=total + n_evaluations * evaluation_seconds + n_saves * save_seconds,
        peak_memory_bytes=memory,
    )


def occasions(config: TrainConfig, runtime: Runtime) -> tuple[int, int]:
    """Return how often a run evaluates and saves, if every evaluation is the best so far and is therefore saved."""
    n_evaluations = math.ceil(config.n_steps / config.eval_every)
    others = range(runtime.save_every, config.n_steps, runtime.save_every)
    return n_evaluations, n_evaluations + sum(step % config.eval_every != 0 for step in others)


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started
