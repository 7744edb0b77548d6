"""Shards read like one array, and files that changed since they were written are refused."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attractor.corpus.prepare import Preparation, prepare
from attractor.corpus.shards import MANIFEST, PreparedCorpus, Tokens, is_prepared, write_side
from attractor.corpus.tokenizer import END_OF_TEXT
from attractor.errors import InputError
from attractor.files import write_json

TEXTS = [f"document {i} says {'so ' * (i % 7)}much" for i in range(60)]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    (folder / "a.txt").write_text("\n<|endoftext|>\n".join(TEXTS))
    prepare(Preparation(str(folder / "a.txt"), folder / "out", shard_tokens=500))
    return folder / "out"


@pytest.fixture
def copied(prepared: Path, tmp_path: Path) -> Path:
    for file in prepared.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_shards_read_like_one_array(sizes: list[int], data: st.DataObject) -> None:
    whole = np.arange(sum(sizes), dtype=np.uint16)
    tokens = Tokens(np.split(whole, np.cumsum(sizes)[:-1]), np.array([0]))
    n = len(whole)
    assert len(tokens) == n
    length = data.draw(st.integers(1, n))
    starts = np.array(data.draw(st.lists(st.integers(0, n - length), max_size=5)), dtype=np.int64)
    grid = starts[:, None] + np.arange(length)
    assert np.array_equal(tokens[grid], whole[grid])
    start, stop = data.draw(st.tuples(st.integers(-n, n), st.integers(-n, n)))
    assert np.array_equal(tokens[start:stop], whole[start:stop])
    for outside in ([n], [-1]):
        with pytest.raises(IndexError, match="numbered from 0"):
            tokens[np.array(outside)]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.integers(1, 10))
def test_all_shards_but_the_last_have_one_size(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], shard_tokens: int
) -> None:
    folder = tmp_path_factory.mktemp("side")
    whole = np.arange(sum(sizes), dtype="<u2")
    entries = write_side(folder, "train", np.split(whole, np.cumsum(sizes)[:-1]), np.array([0]), shard_tokens)["shards"]
    found = [np.fromfile(folder / entry["file"], dtype="<u2") for entry in entries]
    assert np.array_equal(np.concatenate([whole[:0], *found]), whole)
    assert all(len(shard) == shard_tokens for shard in found[:-1])
    assert all(0 < len(shard) <= shard_tokens for shard in found[-1:])


def test_documents_keep_their_bounds(prepared: Path) -> None:
    corpus = PreparedCorpus.open(prepared)
    assert len(corpus.manifest["train"]["shards"]) > 2
    found = []
    for side in (corpus.train, corpus.valid):
        for document in side.documents():
            assert document[-1] == END_OF_TEXT
            found.append(corpus.tokenizer.decode(document[:-1]).rstrip("\n"))
    assert sorted(found) == sorted(TEXTS)
    assert len(corpus.train) == corpus.manifest["train"]["tokens"]
    corpus.verify()


def test_the_fingerprint_is_that_of_the_tokens(prepared: Path, copied: Path) -> None:
    assert PreparedCorpus.open(copied).fingerprint == PreparedCorpus.open(prepared).fingerprint
    manifest = json.loads((copied / MANIFEST).read_text())
    changed = np.fromfile(copied / "valid-00000.tokens", dtype="<u2")[::-1].tobytes()
    (copied / "valid-00000.tokens").write_bytes(changed)
    manifest["valid"]["shards"][0]["sha256"] = hashlib.sha256(changed).hexdigest()
    write_json(copied / MANIFEST, manifest)
    assert PreparedCorpus.open(copied).fingerprint != PreparedCorpus.open(prepared).fingerprint


@pytest.mark.parametrize("name", ["train-00001.tokens", "valid-00000.tokens", "train.starts"])
def test_a_truncated_or_missing_file_is_refused_on_opening(copied: Path, name: str) -> None:
    whole = (copied / name).read_bytes()
    (copied / name).write_bytes(whole[:-2])
    has = rf"file must have {len(whole):,} bytes, but '.*{name}' has {len(whole) - 2:,}"
    with pytest.raises(InputError, match=has):
        PreparedCorpus.open(copied)
    (copied / name).unlink()
    with pytest.raises(InputError, match=rf"'.*{name}' is missing; copy it again"):
        PreparedCorpus.open(copied)


def test_a_changed_file_is_found_by_its_checksum(copied: Path) -> None:
    changed = bytearray((copied / "train-00002.tokens").read_bytes())
    changed[40] ^= 1
    PreparedCorpus.open(copied)
    (copied / "train-00002.tokens").write_bytes(changed)
    for _ in range(2):  # a refused file must not count as verified
        with pytest.raises(InputError, match=r"train-00002.tokens' does not have the content that was written"):
            PreparedCorpus.open(copied)


def test_a_corpus_is_verified_once_and_again_after_a_file_has_changed(copied: Path, monkeypatch) -> None:
    read: list[Path] = []
    verify = PreparedCorpus.verify
    monkeypatch.setattr(PreparedCorpus, "verify", lambda corpus: read.append(corpus.folder) or verify(corpus))
    for n_times in (1, 1):
        PreparedCorpus.open(copied)
        assert len(read) == n_times
    (copied / "valid-00000.tokens").write_bytes((copied / "valid-00000.tokens").read_bytes())
    PreparedCorpus.open(copied)
    assert len(read) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 9}, r"must have version 1 of its format, but '.*' has 9"),
        ({"dtype": "|O"}, r"dtype must be <u2 or <u4, got '\|O'"),
        ({"dtype": ["<u2"]}, r"dtype must be <u2 or <u4"),
        ({"file": "../secret"}, r"file must be a plain name as train-00000.tokens, got '../secret'"),
        ({"file": "/etc/passwd"}, r"file must be a plain name"),
        ({"file": "sub/train-00000.tokens"}, r"file must be a plain name"),
        ({"file": 3}, r"file must be a plain name"),
        ({"size": -2}, r"size of train-00000.tokens must be a positive multiple of 2 bytes, got -2"),
        ({"size": 3}, r"size of train-00000.tokens must be a positive multiple of 2 bytes, got 3"),
        ({"size": "4"}, r"size of train-00000.tokens must be a positive multiple of 2 bytes, got '4'"),
        ({"train": {}}, r"manifest must have file, size and sha256 of every shard"),
        ({"tokenizer": None}, r"manifest must have file, size and sha256 of every shard"),
        ({"tokenizer": {"vocab_size": 320}}, r"every shard, and describe its source and tokenizer, but .* does not"),
        ({"source": "notes.txt"}, r"every shard, and describe its source and tokenizer, but .* does not"),
        ({"source": {"name": 3}}, r"name of the source must be a text, got 3"),
        ({"train": {"shards": [], "starts": {}}}, r"manifest must have file, size and sha256 of every shard"),
        ({"of_train": {"documents": None}}, "documents of train must be a whole number"),
        ({"of_train": {"shards": []}}, "has a side without any"),
        ({"of_tokenizer": {"vocab_size": 100}}, "token id must be below the vocabulary of 100, but '.*' has 256"),
    ],
)
def test_a_manifest_has_plain_names_and_whole_numbers(copied: Path, change: dict[str, object], message: str) -> None:
    """Criterion: others are refused before any file is mapped; a dtype of `|O` would crash the interpreter."""
    manifest = json.loads((copied / MANIFEST).read_text())
    if change.keys() & {"file", "size"}:
        manifest["train"]["shards"][0] |= change
    elif (part := next(iter(change))).startswith("of_"):
        manifest[part.removeprefix("of_")] |= change[part]
    else:
        manifest |= change
    write_json(copied / MANIFEST, manifest)
    with pytest.raises(InputError, match=message):
        PreparedCorpus.open(copied)


@pytest.mark.parametrize("starts", [[5, 9], [0, 9, 4], [0, 10**9], []])
def test_impossible_bounds_of_documents_are_refused(copied: Path, starts: list[int]) -> None:
    manifest = json.loads((copied / MANIFEST).read_text())
    raw = np.array(starts, dtype="<u8").tobytes()
    (copied / "train.starts").write_bytes(raw)
    manifest["train"]["starts"] |= {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    write_json(copied / MANIFEST, manifest)
    with pytest.raises(InputError, match=r"starts of documents must begin at 0|size of train.starts must"):
        PreparedCorpus.open(copied)


def test_a_folder_of_texts_may_have_a_manifest(tmp_path: Path, copied: Path) -> None:
    """A damaged manifest still counts as one of a corpus where the shards lie beside it."""
    (copied / MANIFEST).write_text("{")
    assert is_prepared(copied)
    (copied / "train.starts").unlink()
    assert not is_prepared(copied)


def test_shards_of_another_tokenizer_are_refused(copied: Path) -> None:
    (copied / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"written with another \(bytes\)"):
        PreparedCorpus.open(copied)


def test_a_folder_that_is_not_a_prepared_corpus_is_refused(tmp_path: Path, copied: Path) -> None:
    assert is_prepared(copied)
    manifest = json.loads((copied / MANIFEST).read_text())
    without_train = {key: manifest[key] for key in manifest if key != "train"}
    for wrong, message in (
        (without_train, r"manifest must be whole, but '.*' has no 'train'"),
        ({}, "manifest must be one of a prepared corpus"),
    ):
        write_json(copied / MANIFEST, wrong)
        with pytest.raises(InputError, match=message):
            PreparedCorpus.open(copied)
    (copied / MANIFEST).unlink()
    assert not is_prepared(copied)
    without = r"must have a manifest.json, but '.*' has none; run 'attractor data prepare SOURCE"
    with pytest.raises(InputError, match=without):
        PreparedCorpus.open(copied)
    with pytest.raises(InputError, match="must be a folder"):
        PreparedCorpus.open(tmp_path / "nowhere")
