"""Language modelling: predict the next token of a corpus, measured by perplexity on held-out documents.

A corpus of text, or a table with a column of text, is read into memory as bytes. A corpus that `attractor data prepare`
wrote stays on disk; its tokens are those of the tokenizer in its folder.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from os import PathLike
from pathlib import Path

import numpy as np

from attractor.corpus.data_paths import locate, searched_places
from attractor.corpus.documents import CORPORA, Document
from attractor.corpus.in_memory import documents_at
from attractor.corpus.shards import PreparedCorpus, Tokens, is_prepared
from attractor.corpus.split import place, split_of
from attractor.corpus.tokenizer import END_OF_TEXT, ByteTokenizer, Tokenizer
from attractor.errors import InputError, unknown
from attractor.fields import later
from attractor.tasks.order import Windows, check_length, evaluation_batches
from attractor.tasks.task import Batch, TaskConfig

MEASURED_TOKENS = 200_000  # the tokens of validation text on which bytes per token are measured


@dataclass(frozen=True)
class Corpus:
    """Training and validation tokens that share no document. The arrays are read-only, since runs share them."""

    name: str
    train: np.ndarray | Tokens = field(repr=False)
    valid: np.ndarray | Tokens = field(repr=False)
    n_documents: int
    n_bytes: int
    fingerprint: str
    tokenizer: Tokenizer = field(repr=False)


@dataclass(frozen=True)
class Text(TaskConfig):
    """Predict the next token of a corpus; measured by perplexity."""

    kind = "text"

    corpus: str = "stdlib-code"
    """a named corpus, a file of text or a table, or a folder"""
    column: str | None = later(None)
    """column of a table that holds the text; by default 'text' or the only one"""

    def build(self, seq_len: int, seed: int) -> "TextTask":
        return TextTask(self.corpus, seq_len, seed, self.column)


class TextTask:
    """Windows of a corpus. The seed decides the order of training, never which documents are held out."""

    metric = "perplexity"
    valid_sets = ("valid",)

    def __init__(self, corpus: str, seq_len: int, seed: int, column: str | None = None) -> None:
        self.corpus = load_corpus(corpus, column)
        self.seq_len = seq_len
        self.name = f"text:{self.corpus.name}"
        self.demands = {"vocab_size": self.corpus.tokenizer.vocab_size, "causal": True, "n_classes": None}
        self.n_tokens = len(self.corpus.train)
        self.fingerprint = self.corpus.fingerprint
        check_length(self.corpus.train, seq_len, f"the training part of corpus '{self.corpus.name}'")
        check_length(self.corpus.valid, seq_len, f"the validation part of corpus '{self.corpus.name}'")
        self._windows = Windows(self.corpus.train, seq_len, seed)

    def train_batch(self, step: int, batch_size: int) -> Batch:
        return self._windows.batch(step, batch_size)

    def valid_batches(self, batch_size: int, max_batches: int | None = None, part: str = "valid") -> Iterator[Batch]:
        return evaluation_batches(self.corpus.valid, self.seq_len, batch_size, max_batches)

    def n_validated(self, batch_size: int, max_batches: int | None = None) -> int:
        """Return the number of tokens that a validation scores."""
        n_windows = (len(self.corpus.valid) - 1) // self.seq_len
        return self.seq_len * (n_windows if max_batches is None else min(n_windows, max_batches * batch_size))

    @property
    def bytes_per_token(self) -> float:
        """Bytes per token of validation text, to convert losses to bytes. The end of a text counts as a token."""
        tokenizer = self.corpus.tokenizer
        if isinstance(tokenizer, ByteTokenizer):
            return 1.0
        sample = np.asarray(self.corpus.valid[:MEASURED_TOKENS])
        spelled = sample[(sample < tokenizer.n_spelled) & (sample != tokenizer.end_of_text)]
        return len(tokenizer.decode(spelled).encode()) / len(sample)

    def describe(self) -> str:
        corpus = self.corpus
        return (
            f"{corpus.name}: {corpus.n_documents:,} documents, {corpus.n_bytes:,} bytes; "
            f"{len(corpus.train):,} training and {len(corpus.valid):,} validation tokens in windows of {self.seq_len}"
        )


def load_corpus(name_or_path: str | PathLike[str], column: str | None = None) -> Corpus:
    """Load the corpus of that name in CORPORA, or else of that file or folder, once per process.

    `column` names the column with the text where the corpus is a table.
    """
    name = str(name_or_path)
    refuse_column(name, column)
    path = None if name in CORPORA else locate(name).resolve()
    if path is None:
        return _load(name, None)
    if is_prepared(path):
        return _open(path)
    if path.exists():
        return _load(name, path, column)
    raise missing_corpus(name)


def refuse_column(name: str, column: str | None) -> None:
    """Refuse a column of a corpus that is no table. Of files, the reader knows which are tables."""
    if column is not None and (name in CORPORA or is_prepared(locate(name))):
        raise InputError(
            f"column must be left out with corpus '{name}', which is no table, got '{column}'; leave it out"
        )


def missing_corpus(name: str) -> InputError:
    """Return the error for a corpus that is neither a known name nor an existing path."""
    if re.fullmatch(r"[\w-]+", name):
        elsewhere = (
            "or give the path of a text file or folder, which for a stored run is that from the folder in which it was "
            "trained, or the name of one in the folder ATTRACTOR_DATA"
        )
        return unknown("corpus", name, CORPORA, elsewhere)
    is_of_hub = re.fullmatch(r"[\w.-]+/[\w-]+", name)
    hub = f"; 'attractor data prepare {name} --out FOLDER' prepares one of the Hugging Face Hub" if is_of_hub else ""
    return InputError(
        f"corpus must be a text file or folder, but '{name}' does not exist; known: {', '.join(CORPORA)}; "
        f"{searched_places(name)}{hub}"
    )


def prepared_folder(corpus: str | PathLike[str]) -> Path | None:
    """Return the folder of a prepared corpus; None for texts and for a name in CORPORA."""
    folder = None if str(corpus) in CORPORA else locate(corpus)
    return folder if folder and is_prepared(folder) else None


def tokenizer_of(corpus: str | PathLike[str]) -> Tokenizer:
    """Return the tokenizer of the corpus of that name or path, without reading the corpus."""
    folder = prepared_folder(corpus)
    return PreparedCorpus.open(folder).tokenizer if folder else ByteTokenizer()


@lru_cache(maxsize=4)
def _load(name: str, path: Path | None, column: str | None = None) -> Corpus:
    contents = CORPORA[name]() if path is None else documents_at(path, column)
    documents = [document for document in contents if document[1].strip()]
    if not documents:
        raise InputError(f"corpus must contain text, but '{name}' has none; give a file or folder with UTF-8 text")
    train, valid = (_join(texts) for texts in split(documents))
    return Corpus(
        name=name,
        train=train,
        valid=valid,
        n_documents=len(documents),
        n_bytes=sum(len(text) for _, text in documents),
        fingerprint=_fingerprint(train, valid),
        tokenizer=ByteTokenizer(),
    )


@lru_cache(maxsize=4)
def _open(folder: Path) -> Corpus:
    prepared = PreparedCorpus.open(folder)
    sides = [prepared.manifest[side] for side in ("train", "valid")]
    return Corpus(
        name=folder.name,
        train=prepared.train,
        valid=prepared.valid,
        n_documents=sum(side["documents"] for side in sides),
        n_bytes=sum(side["bytes_read"] for side in sides),
        fingerprint=prepared.fingerprint,
        tokenizer=prepared.tokenizer,
    )


def split(documents: Sequence[Document]) -> tuple[list[bytes], list[bytes]]:
    """Split whole documents into training and validation texts, about one tenth of them for validation.

    A hash of the content decides, so equal texts stand on the same side, and adding documents moves no others. If that
    leaves a side empty, the text nearest the boundary changes sides. A corpus with only one distinct text is taken
    once; its last tenth is for validation, and the cut follows a line break if one is near.
    """
    texts = [text for _, text in documents]
    rule = split_of(map(place, texts))
    parts = [part for text in (texts[:1] if rule.single else texts) for part in rule.sides(text)]
    return [text for held_out, text in parts if not held_out], [text for held_out, text in parts if held_out]


def _join(texts: Sequence[bytes]) -> np.ndarray:
    """Join texts to an array of tokens, which are bytes, with an end-of-text token between texts."""
    tokens = np.full(sum(map(len, texts)) + len(texts) - 1, END_OF_TEXT, dtype=np.uint16)
    begin = 0
    for text in texts:
        tokens[begin : begin + len(text)] = np.frombuffer(text, dtype=np.uint8)
        begin += len(text) + 1
    tokens.flags.writeable = False
    return tokens


def _fingerprint(train: np.ndarray, valid: np.ndarray) -> str:
    """Hash the tokens and the length of the training part: the same tokens split elsewhere are other data."""
    digest = hashlib.sha256(len(train).to_bytes(8))
    for part in (train, valid):
        digest.update(part.astype("<u2", copy=False).data)
    return digest.hexdigest()
