"""Multi-query associative recall (MQAR): a sequence lists pairs of a key and a value, then asks for each key again.

    k1 v1 k2 v2 ... kn vn  f f k2 f f f k1 f ...      the label at the position of a queried key is its value

With n pairs in T tokens of a vocabulary V (symbols 0 .. V - 1):

(1) keys: n distinct symbols below V // 2, in an order drawn evenly; values: n distinct symbols from V // 2 on, likewise
(2) queries: every key once, at a place after the pairs. With gap "uniform", all T - 2n places are equally likely. With
    gap "power", the places are those at 2g, g = 0, 1, .. behind the pairs, drawn without replacement with weights
    (g + 1)^(a - 1), so that most queries come soon
(3) fillers everywhere else: drawn evenly from all symbols but the n keys of that sequence, so that a filler is never
    taken for a query; a filler may be any value, also a value of the sequence
(4) labels: the value, `delay` tokens behind its key's query; -100, which is not scored, elsewhere
(5) distance: no query stands on the first `least_gap` tokens behind the pairs, so that an answer takes a longer memory

`gap="power"` with a = 0.01 is the task of Arora et al., "Zoology: Measuring and Improving Recall in Efficient Language
Models", arXiv 2312.04927, where fillers may be keys, and symbol 0 is no key. Example i depends on (seed, i) alone.
"""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attractor.errors import require, require_known
from attractor.fields import later
from attractor.tasks.epochs import Epochs, philox_draws, philox_key
from attractor.tasks.task import NOT_SCORED, Batch, TaskConfig, numbered_batches

N_VALID = 3000  # examples for validation, as in the literature
ENDLESS, VALID, FIXED = range(3)  # streams of random numbers that share nothing
RAW_AT_ONCE = 2**17  # random numbers drawn at once: a megabyte, which stays in a processor's cache


class Level(NamedTuple):
    """The size and shape of a level's sequences."""

    length: int
    n_pairs: int
    symbols: int = 64
    gap: str = "uniform"
    n_examples: int = 0  # size of the training set; 0: drawn without end


LEVELS = {
    "easy": Level(64, 4),
    "medium": Level(128, 8),
    "hard": Level(256, 16),
    "zoology-64": Level(64, 4, 8192, "power", 100_000),
    "zoology-128": Level(128, 8, 8192, "power", 100_000),
    "zoology-256": Level(256, 16, 8192, "power", 100_000),
    "zoology-512": Level(512, 64, 8192, "power", 100_000),
}
PLACES_APART = {"uniform": 1, "power": 2}


@dataclass(frozen=True)
class Recall(TaskConfig):
    """Recall the values of keys seen before; measured by accuracy."""

    kind = "mqar"

    level: str = "easy"
    """easy, medium, hard, or zoology-64 to zoology-512"""
    length: int | None = None
    """tokens per sequence; by default the level's"""
    n_pairs: int | None = None
    """pairs of a key and a value; by default the level's"""
    symbols: int | None = None
    """size of the vocabulary: keys are its first half, values its second; by default the level's"""
    gap: str | None = None
    """places of the queries: uniform or power; by default the level's"""
    power_a: float = 0.01
    """exponent of the power gap; smaller is earlier"""
    n_examples: int | None = None
    """training examples; 0 draws without end; by default the level's"""
    least_gap: int = later(0)
    """fewest tokens between pairs or needles and a question"""
    delay: int = later(0)
    """tokens from a queried key to its answer"""

    def __post_init__(self) -> None:
        require_known("level of mqar", self.level, LEVELS)
        n_pairs, symbols, n_examples = self.resolved.n_pairs, self.resolved.symbols, self.resolved.n_examples
        _check_room(symbols, n_pairs, "symbols")
        require(n_examples >= 0, "n_examples", "at least 0", n_examples, "0 draws examples without end")
        self.source(ENDLESS, 0)

    @property
    def resolved(self) -> Level:
        """The level, with those of its values replaced that this config sets itself."""
        fields = {name: getattr(self, name) for name in Level._fields}
        return LEVELS[self.level]._replace(**{name: value for name, value in fields.items() if value is not None})

    @property
    def seq_len(self) -> int:
        return self.resolved.length

    def source(self, stream: int, seed: int) -> "RecallExamples":
        length, n_pairs, symbols, gap, _ = self.resolved
        return RecallExamples(length, n_pairs, symbols, seed, gap, self.power_a, stream, self.least_gap, self.delay)

    def build(self, seq_len: int, seed: int) -> "RecallTask":
        rule = f"{self.seq_len}, the length of this mqar"
        require(seq_len == self.seq_len, "seq_len", rule, seq_len, "change length")
        return RecallTask(self, seed)


