"""Shards read like one array, and what is not as it was written is refused."""

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
def test_shards_have_one_size_but_for_the_last(
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
    manifest["valid"]["shards"][0]["sha256"] = "0" * 64
    write_json(copied / MANIFEST, manifest)
    assert PreparedCorpus.open(copied).fingerprint != PreparedCorpus.open(prepared).fingerprint


@pytest.mark.parametrize("name", ["train-00001.tokens", "valid-00000.tokens", "train.starts"])
def test_a_truncated_or_missing_file_is_refused_on_opening(copied: Path, name: str) -> None:
    whole = (copied / name).read_bytes()
    (copied / name).write_bytes(whole[:-2])
    with pytest.raises(
        InputError, match=rf"file must have {len(whole):,} bytes, but '.*{name}' has {len(whole) - 2:,}"
    ):
        PreparedCorpus.open(copied)
    (copied / name).unlink()
    with pytest.raises(InputError, match=rf"'.*{name}' is missing; copy it again"):
        PreparedCorpus.open(copied)


def test_a_changed_file_is_found_by_its_checksum(copied: Path) -> None:
    changed = bytearray((copied / "train-00002.tokens").read_bytes())
    changed[40] ^= 1
    (copied / "train-00002.tokens").write_bytes(changed)
    with pytest.raises(InputError, match=r"the checksum of '.*train-00002.tokens' is another"):
        PreparedCorpus.open(copied).verify()


def test_ids_outside_the_vocabulary_are_found(copied: Path) -> None:
    manifest = json.loads((copied / MANIFEST).read_text())
    manifest["tokenizer"]["vocab_size"] = 100
    write_json(copied / MANIFEST, manifest)
    with pytest.raises(InputError, match=r"token id must be below the vocabulary of 100, but '.*' has 256"):
        PreparedCorpus.open(copied).verify()


def test_shards_of_another_tokenizer_are_refused(copied: Path) -> None:
    (copied / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"written with another than its tokenizer.json \(bytes\)"):
        PreparedCorpus.open(copied)


def test_what_is_no_prepared_corpus_says_so(tmp_path: Path, copied: Path) -> None:
    assert is_prepared(copied)
    manifest = json.loads((copied / MANIFEST).read_text())
    write_json(copied / MANIFEST, manifest | {"version": 9})
    with pytest.raises(InputError, match=r"must have version 1 of its format, but '.*' has 9"):
        PreparedCorpus.open(copied)
    write_json(copied / MANIFEST, {key: manifest[key] for key in manifest if key != "train"})
    with pytest.raises(InputError, match=r"manifest must be whole, but '.*' has no 'train'"):
        PreparedCorpus.open(copied)
    (copied / MANIFEST).write_text("{}")
    with pytest.raises(InputError, match="manifest must be one of a prepared corpus"):
        PreparedCorpus.open(copied)
    (copied / MANIFEST).unlink()
    assert not is_prepared(copied)
    with pytest.raises(
        InputError, match=r"must have a manifest.json, but '.*' has none; run 'attractor data prepare SOURCE"
    ):
        PreparedCorpus.open(copied)
    with pytest.raises(InputError, match="must be a folder"):
        PreparedCorpus.open(tmp_path / "nowhere")
