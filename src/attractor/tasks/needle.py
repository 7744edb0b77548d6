"""Needles in text: lines with a key and a value stand in real text, and a later line asks for one value.

    text / @k1=v1 / @k2=v2 text of at least `least_gap` bytes / @k1= text     / begins a line; the label at "=" is v1

(1) keys: n distinct letters from a to z; values: n letters from A to P, each drawn evenly
(2) the lines of the n needles stand together, at a place that is drawn evenly
(3) the question stands at a place drawn evenly among those at least `least_gap` bytes behind the last needle
(4) labels: the value at the "=" of the question; -100, which is not scored, elsewhere

Lines replace the text below them, so all sequences have the same length. Guessing costs log 16 = 2.77 nats. The draws
of example i depend on (seed, i) alone, and its text is the i-th window of a run on the same corpus.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from attractor.corpus.tokenizer import ByteTokenizer
from attractor.errors import require
from attractor.tasks.epochs import philox_draws
from attractor.tasks.recall import ENDLESS, VALID, below
from attractor.tasks.task import NOT_SCORED, Batch, TaskConfig
from attractor.tasks.text import Text, TextTask

KEYS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", dtype=np.uint8).astype(np.int64)
VALUES = np.frombuffer(b"ABCDEFGHIJKLMNOP", dtype=np.uint8).astype(np.int64)
LINE = np.frombuffer(b"\n@k=v", dtype=np.uint8).astype(np.int64)
KEY, ANSWER, VALUE = 2, 3, 4  # places within a line; the value is asked for at ANSWER


@dataclass(frozen=True)
class Needle(TaskConfig):
    """Recall a value from a line in real text; measured by accuracy."""

    kind = "needle"

    corpus: str = "stdlib-code"
    n_needles: int = 1
    """lines with a key and a value; one of them is asked for"""
    least_gap: int = 0  # bytes between the last needle and the question, at least

    def __post_init__(self) -> None:
        require(1 <= self.n_needles <= len(KEYS), "n_needles", f"between 1 and {len(KEYS)}", self.n_needles)
        require(self.least_gap >= 0, "least_gap", "at least 0", self.least_gap, "count bytes")

    def build(self, seq_len: int, seed: int) -> "NeedleTask":
        return NeedleTask(self, Text(self.corpus).build(seq_len, seed), seed)


class NeedleTask:
    """Windows of a corpus of bytes with needles in them."""

    metric = "accuracy"
    valid_sets = ("valid",)

    def __init__(self, config: Needle, text: TextTask, seed: int) -> None:
        is_bytes = isinstance(text.corpus.tokenizer, ByteTokenizer)
        tokenizer = text.corpus.tokenizer.name
        require(is_bytes, "corpus", "of bytes for task 'needle'", tokenizer, "prepare it without a tokenizer")
        self.text, self.seed, self.n, self.least_gap = text, seed, config.n_needles, config.least_gap
        self.n_spare = text.seq_len - len(LINE) * self.n - self.least_gap - (ANSWER + 1)  # bytes of free room
        rule = f"at least {text.seq_len - self.n_spare} for n_needles={self.n} and least_gap={self.least_gap}"
        require(self.n_spare >= 0, "seq_len", rule, text.seq_len, "give longer sequences or a smaller least_gap")
        self.name = f"needle:{text.corpus.name}"
        self.demands = text.demands
        self.n_tokens = text.n_tokens
        self.fingerprint = hashlib.sha256(repr((text.fingerprint, self.n, self.least_gap)).encode()).hexdigest()

    def train_batch(self, step: int, batch_size: int) -> Batch:
        numbers = np.arange(step * batch_size, (step + 1) * batch_size)
        return self._with_needles(self.text.train_batch(step, batch_size), numbers, self.seed, ENDLESS)

    def valid_batches(self, batch_size: int, max_batches: int | None = None, part: str = "valid") -> Iterator[Batch]:
        first = 0
        for batch in self.text.valid_batches(batch_size, max_batches, part):
            numbers = np.arange(first, first + len(batch.inputs))
            yield self._with_needles(batch, numbers, 0, VALID)
            first += len(numbers)

    def describe(self) -> str:
        asked = f"a question at least {self.least_gap} bytes behind the last of {self.n} lines with values"
        return f"{self.text.describe()}; {asked}"

    def _with_needles(self, batch: Batch, numbers: np.ndarray, seed: int, stream: int) -> Batch:
        raw = philox_draws(seed, stream, numbers, len(KEYS) + self.n + 3)
        for_keys, for_values, for_places = np.split(raw, [len(KEYS), len(KEYS) + self.n], axis=1)
        keys = KEYS[np.argsort(for_keys, axis=1)[:, : self.n]]  # (1)
        values = VALUES[below(len(VALUES), for_values)]
        asked = below(self.n, for_places[:, :1])
        place = below(self.n_spare + 1, for_places[:, 1])  # (2)
        question = place + below(self.n_spare + 1 - place, for_places[:, 2])
        question += len(LINE) * self.n + self.least_gap  # (3)

        lines = np.tile(LINE, (len(numbers), self.n, 1))
        lines[:, :, KEY], lines[:, :, VALUE] = keys, values
        asks = np.tile(LINE[: ANSWER + 1], (len(numbers), 1))
        asks[:, [KEY]] = np.take_along_axis(keys, asked, 1)
        inputs = batch.inputs.copy()
        for written, start in ((lines.reshape(len(numbers), -1), place), (asks, question)):
            np.put_along_axis(inputs, start[:, None] + np.arange(written.shape[1]), written, 1)
        targets = np.full_like(batch.targets, NOT_SCORED)
        np.put_along_axis(targets, question[:, None] + ANSWER, np.take_along_axis(values, asked, 1), 1)  # (4)
        return Batch(inputs, targets, batch.real)
