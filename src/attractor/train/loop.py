"""The training loop: carry one run from its configuration to a folder that holds everything there is to know about it.

    for each step:  take it (`trainer.py`);  where the run is observed: read the numbers of the steps so far,
                    log them, measure the probe, validate, save (`observers.py`)

A run is a function of its configuration: data order and learning rate depend on the step alone, the first weights on
(seed, name), and the random state is in the checkpoint. So a resumed run equals an uninterrupted one bit for bit.

On a GPU no step waits for the host: the numbers of a step are read where the run is observed, and at the latest after
MAX_UNREAD steps. On a CPU reading is free, and they are read at once. Either way the run is the same.

Several processes may carry out one run together (`distributed.py`): all take every step, and the first one writes.
"""

import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from attractor.errors import RunInterrupted, WritingError
from attractor.files.code import code_option
from attractor.models.diagnostics import summary_of_diagnostics
from attractor.runs.run_folder import DIVERGED, RunFolder
from attractor.tasks import Task
from attractor.tasks.text import TextTask
from attractor.train import checkpoint
from attractor.train.compiled import CompileClock
from attractor.train.config import Runtime, TrainConfig
from attractor.train.damage import is_intact, set_damage_aside
from attractor.train.display import Display
from attractor.train.distributed import World
from attractor.train.evaluate import OF_DIVERGED
from attractor.train.formulas import save_code
from attractor.train.hardware import resolve_device
from attractor.train.heap import freed_memory_kept
from attractor.train.interrupt import GRACE_SECONDS, StopRequest
from attractor.train.observers import Checkpoints, MetricsLog, Observer, Telemetry, Validation
from attractor.train.prefetch import prefetched
from attractor.train.saved_tokenizer import save_tokenizer
from attractor.train.telemetry import over_training, trajectories, trajectories_by_head
from attractor.train.trainer import Trainer

WITHOUT_PREFETCHING = ("cpu",)  # devices on which a thread that makes batches would take a core from the steps
MAX_UNREAD = 32  # steps whose numbers nobody has read: how late a run may notice that it is to stop


def train(
    config: TrainConfig,
    path: str | Path,
    runtime: Runtime | None = None,
    display: Display | None = None,
    observers: Sequence[Observer] = (),
) -> dict[str, Any]:
    """Carry the run at `path` to its end, from wherever it stands, and return its summary.

    A run that diverges ends, too: its summary has the reason as `diverged`, and no loss. Under "rollback" it goes on.
    Each observer is called with every record of the metrics, in the first process.
    """
    world = World.from_environment()
    runtime, display = runtime or Runtime(), display if display and world.is_first else Display()
    world.refuse_uneven(config.batch_size, config.accumulation)
    device = resolve_device(runtime.device)
    task = config.build_task()
    folder = RunFolder.create(path, config.identity(task))
    with world.joined(device, runtime.collective_timeout), ExitStack() as until_the_end:
        if runtime.on_divergence == "rollback":
            world.first_does(folder.reopen)
        if not world.first_does(lambda: folder.finished and is_intact(folder)):
            world.first_does(lambda: until_the_end.enter_context(folder.hold()))
            for line in world.first_does(lambda: set_damage_aside(folder)):
                display.note(f"damaged: {line}")
            if not world.agreed(folder.finished):  # another process may have finished it just now
                world.first_does(lambda: save_tokenizer(folder, task, config.start_folder))
                world.first_does(lambda: save_code(folder, config))
                display.start()
                if world.warning is not None:
                    display.note(world.warning)
                return _carry_out(Run(config, folder, task, runtime, display, world, observers))
    display.note(f"'{folder.path}' is finished already")
    return folder.summary() or {}


def _carry_out(run: "Run") -> dict[str, Any]:
    try:
        run.checkpoints.restore()
        try:
            with StopRequest(run.overdue) as stop, freed_memory_kept(), run.quick_products():
                run.carry_out(stop)
        finally:
            run.close()
        return run.conclude()
    except (OSError, WritingError) as error:
        raise WritingError(f"{said(error)}. {run.how_to_resume}") from error


def said(error: OSError | WritingError) -> str:
    """Say in one line what could not be read or written, and what can be done about it."""
    if isinstance(error, WritingError):
        return str(error)
    place = f" '{error.filename}'" if error.filename else ""
    return f"could not read or write{place}: {error.strerror or error}; make room or make it writable, then resume"


def is_observed(config: TrainConfig, runtime: Runtime, step: int) -> bool:
    """Return whether a run logs, measures, validates, saves or ends after so many steps."""
    intervals = (runtime.log_every, runtime.telemetry_every, config.eval_every, runtime.save_every, config.n_steps)
    return any(interval is not None and step % interval == 0 for interval in intervals)


