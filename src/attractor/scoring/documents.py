"""Find the texts to score: all documents of a file or folder, but only the held-out part of a training corpus."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from attractor.causal import described, is_imported
from attractor.corpus.data_paths import locate, searched_places
from attractor.corpus.documents import CORPORA, Document
from attractor.corpus.in_memory import documents_at
from attractor.corpus.shards import PreparedCorpus, is_prepared
from attractor.corpus.split import place, split_of
from attractor.errors import InputError, unknown
from attractor.tasks.text import Text
from attractor.train.config import TrainConfig


@dataclass(frozen=True)
class Texts:
    name: str
    documents: tuple[Document, ...]
    held_out: bool  # True if the documents are the held-out part of a corpus
    special_tokens: bool = False  # True if names of special tokens in the documents stand for these tokens

    @property
    def n_bytes(self) -> int:
        return sum(len(text) for _, text in self.documents)

    def describe(self) -> str:
        part = "the part held out of " if self.held_out else ""
        return f"{part}{self.name}: {len(self.documents):,} documents, {self.n_bytes:,} bytes"


def texts_on(name: str, trained_on: Collection[Text] = (), column: str | None = None) -> Texts:
    """Return the texts of a file, a folder or a corpus.

    A named corpus, a prepared corpus and a corpus that a model was trained on give their held-out part. A table gives
    the given column, or the column that a model was trained on.
    """
    path = locate(name).resolve()
    if name not in CORPORA and not path.exists():
        if "/" not in name and "." not in name:
            raise unknown("corpus", name, CORPORA, see="or give the path of a text file or folder")
        raise InputError(
            f"on must be a text file, a folder or a corpus, but '{name}' does not exist; {searched_places(name)}"
        )
    from_files = [task for task in trained_on if task.corpus not in CORPORA]
    trained_here = [task for task in from_files if locate(task.corpus).resolve() == path]
    column = column or next((task.column for task in trained_here if task.column), None)
    seen = name in CORPORA or bool(trained_here)
    special_tokens = False
    if name not in CORPORA and is_prepared(path):
        corpus = PreparedCorpus.open(path)
        documents, seen, special_tokens = tuple(_of_prepared(corpus)), True, corpus.has_special_tokens
    else:
        available = CORPORA[name]() if name in CORPORA else documents_at(path, column)
        with_text = [document for document in available if document[1].strip()]
        documents = tuple(_held_out(with_text) if seen and with_text else with_text)
    if not documents:
        raise InputError(f"on must contain text, but '{name}' has none; give a file or folder with UTF-8 text")
    return Texts(name if name in CORPORA else path.name, documents, seen, special_tokens)


def trained_text(folder: Path) -> Text | None:
    """Return the task of a run that was trained on text on this machine; None for any other folder."""
    config = described(folder)
    if "model_type" in config:
        return None
    task = TrainConfig.from_dict(config).task
    return task if isinstance(task, Text) and not is_imported(task) else None


def _held_out(documents: list[Document]) -> Iterator[Document]:
    """Yield the documents that training on this corpus holds out for validation."""
    rule = split_of(place(text) for _, text in documents)
    for name, text in documents[:1] if rule.single else documents:
        for held_out, part in rule.sides(text):
            if held_out:
                yield name, part


def _of_prepared(corpus: PreparedCorpus) -> Iterator[Document]:
    for number, tokens in enumerate(corpus.valid.documents()):
        yield f"valid#{number}", corpus.tokenizer.decode(tokens[:-1]).encode()  # without the end-of-text token
