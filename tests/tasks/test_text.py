"""Text corpora: which files are read, which text is held out, and how unusable input is refused."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attractor.corpus.documents import CORPORA
from attractor.corpus.prepare import Preparation, prepare
from attractor.corpus.tokenizer import END_OF_TEXT, ByteTokenizer
from attractor.tasks.text import Text, load_corpus, split, tokenizer_of
from tiers import fast_alone


def texts_in(tokens: np.ndarray) -> list[str]:
    return ByteTokenizer().decode(tokens).split("<|endoftext|>")


@given(st.lists(st.binary(min_size=1, max_size=4), min_size=1, max_size=30))
def test_no_text_is_on_both_sides_and_none_is_lost(texts: list[bytes]) -> None:
    train, valid = split([(str(i), text) for i, text in enumerate(texts)])
    if len(set(texts)) == 1:
        assert train[0] + valid[0] == texts[0]
    else:
        assert train
        assert valid
        assert not set(train) & set(valid)
        assert sorted(train + valid) == sorted(texts)


def test_about_a_tenth_is_held_out() -> None:
    _, valid = split([(str(i), str(i).encode()) for i in range(2000)])
    assert 0.08 < len(valid) / 2000 < 0.12


def test_a_new_document_moves_no_other_to_the_other_side() -> None:
    documents = [(str(i), str(i).encode()) for i in range(200)]
    _, before = split(documents[:150])
    _, after = split(documents)
    assert set(before) == set(after) & {text for _, text in documents[:150]}


def test_a_single_document_holds_out_its_last_tenth_from_a_line_break_on(tmp_path: Path) -> None:
    lines = [f"line {i:03}\n" for i in range(100)]
    (tmp_path / "one.txt").write_text("".join(lines))
    corpus = load_corpus(tmp_path / "one.txt")
    assert texts_in(corpus.train) == ["".join(lines[:90])]
    assert texts_in(corpus.valid) == ["".join(lines[90:])]


def test_a_split_without_a_line_break_keeps_characters_whole() -> None:
    for n in range(10, 40):
        (head,), (tail,) = split([("one", ("é€" * n).encode())])
        assert head.decode() + tail.decode() == "é€" * n


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_line_separates_documents_in_a_txt_file(tmp_path: Path, newline: str) -> None:
    texts = [f"document {i} says <|endoftext|> in passing{newline}" for i in range(12)]
    (tmp_path / "many.txt").write_bytes(f"<|endoftext|>{newline}".join(texts).encode())
    corpus = load_corpus(tmp_path / "many.txt")
    assert corpus.n_documents == 12
    n_separators = [np.count_nonzero(side == END_OF_TEXT) for side in (corpus.train, corpus.valid)]
    assert sum(n_separators) == 10, "they stand between the documents of a side, never at its ends"


def test_binary_files_in_a_folder_are_skipped_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words\n" * 10)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0")
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    with pytest.warns(UserWarning, match=r"skipped 2 binary file\(s\) in .*, the first is 'latin.txt'"):
        assert load_corpus(tmp_path).n_documents == 1


def test_the_fingerprint_follows_the_text(tmp_path: Path) -> None:
    fingerprints = set()
    for name, text in {"a": "one\ntwo\n", "b": "one\ntwo\n", "c": "one\ntoo\n"}.items():
        (tmp_path / f"{name}.txt").write_text(text)
        fingerprints.add(load_corpus(tmp_path / f"{name}.txt").fingerprint)
    assert len(fingerprints) == 2


@pytest.mark.parametrize("name", fast_alone(CORPORA, "stdlib-code"))
def test_the_built_in_corpora_need_nothing_but_python(name: str) -> None:
    corpus = load_corpus(name)
    assert corpus.n_documents > 100
    assert 0.02 < len(corpus.valid) / (len(corpus.train) + len(corpus.valid)) < 0.3
    assert load_corpus(name) is corpus, "runs in one process must share the corpus"
    assert not corpus.train.flags.writeable


def test_the_text_task_keeps_the_contract(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("".join(f"line {i:03}\n" for i in range(100)))
    task = Text(str(tmp_path / "one.txt")).build(seq_len=16, seed=0)
    inputs, targets, _ = task.train_batch(step=5, batch_size=4)
    assert inputs.shape == targets.shape == (4, 16)
    assert np.array_equal(inputs[:, 1:], targets[:, :-1])
    assert sum(len(batch.inputs) for batch in task.valid_batches(batch_size=2)) == 5
    assert task.metric == "perplexity"
    assert task.demands["vocab_size"] > inputs.max()
    assert task.fingerprint == load_corpus(tmp_path / "one.txt").fingerprint
    assert "1 documents, 900 bytes; 810 training and 90 validation tokens in windows of 16" in task.describe()


def test_the_seed_orders_training_and_never_changes_the_held_out_set() -> None:
    first, second = (Text("stdlib-code").build(seq_len=32, seed=seed) for seed in (0, 1))
    assert not np.array_equal(first.train_batch(0, 4)[0], second.train_batch(0, 4)[0])
    for one, other in zip(first.valid_batches(4, 3), second.valid_batches(4, 3), strict=True):
        assert np.array_equal(one[0], other[0])


def test_a_prepared_folder_does_not_replace_a_built_in_corpus_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("".join(f"{n} cubed is {n**3}.\n" for n in range(300)))
    monkeypatch.chdir(tmp_path)
    prepare(Preparation("a.txt", Path("stdlib-docs"), "bpe:300"))
    assert tokenizer_of("stdlib-docs").name == "bytes"
    assert tokenizer_of("./stdlib-docs").name == "bpe:300"
