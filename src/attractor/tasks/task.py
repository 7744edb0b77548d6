"""What a task promises: its config, its batches, and what it measures.

A task is a frozen config (`TaskConfig`, stored with the run, its fields are options of the command line) whose `build`
makes the `Task` that draws batches. Batches are numpy arrays; the training loop makes tensors of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np

from attractor.errors import unknown
from attractor.fields import PrintsChanges, stored_fields


class Batch(NamedTuple):
    """Inputs are int64 of shape B T. Targets are aligned with them: B T, where -100 is not scored; or one for each
    sequence, B, int64 for classes and float64 for numbers. `real` is False at padding; None means there is none."""

    inputs: np.ndarray
    targets: np.ndarray
    real: np.ndarray | None = None

    def split(self, n_parts: int) -> list["Batch"]:
        """Micro-batches: the rows, shared out evenly."""
        parts = [[None] * n_parts if x is None else np.array_split(x, n_parts) for x in self]
        return [Batch(*part) for part in zip(*parts, strict=True)]


class Task(Protocol):
    """Training data as a function of (seed, step), and validation data that are the same for every seed."""

    @property
    def name(self) -> str:
        """The task and its data, as a report calls them."""

    @property
    def demands(self) -> dict[str, Any]:
        """Fields that the model's config must have for these data, vocab_size among them (there, at least)."""

    @property
    def n_tokens(self) -> int | None:
        """Training tokens, so that a run knows its epochs; None where data are drawn without end."""

    @property
    def fingerprint(self) -> str:
        """Changes when the data change; a run's config carries it, so a resumed run notices."""

    @property
    def metric(self) -> str:
        """What validation reports first: 'perplexity', 'accuracy', or a name that `measure` gives."""

    @property
    def valid_sets(self) -> tuple[str, ...]:
        """Names of the validation sets; the first decides which weights are best."""

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """The batch of one step: a function of the seed and the step alone."""

    def valid_batches(self, batch_size: int, max_batches: int | None = None, part: str = "valid") -> Iterator[Batch]:
        """Those of one validation set, the same for every seed; None gives all of them."""

    def describe(self) -> str:
        """One line about the data, for the console and the report."""


@runtime_checkable
class Measured(Protocol):
    """A task for which perplexity or the accuracy of positions do not say it all."""

    def measure(self, targets: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
        """Named numbers of a whole validation set, from the likeliest class at every target (or the number given)."""


@dataclass(frozen=True)
class TaskConfig(PrintsChanges, ABC):
    """What determines a task's data, but for the seed. A subclass is named by `kind`."""

    kind: ClassVar[str]

    @property
    def seq_len(self) -> int | None:
        """The length of its sequences, where that is not the run's choice."""
        return None

    @abstractmethod
    def build(self, seq_len: int, seed: int) -> Task: ...

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind} | stored_fields(self)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Self:
        known = [f.name for f in fields(cls)]
        for key in stored:
            if key not in known:
                raise unknown(f"field of task '{cls.kind}'", key, known)
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()})
