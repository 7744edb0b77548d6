"""A GLUE task as batches: a sentence, or a pair of sentences, becomes a sequence of tokens with a label.

sentence padding...                       `real` is False at padding, which is always on the right
first <|endoftext|> second padding...     a pair that is too long loses the end of its longer text first
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from attractor.corpus.data_paths import locate
from attractor.corpus.tokenizer import Tokenizer, load_tokenizer
from attractor.errors import require, unknown
from attractor.tasks.epochs import Epochs
from attractor.tasks.glue.metrics import METRICS
from attractor.tasks.glue.reading import HUB, read_examples
from attractor.tasks.glue.table import TABLE
from attractor.tasks.task import Batch, TaskConfig, numbered_batches

WIDTH_STEP = 8  # matrix kernels are fastest at multiples of this width


@dataclass(frozen=True)
class Glue(TaskConfig):
    """Classify sentences and pairs of them, nine data sets."""

    kind = "glue"

    glue_task: str = "sst2"
    """cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte or wnli"""
    glue_data: str = HUB
    """huggingface, or a folder of tsv files or saved data sets"""
    glue_tokenizer: str = "bytes"
    """the pretrained model's: a name or a tokenizer.json"""

    def __post_init__(self) -> None:
        if self.glue_task not in TABLE:
            raise unknown("glue_task", self.glue_task, TABLE)

    def build(self, seq_len: int, seed: int) -> "GlueTask":
        return GlueTask(self, seq_len, seed)


class GlueTask:
    """Batches of a GLUE task, as wide as the longest sequence needs. The seed decides the order of training."""

    def __init__(self, config: Glue, seq_len: int, seed: int) -> None:
        self.config = config
        self.entry = TABLE[config.glue_task]
        least = 2 * len(self.entry.texts) - 1
        require(seq_len >= least, "seq_len", f"at least {least} for '{config.glue_task}'", seq_len, "give a longer one")
        self.seq_len = seq_len
        self.tokenizer = load_tokenizer(config.glue_tokenizer)
        data = config.glue_data if config.glue_data == HUB else str(locate(config.glue_data).resolve())
        self.parts = _load(config.glue_task, data, config.glue_tokenizer)
        self.name = f"glue:{config.glue_task}"
        self.demands = {"vocab_size": self.tokenizer.vocab_size, "n_classes": self.entry.n_classes}
        self.metric = self.entry.metrics[0]
        self.valid_sets = self.entry.valid_sets
        self._epochs = Epochs(len(self.parts["train"].labels), seed)
        digest = hashlib.sha256(config.glue_task.encode())
        for part in self.parts.values():
            for array in (part.ids.astype("<u4"), part.bounds.astype("<i8"), part.labels.astype("<f8")):
                digest.update(array.tobytes())
        self.fingerprint = digest.hexdigest()

    @property
    def n_tokens(self) -> int:
        """The number of training tokens. A sequence counts seq_len tokens, as in steps, so that epochs are right."""
        return len(self.parts["train"].labels) * self.seq_len

    def train_batch(self, step: int, batch_size: int) -> Batch:
        return self._batch("train", self._epochs.examples(step * batch_size, batch_size))

    def valid_batches(
        self, batch_size: int, max_batches: int | None = None, part: str | None = None
    ) -> Iterator[Batch]:
        """Return batches of a validation set, by default the first, spread evenly over it."""
        part = part or self.valid_sets[0]
        if part not in self.valid_sets:
            raise unknown("validation set", part, self.valid_sets)
        batches = numbered_batches(len(self.parts[part].labels), batch_size, max_batches, spread=True)
        return (self._batch(part, chosen) for chosen in batches)

    def measure(self, targets: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
        """Return the benchmark's metrics for this task."""
        return {name: METRICS[name](targets, predictions) for name in self.entry.metrics}

    def describe(self) -> str:
        train = self.parts["train"]
        lengths = train.lengths
        valid = ", ".join(f"{len(self.parts[name].labels):,} {name}" for name in self.valid_sets)
        n_malformed = sum(part.n_malformed for part in self.parts.values())
        return (
            f"{self.name}: {len(train.labels):,} training examples, {valid}; sequences of {lengths.mean():.0f} tokens "
            f"on average and {lengths.max():,} at most, {(lengths > self.seq_len).mean():.1%} cut to {self.seq_len}"
            + (f"; {n_malformed:,} malformed lines left out" if n_malformed else "")
        )

    def _batch(self, name: str, chosen: np.ndarray) -> Batch:
        part = self.parts[name]
        sequences = [part.sequence(int(i), self.seq_len, self.tokenizer.end_of_text) for i in chosen]
        longest = max(map(len, sequences))
        width = min(-(-longest // WIDTH_STEP) * WIDTH_STEP, self.seq_len)
        inputs = np.full((len(chosen), width), self.tokenizer.pad, dtype=np.int64)
        real = np.zeros((len(chosen), width), dtype=bool)
        for row, sequence in enumerate(sequences):
            inputs[row, : len(sequence)] = sequence
            real[row, : len(sequence)] = True
        return Batch(inputs, part.labels[chosen], real)


@dataclass(frozen=True)
class TokenizedSplit:
    """Tokenised examples, in shared, read-only arrays. Text j of example i is ids[bounds[i, j] : bounds[i, j + 1]]."""

    ids: np.ndarray
    bounds: np.ndarray
    labels: np.ndarray
    n_malformed: int

    @property
    def lengths(self) -> np.ndarray:
        """The lengths of uncut sequences, with the token that joins the texts of a pair."""
        return self.bounds[:, -1] - self.bounds[:, 0] + self.bounds.shape[1] - 2

    def sequence(self, example: int, seq_len: int, end_of_text: int) -> np.ndarray:
        bounds = self.bounds[example]
        texts = [self.ids[begin:end] for begin, end in pairwise(bounds)]
        if len(texts) == 1:  # a text may have no tokens, but a sequence must have at least one
            return texts[0][:seq_len] if len(texts[0]) else np.array([end_of_text])
        first, second = texts
        n_first, n_second = shares(len(first), len(second), seq_len - 1)
        return np.concatenate([first[:n_first], [end_of_text], second[:n_second]])


def shares(n_first: int, n_second: int, room: int) -> tuple[int, int]:
    """Return the lengths of two texts after the longer is cut until both fit; of equals, the second is cut first."""
    kept = min(n_second, max(room // 2, room - n_first))
    return min(n_first, room - kept), kept


@lru_cache(maxsize=4)
def _load(task: str, data: str, tokenizer: str) -> dict[str, TokenizedSplit]:
    """Read and tokenise the training and validation sets, once per process."""
    tokens = load_tokenizer(tokenizer)
    return {name: _part(task, data, name, tokens) for name in ("train", *TABLE[task].valid_sets)}


def _part(task: str, data: str, name: str, tokenizer: Tokenizer) -> TokenizedSplit:
    examples = read_examples(task, data, name)
    encoded = tokenizer.encode_batch([text for texts in examples.texts for text in texts])
    ends = np.concatenate([[0], np.cumsum([len(ids) for ids in encoded])])
    n_texts = len(TABLE[task].texts)
    bounds = ends[np.arange(len(examples.texts))[:, None] * n_texts + np.arange(n_texts + 1)]
    ids = np.concatenate(encoded)
    for array in (ids, bounds, examples.labels):
        array.flags.writeable = False
    return TokenizedSplit(ids, bounds, examples.labels, examples.n_malformed)