class Run(Trainer):
    """A run in progress: a trainer, the folder that its run is written to, and its observers."""

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        task: Task,
        runtime: Runtime,
        display: Display,
        world: World | None = None,
        observers: Sequence[Observer] = (),
    ) -> None:
        super().__init__(config, task, runtime, world)
        self.folder, self.display = folder, display
        self.compiling = CompileClock(config.compile)
        self.log = MetricsLog(self, folder, display, observers)
        self.telemetry = Telemetry(self, self.log)
        self.checkpoints = Checkpoints(self, folder, self.telemetry)
        self.validation = Validation(self, self.log, self.checkpoints)

    def carry_out(self, stop: StopRequest) -> None:
        """Take all steps that are left, until a signal or non-finite steps end the run before."""
        self.display.begin(self.facts(), self.state.step, self.config.n_steps)
        self.model.train()
        self.roll_back()  # a run that an earlier session left diverged
        with self.compiling:
            while self.state.step < self.config.n_steps and self.divergence is None:
                with self.batches_ahead():
                    self.take_steps(stop)

    def take_steps(self, stop: StopRequest) -> None:
        """Take steps up to the end, or until the run is rolled back."""
        state, n_steps = self.state, self.config.n_steps
        while state.step < n_steps and self.divergence is None:
            with self.counting_seconds():
                self.unread.append(self.take_step())
            self.display.taken(self.step)
            # One message tells every process of a signal to any of them, and of the clock of the first one.
            stop_signal, is_time = divmod(
                self.world.largest(2 * (stop.signal_number or 0) + self.checkpoints.is_time), 2
            )
            if self.due or stop_signal or is_time:
                self.read_steps()
                if self.roll_back():
                    return
                self.observe(stop_signal, stop.saving, bool(is_time))
                if stop_signal and state.step < n_steps:
                    caveat = "" if self.checkpoints.saved_finite else f", but {self.where_good}"
                    message = f"interrupted after step {state.step}, saved{caveat}. {self.how_to_resume}"
                    raise RunInterrupted(message, stop_signal)

    def roll_back(self) -> bool:
        """Roll a run back that diverged, if that is asked for and possible, and say so."""
        line = None if self.divergence is None else self.checkpoints.roll_back()
        if line is not None:
            self.display.note(line)
        return line is not None

    @property
    def due(self) -> bool:
        """Whether the run is observed at this step, or the numbers of too many steps are unread."""
        observed = is_observed(self.config, self.runtime, self.step)
        return observed or not self.late or len(self.unread) >= MAX_UNREAD

    def read_steps(self) -> None:
        """Read the numbers of the unread steps and account for them in order, up to one at which the run is to stop."""
        steps, self.unread = self.unread, []
        with self.counting_seconds():  # it waits for the device
            rows = torch.stack([torch.stack([x.float() for x in step.numbers.values()]) for step in steps]).tolist()
        for step, row in zip(steps, rows, strict=True):
            self.account_for(step.rate, dict(zip(step.numbers, row, strict=True)))
            if self.divergence is not None:
                return  # the device has not moved the weights since

    def account_for(self, rate: float, numbers: Mapping[str, float]) -> None:
        """Count a step in the state and log it."""
        state = self.state
        state.step += 1
        state.tokens += self.config.tokens_per_step
        if numbers["finite"]:
            state.bad_steps = 0
        else:
            state.bad_steps += 1
            state.skipped_steps += 1
        self.log.report_step(rate, numbers)

    def observe(self, stop_signal: int | None, saving: Callable[[], None], is_time: bool) -> None:
        """Measure, validate and save where that is due. `saving` is called before a save that a signal asked for."""
        config, runtime, step = self.config, self.runtime, self.state.step
        at_end = step == config.n_steps
        if runtime.telemetry_every is not None and (at_end or step % runtime.telemetry_every == 0):
            self.telemetry.look()
        if at_end or step % config.eval_every == 0:
            self.validation.validate()
            self.telemetry.look_at_convergence()
            self.validation.keep_best()
        if stop_signal and self.divergence is None:
            saving()
        if at_end or stop_signal or is_time or self.divergence is not None or step % runtime.save_every == 0:
            self.checkpoints.save()

    @property
    def divergence(self) -> str | None:
        """Why the run stops before its end: too many non-finite steps in a row."""
        state, limit = self.state, self.config.max_bad_steps
        if state.bad_steps < limit:
            return None
        return (
            f"stopped at step {state.step}: loss or gradient was not finite {state.bad_steps} steps in a row "
            f"(max_bad_steps={limit})"
        )

    @property
    def why_stopped(self) -> str:
        """Why the run stopped, what is saved of it, and what to do."""
        n_rollbacks = len(self.state.rollbacks)
        after = f" after {n_rollbacks} rollback{'s' * (n_rollbacks > 1)}" if n_rollbacks else ""
        saved = "The weights from before are saved" if self.checkpoints.saved_finite else "The newest weights are saved"
        others = ", or --on-divergence rollback" if self.runtime.on_divergence == "stop" else ""
        return (
            f"{self.divergence}{after}. {saved} in its checkpoints, but {self.where_good}; "
            f"try a lower lr or precision bf16{others}"
        )

    @property
    def where_good(self) -> str:
        """What is wrong with the newest checkpoint, and which one is the last good one."""
        fault = "no step after them was finite" if self.checkpoints.saved_finite else "they are not finite"
        step = self.state.good_step
        return f"{fault}: " + (
            "no checkpoint is good, since the run diverged before it saved one"
            if step is None
            else f"the last good checkpoint is {checkpoint.checkpoint_of(self.folder.checkpoints, step).name}"
        )

    @contextmanager
    def batches_ahead(self) -> Iterator[None]:
        """While the block runs, a thread makes batches before their steps, on devices where that is worth a thread."""
        if self.device.type in WITHOUT_PREFETCHING:
            yield
            return
        with prefetched(self.batch_of, self.state.step, self.config.n_steps) as self.prefetched:
            yield
        self.prefetched = None

    @contextmanager
    def counting_seconds(self) -> Iterator[None]:
        """Count the seconds inside as training, and separately those in which torch compiles."""
        started, compiled = time.perf_counter(), self.compiling.seconds
        yield
        compiled = self.compiling.seconds - compiled
        self.state.train_seconds += time.perf_counter() - started - compiled
        self.state.compile_seconds += compiled
        if compiled:
            self.display.note(f"compiled in {compiled:.1f} s")

    def overdue(self) -> str:
        """End the display, and return the message that a step or an evaluation did not end after a signal."""
        self.display.end()
        saved = checkpoint.list_checkpoints(self.folder.checkpoints)
        what = f"the newest checkpoint is '{saved[-1].name}'" if saved else "there is no checkpoint yet"
        return (
            f"interrupted after step {self.step}: the next step, evaluation or save had not ended "
            f"{GRACE_SECONDS:.0f} s after the signal, and {what}. {self.how_to_resume}"
        )

    @property
    def how_to_resume(self) -> str:
        """The command that continues from the last checkpoint, on the device that was asked for."""
        device = "" if self.runtime.device == Runtime.device else f" --device {self.runtime.device}"
        code = code_option(self.config.model.own_code)
        return f"Resume: {self.world.program} train --resume {shlex.quote(str(self.folder.path))}{code}{device}"

    def close(self) -> None:
        self.display.end()
        self.log.close()

    def conclude(self) -> dict[str, Any]:
        """Write and return the summary: the last validation, the costs, and the step of the best weights."""
        state = self.state
        if self.divergence is not None:
            self.validation.latest = dict.fromkeys(self.task.valid_sets, OF_DIVERGED)
        if not self.validation.latest:  # an earlier session ended between the last checkpoint and the summary
            self.validation.evaluate()
        result = self.validation.decisive
        summary = self.facts() | {
            "metric": result.metric(self.task.metric),
            "measures": self.validation.measures(),
            "valid_loss": result.loss,
            "accuracy": result.accuracy,
            "context_gain": result.context_gain,
            "best_loss": state.best_loss,
            "best_step": state.best_step,
            "tokens_per_second": state.tokens / state.train_seconds,
            "peak_memory_bytes": self.memory.read(),
            "steps": state.step,
            "tokens": state.tokens,
            "skipped_steps": state.skipped_steps,
            "loss_spikes": state.loss_spikes,
            "wall_seconds": state.train_seconds,
            **({DIVERGED: self.why_stopped} if self.divergence is not None else {}),
            **({"rollbacks": len(state.rollbacks), "data_skipped": state.rollbacks} if state.rollbacks else {}),
            **({"compile_seconds": state.compile_seconds} if self.config.compile else {}),
        }
        records = self.folder.metrics()
        telemetry = {
            "logits": over_training(records),
            "timescales": summary_of_diagnostics(records),
            "trajectories": trajectories(records),
            "trajectories_by_head": trajectories_by_head(records),
        }
        summary |= {name: values for name, values in telemetry.items() if values}
        self.world.first_does(lambda: self.folder.write_summary(summary))
        return self.world.agreed(summary)

    def facts(self) -> dict[str, Any]:
        return {
            "label": self.config.label,
            "data": self.task.describe(),
            **({"bytes_per_token": self.task.bytes_per_token} if isinstance(self.task, TextTask) else {}),
            "n_parameters": sum(p.numel() for p in self.model.parameters()),
            "device": str(self.device),
            "threads": torch.get_num_threads(),
            **({"processes": self.world.size, "parallel": self.runtime.parallel} if self.world.size > 1 else {}),
        }
