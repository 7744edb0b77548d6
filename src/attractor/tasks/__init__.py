"""What a model is trained on. A task gives batches as numpy arrays; the training loop makes tensors of them.

A new task is one file with a class that keeps the `Task` contract, and one line in `TASKS`.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from attractor.errors import unknown
from attractor.tasks.order import Batch
from attractor.tasks.text import TextTask


class Task(Protocol):
    """Inputs and targets are int64 of shape B T; a target of -100 is not scored."""

    @property
    def name(self) -> str:
        """The task and its data, as a report calls them."""

    @property
    def vocab_size(self) -> int:
        """The number of rows that a model's embedding needs."""

    @property
    def n_tokens(self) -> int | None:
        """Training tokens, so that a run knows its epochs; None where data are drawn without end."""

    @property
    def fingerprint(self) -> str:
        """Changes when the data change; a run's config carries it, so a resumed run notices."""

    @property
    def metric(self) -> str:
        """What validation reports: 'perplexity' or 'accuracy'."""

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """The batch of one step: a function of the seed and the step alone."""

    def valid_batches(self, batch_size: int, max_batches: int | None = None) -> Iterator[Batch]:
        """The same batches for every seed; None gives all of them."""

    def describe(self) -> str:
        """One line about the data, for the console and the report."""


TASKS: dict[str, Callable[..., Task]] = {
    "text": TextTask,
}


def build_task(name: str, corpus: str, seq_len: int, seed: int) -> Task:
    """The task of that name; `corpus` is what the task reads its data from."""
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name](corpus=corpus, seq_len=seq_len, seed=seed)
