"""Three tasks of GLUE as batches: a sentence, or a pair of sentences, becomes a sequence of tokens with a label.

    sentence padding...                       `real` is False at padding, which is always on the right
    first <|endoftext|> second padding...     a pair that is too long loses the end of its longer text first

Wang et al., GLUE: A Multi-Task Benchmark and Analysis Platform for Natural Language Understanding, 2018, arXiv
1804.07461. The examples come from the Hugging Face Hub, or from the benchmark's tsv files, which have no quoting.
Whatever opens a run of this task needs `--code papers/coupled_qk/glue.py`.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from attractor.corpus.data_paths import locate, searched_places
from attractor.corpus.tokenizer import Tokenizer, load_tokenizer
from attractor.errors import InputError, require, require_known, require_package
from attractor.tasks import TASKS
from attractor.tasks.epochs import Epochs
from attractor.tasks.task import Batch, TaskConfig, numbered_batches
from attractor.train.config import TrainConfig

HUB = "huggingface"
REPOSITORY = "nyu-mll/glue"
WIDTH_STEP = 8  # matrix kernels are fastest at multiples of this width


@dataclass(frozen=True)
class GlueEntry:
    """The labels of a task, and the names of its columns: those of the Hub, then those of the tsv files, if others."""

    texts: tuple[tuple[str, ...], ...]
    labels: tuple[str, ...]
    label_columns: tuple[str, ...] = ("label",)
    valid_sets: tuple[str, ...] = ("valid",)


TABLE = {
    "sst2": GlueEntry((("sentence",),), ("negative", "positive")),
    "mnli": GlueEntry(
        (("premise", "sentence1"), ("hypothesis", "sentence2")),
        ("entailment", "neutral", "contradiction"),
        ("label", "gold_label"),
        ("matched", "mismatched"),
    ),
    "qnli": GlueEntry((("question",), ("sentence",)), ("entailment", "not_entailment")),
}
FILES = {  # the names of each part: on the Hub, and among the tsv files
    "train": ("train", "train"),
    "valid": ("validation", "dev"),
    "matched": ("validation_matched", "dev_matched"),
    "mismatched": ("validation_mismatched", "dev_mismatched"),
}


@dataclass(frozen=True)
class Glue(TaskConfig):
    """Classify sentences and pairs of them."""

    kind = "glue"

    glue_task: str = "sst2"
    """sst2, mnli or qnli"""
    glue_data: str = HUB
    """huggingface, or a folder of tsv files"""
    glue_tokenizer: str = "bytes"
    """the pretrained model's: a name or a tokenizer.json"""

    def __post_init__(self) -> None:
        require_known("glue_task", self.glue_task, TABLE)

    def build(self, seq_len: int, seed: int) -> "GlueTask":
        return GlueTask(self, seq_len, seed)


TASKS[Glue.kind] = Glue  # the configurations of stored runs are read as this class

# CoupledQK, section 3.4: a linear head on the pretrained checkpoint, five epochs of SST-2 at 2e-5. Where the paper is
# silent, BERT's values: batches of 32, decay 0.01, a tenth of warm-up (Devlin et al. 2019, appendix A).
FINE_TUNING = TrainConfig(
    task=Glue(),
    n_steps=10_524,
    batch_size=32,
    seq_len=128,
    lr=2e-5,
    warmup_steps=1_052,
    betas=(0.9, 0.999),
    weight_decay=0.01,
    eval_every=500,
    eval_batches=None,
)