class RecallTask:
    """Training sequences, drawn without end or from a fixed set that seeds visit in different orders."""

    metric = "accuracy"
    valid_sets = ("valid",)

    def __init__(self, config: Recall, seed: int) -> None:
        self.level = level = config.resolved
        known = level == LEVELS[config.level]
        self.name = f"mqar:{config.level if known else f'{level.length}x{level.n_pairs}x{level.symbols}'}"
        self.distance = (config.least_gap, config.delay)
        self.demands = {"vocab_size": level.symbols, "n_classes": None}
        self.n_tokens = level.n_examples * level.length or None
        self._epochs = Epochs(level.n_examples, seed) if level.n_examples else None
        self._train = config.source(FIXED, 0) if level.n_examples else config.source(ENDLESS, seed)
        self._valid = config.source(VALID, 0)
        settings = (level, config.power_a, *(self.distance if any(self.distance) else ()))
        digest = hashlib.sha256(repr(settings).encode())
        for array in self._valid.examples(np.arange(8)):
            digest.update(array.astype("<i8").tobytes())
        self.fingerprint = digest.hexdigest()

    def train_batch(self, step: int, batch_size: int) -> Batch:
        first = step * batch_size
        samples = np.arange(first, first + batch_size)
        chosen = samples if self._epochs is None else self._epochs.examples(first, batch_size)
        return Batch(*self._train.examples(chosen))

    def valid_batches(self, batch_size: int, max_batches: int | None = None, part: str = "valid") -> Iterator[Batch]:
        return (Batch(*self._valid.examples(chosen)) for chosen in numbered_batches(N_VALID, batch_size, max_batches))

    def measure(self, targets: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
        """Return `accuracy`, the share of right answers, and `sequence_accuracy`, that of sequences without errors."""
        scored = targets != NOT_SCORED
        right = predictions == targets
        return {
            "accuracy": float(right[scored].mean()),
            "sequence_accuracy": float((right | ~scored).all(axis=1)[scored.any(axis=1)].mean()),
        }

    def describe(self) -> str:
        length, n_pairs, symbols, gap, n_examples = self.level
        least_gap, delay = self.distance
        distance = f" from {least_gap} tokens behind the pairs on, answers {delay} later" if any(self.distance) else ""
        return (
            f"{self.name}: {n_pairs} pairs of {symbols // 2:,} keys and {symbols - symbols // 2:,} values in {length} "
            f"tokens, {gap} gaps{distance}; "
            f"{f'{n_examples:,} training sequences' if n_examples else 'drawn without end'}, {N_VALID:,} for validation"
        )


def mqar(
    n_examples: int,
    length: int,
    n_pairs: int,
    vocab_size: int,
    seed: int,
    *,
    gap: str = "uniform",
    power_a: float = 0.01,
    least_gap: int = 0,
    delay: int = 0,
    first: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and labels of examples first, first + 1, .. of a seed, int64 of shape n_examples x length.

    `Recall` trains on the same examples where it draws without end.
    """
    source = RecallExamples(length, n_pairs, vocab_size, seed, gap, power_a, least_gap=least_gap, delay=delay)
    tokens, labels = (np.empty((n_examples, length), dtype=np.int64) for _ in range(2))
    rows = max(1, RAW_AT_ONCE // source.n_raw)
    for start in range(0, n_examples, rows):
        part = slice(start, min(start + rows, n_examples))
        tokens[part], labels[part] = source.examples(first + np.arange(part.start, part.stop))
    return tokens, labels


@dataclass(frozen=True)
class RecallExamples:
    """Examples that are computed from their number and these settings."""

    length: int
    n_pairs: int
    vocab_size: int
    seed: int
    gap: str = "uniform"
    power_a: float = 0.01
    stream: int = ENDLESS
    least_gap: int = 0
    delay: int = 0

    def __post_init__(self) -> None:
        require_known("gap", self.gap, PLACES_APART)
        n, length = self.n_pairs, self.length
        require(n >= 1, "n_pairs", "at least 1", n, "give a positive number")
        for name in ("least_gap", "delay"):
            require(getattr(self, name) >= 0, name, "at least 0", getattr(self, name), "count tokens")
        least, distance = (2 + PLACES_APART[self.gap]) * n, self.least_gap + self.delay
        rule = f"at least {least + distance} for {n} pairs and gap '{self.gap}'"
        rule += f" at this least_gap and delay of {distance} together" if distance else ""
        require(self.n_places >= n, "length", rule, length, "give longer sequences or fewer pairs")
        _check_room(self.vocab_size, n, "vocab_size")
        require(math.isfinite(self.power_a), "power_a", "a finite number", self.power_a, "the literature has 0.01")
        philox_key(self.seed, self.stream)

    @property
    def n_places(self) -> int:
        """The number of places where a query may stand."""
        return (self.length - 2 * self.n_pairs - self.least_gap - self.delay) // PLACES_APART[self.gap]

    @property
    def n_raw(self) -> int:
        """The number of random numbers that an example takes, for its keys, values, places and fillers."""
        return 2 * self.n_pairs + self.n_places + self.length - 2 * self.n_pairs

    def examples(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return tokens and labels of the examples with these numbers, int64 of shape B T."""
        n, n_keys = self.n_pairs, self.vocab_size // 2
        raw = philox_draws(self.seed, self.stream, numbers, self.n_raw)
        for_keys, for_values, for_places, for_fillers = np.split(raw, np.cumsum([n, n, self.n_places]), axis=1)
        # Keys are the first half of the symbols, so ranks among the remaining keys are ranks among remaining symbols.
        ranks = np.hstack([below(n_keys - np.arange(n), for_keys), below(self.vocab_size - n, for_fillers)])
        keys, fillers = np.split(_unrank(ranks, n), [n], axis=1)  # (1), (3)
        values = n_keys + _unrank(below(self.vocab_size - n_keys - np.arange(n), for_values), n)  # (1)
        places = 2 * n + self.least_gap + PLACES_APART[self.gap] * self._first_places(for_places)  # (2)

        tokens = np.empty((len(numbers), self.length), dtype=np.int64)
        tokens[:, 0 : 2 * n : 2], tokens[:, 1 : 2 * n : 2], tokens[:, 2 * n :] = keys, values, fillers
        np.put_along_axis(tokens, places, keys, axis=1)
        labels = np.full_like(tokens, NOT_SCORED)
        np.put_along_axis(labels, places + self.delay, values, axis=1)  # (4)
        return tokens, labels

    def _first_places(self, raw: np.ndarray) -> np.ndarray:
        """Draw n_pairs places without replacement: the first arrivals of a race, in order.

        Arrival times are exponential, with the weights as rates (in logarithms, for large a). So the next to arrive is
        drawn by weight from the remaining places (Efraimidis and Spirakis 2006). Equal weights need no such times.
        """
        if self.gap == "uniform":
            return np.argsort(raw, axis=1)[:, : self.n_pairs]
        evenly = ((raw >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52  # never 0, never 1
        log_weights = (self.power_a - 1) * np.log(1.0 + np.arange(self.n_places))
        return np.argsort(np.log(-np.log(evenly)) - log_weights, axis=1)[:, : self.n_pairs]


def _check_room(n_symbols: int, n_pairs: int, field: str) -> None:
    rule = f"at least {2 * n_pairs} for {n_pairs} pairs"
    require(n_symbols >= 2 * n_pairs, field, rule, n_symbols, "give more symbols or fewer pairs")


def below(bound: int | np.ndarray, raw: np.ndarray) -> np.ndarray:
    """Convert raw draws to integers from 0 to bound - 1, uniform up to bound / 2^32."""
    word = np.uint64(32)
    return (((raw >> word) * np.asarray(bound, dtype=np.uint64)) >> word).astype(np.int64)


def _unrank(ranks: np.ndarray, n_taken: int) -> np.ndarray:
    """Convert ranks among the remaining symbols to symbols, in place: draws without replacement.

    Column j < n_taken is a rank among the symbols that columns 0 .. j - 1 left. Every later column is a rank among the
    symbols that all n_taken columns left. Taking symbol x lowered the ranks from x on by one, which is undone from the
    last column to the first.
    """
    for taken in reversed(range(n_taken)):
        later = ranks[:, taken + 1 :]
        later += later >= ranks[:, taken, None]
    return ranks
