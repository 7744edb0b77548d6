"""Find the texts to score: all documents of a file or folder, but only the held-out part of a training corpus."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attractor.corpus.data_paths import locate, searched_places
from attractor.corpus.documents import CORPORA, Document
from attractor.corpus.in_memory import documents_at
from attractor.corpus.shards import PreparedCorpus, is_prepared, read_manifest
from attractor.corpus.split import place, split_of
from attractor.errors import InputError, unknown
from attractor.evaluate.causal import described, is_imported
from attractor.tasks.text import Text, load_corpus, refuse_column
from attractor.train.config import TrainConfig


@dataclass(frozen=True)
class Texts:
    name: str
    documents: tuple[Document, ...]
    held_out: bool  # True if the documents are the held-out part of a corpus
    special_tokens: bool = False  # True if names of special tokens in the documents stand for these tokens
    within: str = ""  # the corpus that a model was trained on and that these documents are a part of

    @property
    def n_bytes(self) -> int:
        return sum(len(text) for _, text in self.documents)

    def describe(self) -> str:
        part = "the part held out of " if self.held_out else ""
        known = f"; part of {self.within}, most of which was trained on" if self.within else ""
        return f"{part}{self.name}: {len(self.documents):,} documents, {self.n_bytes:,} bytes{known}"


@dataclass(frozen=True)
class TrainedText:
    """The text that a run was trained on. Its fingerprint identifies it in another place or under another name."""

    task: Text
    fingerprint: Any = None

    @property
    def path(self) -> Path:
        return locate(self.task.corpus).resolve()

    def is_at(self, path: Path) -> bool:
        if self.path == path or self.fingerprint is None:
            return self.path == path
        try:
            return load_corpus(path, self.task.column).fingerprint == self.fingerprint
        except InputError:  # such as a text without columns, or a table without this one
            return False


def texts_on(name: str, trained_on: Collection[Text | TrainedText] = (), column: str | None = None) -> Texts:
    """Return the texts of a file, a folder or a corpus.

    A named corpus, a prepared corpus and a corpus that a model was trained on give their held-out part. A table gives
    the given column, or the column that a model was trained on.
    """
    path = locate(name).resolve()
    refuse_column(name, column)
    if name not in CORPORA and not path.exists():
        if "/" not in name and "." not in name:
            raise unknown("corpus", name, CORPORA, see="or give the path of a text file or folder")
        raise InputError(
            f"on must be a text file, a folder or a corpus, but '{name}' does not exist; {searched_places(name)}"
        )
    if name in CORPORA:
        texts = Texts(name, tuple(_held_out(_with_text(CORPORA[name]()))), held_out=True)
    elif is_prepared(path):
        texts = replace(_held_out_of(PreparedCorpus.open(path)), name=path.name)
    else:
        known = [text if isinstance(text, TrainedText) else TrainedText(text) for text in trained_on]
        texts = _of_prepared_file(path, known, column) or _of_files(path, known, column)
    if not texts.documents:
        raise InputError(f"on must contain text, but '{name}' has none; give a file or folder with UTF-8 text")
    return texts


def trained_text(folder: Path) -> TrainedText | None:
    """Return the text of a run that was trained on text on this machine; None for any other folder."""
    config = described(folder)
    if "model_type" in config:
        return None
    task = TrainConfig.from_dict(config).task
    return TrainedText(task, config.get("data")) if isinstance(task, Text) and not is_imported(task) else None


def _of_prepared_file(path: Path, trained_on: Collection[TrainedText], column: str | None) -> Texts | None:
    """Return the held-out part of a prepared corpus that was made from this file and on which a model was trained."""
    for trained in trained_on:
        if not (path.is_file() and is_prepared(trained.path)):
            continue
        source = read_manifest(trained.path)["source"]
        files = [(Path(file["name"]).name, file["size"]) for file in source.get("files", ()) if isinstance(file, dict)]
        if (path.name, path.stat().st_size) not in files:
            continue
        if len(files) == 1 and column in (None, *source.get("columns", ())):
            return replace(_held_out_of(PreparedCorpus.open(trained.path)), name=path.name)
        whole = _of_files(path, trained_on, column)
        return whole if whole.held_out else replace(whole, within=trained.path.name)
    return None


def _of_files(path: Path, trained_on: Collection[TrainedText], column: str | None) -> Texts:
    """Return the documents of files: those that every training on them held out, whichever column it read."""
    from_files = [trained for trained in trained_on if trained.task.corpus not in CORPORA]
    columns = dict.fromkeys(trained.task.column for trained in from_files if trained.is_at(path))  # in order
    column = column or next(filter(None, columns), None)
    documents = _with_text(documents_at(path, column))
    if columns.keys() - {column} and documents:  # rows are known by their names
        held_out = [{name for name, _ in _held_out(_with_text(documents_at(path, read)))} for read in columns]
        documents = [document for document in documents if all(document[0] in names for names in held_out)]
    elif columns and documents:
        documents = list(_held_out(documents))
    within = next((trained.path.name for trained in from_files if trained.path in path.parents), "")
    return Texts(path.name, tuple(documents), bool(columns), within="" if columns else within)


def _with_text(documents: Iterable[Document]) -> list[Document]:
    return [document for document in documents if document[1].strip()]


def _held_out(documents: list[Document]) -> Iterator[Document]:
    """Yield the documents that training on this corpus holds out for validation."""
    rule = split_of(place(text) for _, text in documents)
    for name, text in documents[:1] if rule.single else documents:
        for held_out, part in rule.sides(text):
            if held_out:
                yield name, part


def _held_out_of(corpus: PreparedCorpus) -> Texts:
    documents = (
        (f"valid#{number}", corpus.tokenizer.decode(tokens[:-1]).encode())  # without the end-of-text token
        for number, tokens in enumerate(corpus.valid.documents())
    )
    return Texts(corpus.name, tuple(documents), True, corpus.has_special_tokens)