class GlueTask:
    """Batches of a GLUE task, as wide as the longest sequence needs. The seed decides the order of training."""

    metric = "accuracy"

    def __init__(self, config: Glue, seq_len: int, seed: int) -> None:
        entry = TABLE[config.glue_task]
        least = 2 * len(entry.texts) - 1
        require(seq_len >= least, "seq_len", f"at least {least} for '{config.glue_task}'", seq_len, "give a longer one")
        self.seq_len = seq_len
        self.tokenizer = load_tokenizer(config.glue_tokenizer)
        data = config.glue_data if config.glue_data == HUB else str(locate(config.glue_data).resolve())
        self.parts = _load(config.glue_task, data, config.glue_tokenizer)
        self.name = f"glue:{config.glue_task}"
        self.demands = {"vocab_size": self.tokenizer.vocab_size, "n_classes": len(entry.labels)}
        self.valid_sets = entry.valid_sets
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
        require_known("validation set", part, self.valid_sets)
        batches = numbered_batches(len(self.parts[part].labels), batch_size, max_batches, spread=True)
        return (self._batch(part, chosen) for chosen in batches)

    def measure(self, targets: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
        return {"accuracy": float((targets == predictions).mean())}

    def describe(self) -> str:
        lengths = self.parts["train"].lengths
        valid = ", ".join(f"{len(self.parts[name].labels):,} {name}" for name in self.valid_sets)
        return (
            f"{self.name}: {len(lengths):,} training examples, {valid}; sequences of {lengths.mean():.0f} tokens "
            f"on average and {lengths.max():,} at most, {(lengths > self.seq_len).mean():.1%} cut to {self.seq_len}"
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

    @property
    def lengths(self) -> np.ndarray:
        """The lengths of uncut sequences, with the token that joins the texts of a pair."""
        return self.bounds[:, -1] - self.bounds[:, 0] + self.bounds.shape[1] - 2

    def sequence(self, example: int, seq_len: int, end_of_text: int) -> np.ndarray:
        texts = [self.ids[begin:end] for begin, end in pairwise(self.bounds[example])]
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
    return {part: _tokenized(*examples(task, data, part), tokens) for part in ("train", *TABLE[task].valid_sets)}


def _tokenized(texts: list[tuple[str, ...]], labels: np.ndarray, tokenizer: Tokenizer) -> TokenizedSplit:
    encoded = tokenizer.encode_batch([text for example in texts for text in example])
    ends = np.concatenate([[0], np.cumsum([len(ids) for ids in encoded])])
    n_texts = len(texts[0])
    split = TokenizedSplit(
        np.concatenate(encoded), ends[np.arange(len(texts))[:, None] * n_texts + np.arange(n_texts + 1)], labels
    )
    for array in (split.ids, split.bounds, split.labels):
        array.flags.writeable = False
    return split


def examples(task: str, data: str, part: str) -> tuple[list[tuple[str, ...]], np.ndarray]:
    """Return the texts and the labels of a part: 'train', or a validation set of the task."""
    entry = TABLE[task]
    source, columns, rows = _from_hub(task, part) if data == HUB else _from_folder(task, Path(data), part)
    if not rows:
        raise InputError(f"'{source}' must hold examples, but is empty; fetch it again")
    places = []
    for names in (*entry.texts, entry.label_columns):
        if not {*names} & {*columns}:
            raise InputError(f"'{source}' must have a column '{names[0]}', but has {', '.join(columns)}; rename one")
        places.append(next(columns.index(name) for name in names if name in columns))
    known = {**{name: i for i, name in enumerate(entry.labels)}, **{str(i): i for i in range(len(entry.labels))}}
    for number, row in enumerate(rows, start=1):
        if len(row) != len(columns) or row[places[-1]] not in known or not all(row[place].strip() for place in places):
            raise InputError(
                f"'{source}' must have texts and one of the labels {', '.join(entry.labels)} in each row, but row "
                f"{number} has not; mend or remove it"
            )
    texts = [tuple(row[place] for place in places[:-1]) for row in rows]
    return texts, np.array([known[row[places[-1]]] for row in rows], dtype=np.int64)


def _from_folder(task: str, folder: Path, part: str) -> tuple[str, list[str], list[list[str]]]:
    """Read the task's file in its folder, which is named `SST-2` or `sst2`. Only a line feed ends a line."""
    if not folder.is_dir():
        raise InputError(
            f"glue_data must be a folder, or '{HUB}', but '{folder}' is not; give one with a folder '{task}'; "
            f"{searched_places(folder)}"
        )
    named = [path for path in sorted(folder.iterdir()) if re.sub(r"[^a-z0-9]", "", path.name.lower()) == task]
    file = next(filter(Path.is_dir, named), folder) / f"{FILES[part][1]}.tsv"
    if not file.is_file():
        raise InputError(f"glue_data must hold a file '{file.name}' for '{task}', but '{file.parent}' has none; add it")
    text = file.read_bytes().decode("utf-8-sig", errors="replace")
    header, *rows = [line.rstrip("\r").split("\t") for line in text.split("\n") if line.strip()] or [[]]
    return str(file), header, rows


def _from_hub(task: str, part: str) -> tuple[str, list[str], list[list[str]]]:
    datasets = require_package("datasets")
    split = FILES[part][0]
    try:
        table = datasets.load_dataset(REPOSITORY, task, split=split)
    except Exception as error:  # any layer of the library may raise any class
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"glue data '{task}' must be downloaded, but the Hugging Face Hub did not give it ({reason}); give "
            "glue_data=FOLDER with the benchmark's tsv files"
        ) from error
    rows = [[str(value) for value in row.values()] for row in table.to_list()]
    return f"{REPOSITORY}:{task}/{split}", table.column_names, rows
