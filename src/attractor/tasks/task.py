"""The interface of a task: its config, its batches, and its measures.

A task is a frozen config (`TaskConfig`) whose `build` makes the `Task` that draws batches. The config is stored with
the run, and its fields are options of the command line. Batches are numpy arrays, which the training loop converts to
tensors.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np

from attractor.errors import require_known
from attractor.fields import PrintsChanges, stored_fields
from attractor.files.code import DefinedByPath

NOT_SCORED = -100  # the same as in kernels/cross_entropy.py, which tasks do not need


class Batch(NamedTuple):
    """A batch of B sequences of T tokens; `inputs` is int64 of shape B T.

    `targets` has shape B T, where -100 is not scored, or shape B with a target per sequence: int64 for classes and
    float64 for numbers. `real` is False at padding; None means that there is no padding.
    """

    inputs: np.ndarray
    targets: np.ndarray
    real: np.ndarray | None = None

    def split(self, n_parts: int) -> list["Batch"]:
        """Divide the rows evenly into micro-batches."""
        parts = [[None] * n_parts if x is None else np.array_split(x, n_parts) for x in self]
        return [Batch(*part) for part in zip(*parts, strict=True)]


def numbered_batches(
    n_examples: int, batch_size: int, max_batches: int | None, spread: bool = False
) -> Iterator[np.ndarray]:
    """Yield the numbers of the examples in each batch of a validation, at most `max_batches` of them.

    The first examples are taken, or, with `spread`, examples at equal distances, since files may be sorted."""
    n_taken = n_examples if max_batches is None else min(n_examples, max_batches * batch_size)
    taken = np.arange(n_taken) * n_examples // max(n_taken, 1) if spread else np.arange(n_taken)
    return (taken[first : first + batch_size] for first in range(0, n_taken, batch_size))


class Task(Protocol):
    """Training data as a function of (seed, step), and validation data that are the same for every seed."""

    @property
    def name(self) -> str:
        """The name of the task and its data in reports."""

    @property
    def demands(self) -> dict[str, Any]:
        """Fields that the model's config must have for these data. vocab_size is among them, as a minimum."""

    @property
    def n_tokens(self) -> int | None:
        """The number of training tokens, from which a run counts epochs. None where data are drawn without end."""

    @property
    def fingerprint(self) -> str:
        """A hash of the data. A run's config stores it, so a resumed run notices changed data."""

    @property
    def metric(self) -> str:
        """The metric that validation reports first: 'perplexity', 'accuracy', or a key of `measure`'s result."""

    @property
    def valid_sets(self) -> tuple[str, ...]:
        """The names of the validation sets. The first set decides which weights are best."""

    def train_batch(self, step: int, batch_size: int) -> Batch:
        """Return the batch of a step, which depends on the seed and the step alone."""

    def valid_batches(self, batch_size: int, max_batches: int | None = None, part: str = "valid") -> Iterator[Batch]:
        """Return batches of a validation set, the same for every seed. None gives all of them."""

    def describe(self) -> str:
        """Describe the data in one line, for the console and the report."""


@runtime_checkable
class Measured(Protocol):
    """A task with metrics of its own, beside perplexity and the accuracy of positions."""

    def measure(self, targets: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
        """Return metrics by name over a whole validation set.

        A prediction is the likeliest class at a target, or the model's number where the target is a number.
        """


@dataclass(frozen=True)
class TaskConfig(PrintsChanges, DefinedByPath, ABC):
    """All that determines a task's data but the seed. `kind` names a subclass."""

    kind: ClassVar[str]
    suited_positions: ClassVar[tuple[str, ...]] = ()  # a model with others gets the first of these; () accepts all

    @property
    def seq_len(self) -> int | None:
        """The length of the task's sequences, or None where the run chooses it."""
        return None

    @abstractmethod
    def build(self, seq_len: int, seed: int) -> Task: ...

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind} | stored_fields(self)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Self:
        known = [f.name for f in fields(cls)]
        for key in stored:
            require_known(f"field of task '{cls.kind}'", key, known)
        return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()})
