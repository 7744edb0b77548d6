"""The observers of a run: they log steps, look at the probe, validate, and save checkpoints. None changes a step."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from attractor.models.diagnostics import Diagnostics, diagnostics_of
from attractor.runs.run_folder import RunFolder
from attractor.train import checkpoint
from attractor.train.display import Display
from attractor.train.distributed import unsharded, whole
from attractor.train.evaluate import Evaluation
from attractor.train.hardware import arithmetic, model_flops_utilisation
from attractor.train.telemetry import TensorBoard, is_spike, of_same_segment, parameter_norm, probe_tokens
from attractor.train.trainer import Trainer

if TYPE_CHECKING:
    from attractor.control.probe import LogitProbe


Observer = Callable[[dict[str, Any]], object]  # takes a record of the metrics, as it stands in metrics.jsonl


class MetricsLog:
    """Appends records to the metrics of a run, and gives them to observers and, on request, to TensorBoard.

    The first process alone writes.
    """

    def __init__(
        self, trainer: Trainer, folder: RunFolder, display: Display, observers: Sequence[Observer] = ()
    ) -> None:
        self.trainer, self.folder, self.display, self.observers = trainer, folder, display, observers
        self.board: TensorBoard | None = None

    def record(self, numbers: Mapping[str, Any], ahead: int = 0) -> dict[str, Any]:
        """Record numbers of the step at which the run stands, or of one `ahead` of it, and return the record."""
        state = self.trainer.state
        record = {"step": state.step + ahead, "tokens": state.tokens, **numbers}
        state.recorded_step = state.step if not ahead else state.recorded_step
        if self.trainer.world.is_first:
            self.folder.append(record)
            for observer in self.observers:
                observer(dict(record))
            if self.trainer.runtime.tensorboard:
                self.board = self.board or TensorBoard(self.folder.path, state.step - 1)
                self.board.add(record)
        return record

    def report_step(self, rate: float, numbers: Mapping[str, float]) -> None:
        """Note a loss spike. Log every `log_every` steps, the last step, and each step that is skipped or a spike."""
        trainer, state = self.trainer, self.trainer.state
        special = not numbers["finite"] or self._is_spike(numbers["loss"])
        if state.step % trainer.runtime.log_every and not special and state.step < trainer.config.n_steps:
            return
        speed = state.tokens / state.train_seconds
        record = self.record(
            {
                "loss": numbers["loss"],
                "lr": rate,
                "grad_norm": numbers["grad_norm"],
                **({"penalty": numbers["penalty"]} if "penalty" in numbers else {}),
                "param_norm": numbers["param_norm"]
                if "param_norm" in numbers
                else float(whole(parameter_norm(trainer.model))),
                "tokens_per_second": speed,
                "skipped_steps": state.skipped_steps,
                "loss_spikes": len(state.loss_spikes),
            }
        )
        mfu = model_flops_utilisation(speed * trainer.flops_per_token / trainer.world.size, trainer.device)
        self.display.step(record | {"memory": trainer.memory.read(), "mfu": mfu})

    def _is_spike(self, loss: float) -> bool:
        state, n_segments = self.trainer.state, self.trainer.config.model.steps_of_batch
        before = of_same_segment(state.recent_losses, n_segments)
        spike = is_spike(loss, before)
        if spike:
            state.loss_spikes.append(state.step)
            self.display.note(f"loss spike at step {state.step}: {loss:.3f}, where {median(before):.3f} was usual")
        if math.isfinite(loss):
            state.note_loss(loss, n_segments)
        return spike

    def close(self) -> None:
        if self.board is not None:
            self.board.close()
            self.board = None  # a run that was rolled back opens it again, at its step


class Telemetry:
    """Measures the model on the probe: attention's logits, and the diagnostics of the model's family."""

    def __init__(self, trainer: Trainer, log: MetricsLog) -> None:
        self.trainer, self.log = trainer, log
        self.probe: LogitProbe | None = None
        self.stored_probe: dict[str, Any] = {}  # what the probe of an earlier session saw
        self.warned = False  # that the equilibrium is not reached

    @cached_property
    def diagnostics(self) -> Diagnostics | None:
        return diagnostics_of(self.trainer.model, self.run_probe)

    @cached_property
    def _tokens(self) -> Any:
        return probe_tokens(self.trainer.task).to(self.trainer.device)

    def run_probe(self) -> None:
        """Run the model on the tokens of the probe."""
        with self.trainer.autocast():
            self.trainer.model.hidden(self._tokens)

    def look(self) -> None:
        self.look_at_logits()
        if self.diagnostics is not None:
            with unsharded(self.trainer.model):
                diagnostics = self.diagnostics.look()
            self.log.record(diagnostics)

    def look_at_logits(self) -> None:
        """Record the logits of the probe, and how they changed since the last look."""
        if self.probe is None:
            from attractor.control.probe import LogitProbe

            self.probe = LogitProbe(self.trainer.model, self.run_probe)
            self.probe.load_state_dict(self.stored_probe)
        if not self.probe.views:  # the control of a study scores nothing
            return
        interventions = self.trainer.interventions
        with unsharded(self.trainer.model):
            logits = self.probe.look(interventions.rates)
        clipped = {} if interventions.clip is None else {"clips": interventions.clip.n_clipped}
        self.log.record({**logits, **clipped})

    def look_at_convergence(self) -> None:
        """Record whether a FastSlow model reaches the equilibrium that it is to compute, and warn once if not."""
        if self.trainer.runtime.telemetry_every is None or self.diagnostics is None:
            return
        with unsharded(self.trainer.model):
            convergence = self.diagnostics.convergence()
        if convergence is None:
            return
        self.log.record(convergence.record)
        if convergence.warning is not None and not self.warned:
            self.warned = True
            self.log.display.note(f"step {self.trainer.state.step}: {convergence.warning}")

    def state_dict(self) -> dict[str, Any]:
        return self.stored_probe if self.probe is None else self.probe.state_dict()


class Checkpoints:
    """Saves the trainer, and continues from what is saved."""

    def __init__(self, trainer: Trainer, folder: RunFolder, telemetry: Telemetry) -> None:
        self.trainer, self.folder, self.telemetry = trainer, folder, telemetry
        self.saved_step: int | None = None
        self.saved_finite = True  # whether all numbers of the last checkpoint were finite
        self.saved_at = time.monotonic()

    @property
    def is_time(self) -> bool:
        """Whether the last checkpoint is older than the runtime allows, by the clock of the first process."""
        minutes = self.trainer.runtime.save_every_minutes
        is_old = minutes is not None and time.monotonic() - self.saved_at >= 60 * minutes
        return is_old and self.trainer.world.is_first

    def save(self) -> None:
        trainer, state = self.trainer, self.trainer.state
        if self.saved_step == state.step:  # it was saved as the best so far
            return
        self.saved_finite = trainer.is_finite()
        if self.saved_finite and state.is_usual and self._may_be_gone_back_to(state.step):
            state.good_step = state.step
        weights, tensors = trainer.tensors()
        tensors["probe"] = self.telemetry.state_dict()
        trainer.world.first_does(lambda: self._write(weights, tensors))
        self.saved_step, self.saved_at = state.step, time.monotonic()

    def _may_be_gone_back_to(self, step: int) -> bool:
        """Whether a checkpoint may become the last good one.

        A run that is rolled back goes to a step that `save_every` names, never to one that a signal or the time chose.
        So what it computes does not depend on when it was interrupted.
        """
        runtime = self.trainer.runtime
        return runtime.on_divergence == "stop" or step % runtime.save_every == 0

    def _write(self, weights: dict[str, Any], tensors: dict[str, Any]) -> None:
        """Write a checkpoint, mark it if it is the best, and remove the old ones."""
        state = self.trainer.state
        checkpoint.save_checkpoint(self.folder, weights, tensors, state)
        if state.best_step == state.step:
            checkpoint.mark_best(self.folder.checkpoints, state)
        checkpoint.drop_old(self.folder.checkpoints, self.trainer.runtime.keep, state)

    def restore(self) -> None:
        """Continue from the newest intact checkpoint, if there is one."""
        trainer, note = self.trainer, self.telemetry.log.display.note
        path = trainer.world.first_does(
            lambda: checkpoint.newest_intact(self.folder.checkpoints, note, set_damage_aside=True)
        )
        here = arithmetic(trainer.device, trainer.world.size)
        if path is not None:
            self._load(path)
            if trainer.state.computed_on not in (None, here):
                note(
                    f"the steps so far were computed on {trainer.state.computed_on}, and now it is {here}: sums are "
                    "rounded differently, so the result may differ from that of an uninterrupted run"
                )
        trainer.state.computed_on = here
        trainer.world.first_does(self._drop_later_records)
        if path is None and trainer.runtime.on_divergence == "rollback":
            self.save()  # the start, to which a run that diverges early can go back

    def _load(self, path: Path) -> None:
        with checkpoint.foreign_refused(path):
            weights, tensors, self.trainer.state = checkpoint.read_checkpoint(path, self.trainer.device)
            self.trainer.load_tensors(weights, tensors)
        self.telemetry.probe, self.telemetry.stored_probe = None, tensors.get("probe", {})
        self.saved_step = None

    def roll_back(self) -> str | None:
        """Go back to the last good checkpoint of a run that diverged, and skip the data of the steps since then.

        Return a line about it, or None where the run is to stop. The state holds each rollback, and the data of a step
        are a function of the step and of these alone. A process that is killed repeats the steps and the rollback.
        """
        trainer, diverged, runtime = self.trainer, self.trainer.state, self.trainer.runtime
        good, number = diverged.good_step, len(diverged.rollbacks) + 1
        if runtime.on_divergence == "stop" or good is None or number > runtime.max_rollbacks:
            return None
        path = checkpoint.checkpoint_of(self.folder.checkpoints, good)
        trainer.world.first_does(lambda: checkpoint.verify_or_refuse(path))
        self._load(path)
        first = good + diverged.n_skipped_batches
        # A batch that stays for several steps is skipped as a whole.
        of_batch = trainer.segments.n_segments
        end = first + -(-(diverged.step - good) // of_batch) * of_batch
        trainer.state.rollbacks = [*diverged.rollbacks, [good, first, end]]
        trainer.world.first_does(self._drop_later_records)
        trainer.world.first_does(lambda: checkpoint.drop_old(self.folder.checkpoints, runtime.keep, trainer.state))
        self.telemetry.log.close()
        # The record is one of the next step, so that a process which repeats the rollback records it once.
        self.telemetry.log.record({"rollback": number, "diverged_at": diverged.step, "batches_skipped": end - first}, 1)
        return (
            f"rollback {number} of {runtime.max_rollbacks}: diverged at step {diverged.step}, back to the good "
            f"checkpoint of step {good}, skipping the data of the {end - first} steps since then"
        )

    def _drop_later_records(self) -> None:
        """Drop what an earlier session recorded, and marked as best, after the step from which this one continues."""
        state = self.trainer.state
        checkpoint.mark_best(self.folder.checkpoints, state)
        self.folder.keep_until(state.step)
        last = max((record["step"] for record in self.folder.metrics()), default=0)
        expected = state.step - self.trainer.runtime.log_every + 1
        if last < (expected if state.recorded_step is None else state.recorded_step):
            self.telemetry.log.display.note(
                f"metrics end at step {last:,}, before the checkpoint of step {state.step:,} from which this run "
                "continues: lines between the two were lost"
            )


class Validation:
    """Evaluates the model on every validation set of its task. The first set decides which weights are the best."""

    def __init__(self, trainer: Trainer, log: MetricsLog, checkpoints: Checkpoints) -> None:
        self.trainer, self.log, self.checkpoints = trainer, log, checkpoints
        self.latest: dict[str, Evaluation] = {}

    def evaluate(self) -> Evaluation:
        """Evaluate on all sets, in every process, and return the evaluation that decides."""
        trainer = self.trainer
        self.latest = trainer.world.agreed({part: trainer.evaluation(part) for part in trainer.task.valid_sets})
        return self.decisive

    @property
    def decisive(self) -> Evaluation:
        return next(iter(self.latest.values()))

    def validate(self) -> None:
        result = self.evaluate()
        numbers = {"valid_loss": result.loss, "context_gain": result.context_gain, **self.measures()}
        self.log.display.evaluated(self.log.record(numbers))

    def keep_best(self) -> None:
        """Save a checkpoint where the loss is the best so far."""
        state, loss = self.trainer.state, self.decisive.loss
        if math.isfinite(loss) and (state.best_loss is None or loss < state.best_loss):
            state.best_loss, state.best_step = loss, state.step
            self.checkpoints.save()

    def measures(self) -> dict[str, Any]:
        """Return the latest results in the task's own terms; names of further validation sets begin with the set."""
        metric, measures = self.trainer.task.metric, dict[str, Any]()
        for number, (part, result) in enumerate(self.latest.items()):
            values: dict[str, Any] = {metric: result.metric(metric)["value"]} | result.measures
            if number:
                values |= {"loss": result.loss}
            measures |= {f"{part}_{name}" if number else name: value for name, value in values.items()}
        return measures
