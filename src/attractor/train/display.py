"""How a run reports its progress: the interface `Display`, which reports nothing, and the console of one run."""

import math
from typing import TYPE_CHECKING, Any

from attractor.console import in_bytes, in_time, now_and_then, print_line, run_progress, with_prefix

if TYPE_CHECKING:  # the training loop takes no time to load rich
    from rich.console import Console
    from rich.progress import Progress, TaskID


class Display:
    def start(self) -> None:
        """This process has taken over the run, and may remove messages that an earlier process left."""

    def begin(self, facts: dict[str, Any], first_step: int, n_steps: int) -> None:
        """The run is about to start, or to continue from `first_step`."""

    def step(self, record: dict[str, Any]) -> None:
        """A training step was taken; the record may hold loss, lr, grad_norm, tokens_per_second, memory, mfu."""

    def taken(self, n_steps: int) -> None:
        """`n_steps` steps have been taken; unlike `step`, this is called at each of them."""

    def evaluated(self, record: dict[str, Any]) -> None:
        """A validation was made."""

    def note(self, text: str) -> None:
        """Something a person should know."""

    def end(self) -> None:
        """The run has ended, or stopped."""


def in_numbers(record: dict[str, Any]) -> str:
    """Return the numbers of a record that are known, in one line. Before the first record nothing is known."""
    parts = [f"loss {shown(record['loss'])}"] if "loss" in record else []
    if record.get("tokens_per_second"):
        parts.append(f"{with_prefix(record['tokens_per_second'])} tok/s")
    if "memory" in record:
        parts.append(in_bytes(record["memory"]))
        parts.append("MFU n/a" if record["mfu"] is None else f"MFU {record['mfu']:.1%}")
    if record.get("skipped_steps"):
        parts.append(f"{record['skipped_steps']} skipped")
    if record.get("loss_spikes"):
        parts.append(f"{record['loss_spikes']} spikes" if record["loss_spikes"] > 1 else "1 spike")
    return "  ".join(parts)


def shown(loss: float | None) -> str:
    """Return the loss with three digits. A run's file holds null where a loss was not finite."""
    return "not finite" if loss is None or not math.isfinite(loss) else f"{loss:.3f}"


def time_left(progress: "Progress", bar: "TaskID | None") -> str:
    """Return the time left for a line of a log, or nothing while it is unknown; a live bar shows it anyway."""
    remaining = next((task.time_remaining for task in progress.tasks if task.id == bar), None)
    return f"  {in_time(remaining)} left" if remaining else ""


class LiveConsole(Display):
    """Shows a live progress bar; in a pipe or a log file, a line for every validation, and now and then for a step."""

    def __init__(self, console: "Console") -> None:
        self.console = console
        self.progress = run_progress(self.console)
        self.bar: TaskID | None = None
        self.latest: dict[str, Any] = {}
        self.due = now_and_then()

    def begin(self, facts: dict[str, Any], first_step: int, n_steps: int) -> None:
        threads = f"{facts['threads']} thread{'s' * (facts['threads'] > 1)}"
        self.note(f"{facts['label']}: {facts['n_parameters']:,} parameters on {facts['device']}, {threads}")
        self.note(facts["data"])
        if first_step:
            self.note(f"continuing after step {first_step}")
        if self.console.is_terminal:
            self.progress.start()
        self.bar = self.progress.add_task(facts["label"], total=n_steps, completed=first_step, numbers="")

    def step(self, record: dict[str, Any]) -> None:
        assert self.bar is not None
        if not self.latest and record.get("tokens_per_second"):
            self._say_time_ahead(self.bar, record)
        self.latest = record
        self.progress.update(self.bar, completed=record["step"], numbers=in_numbers(record))

    def taken(self, n_steps: int) -> None:
        if not self.console.is_terminal and self.due():
            self.note(f"step {n_steps:>6}  {in_numbers(self.latest)}{time_left(self.progress, self.bar)}".rstrip())

    def evaluated(self, record: dict[str, Any]) -> None:
        measured = {k: v for k, v in record.items() if k not in ("step", "tokens") and v is not None}
        numbers = "  ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in measured.items())
        ahead = time_left(self.progress, self.bar)
        left = "" if self.console.is_terminal else f"  {in_numbers(self.latest)}{ahead}"
        self.note(f"step {record['step']:>6}  {numbers}{left}")

    def _say_time_ahead(self, bar: "TaskID", record: dict[str, Any]) -> None:
        """Say once how long all further steps take at the speed of the first ones."""
        n_steps = next(task.total or 0 for task in self.progress.tasks if task.id == bar)
        seconds = (n_steps / record["step"] - 1) * record["tokens"] / record["tokens_per_second"]
        if seconds > 0:
            self.note(f"about {in_time(seconds)} of steps ahead, at the speed of the first ones")

    def note(self, text: str) -> None:
        print_line(self.console, text)

    def end(self) -> None:
        self.progress.stop()
