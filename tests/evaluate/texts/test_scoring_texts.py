"""Likelihoods of texts equal those from the model's own logits, whatever batches and windows compute them."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from attractor.corpus.in_memory import documents_at
from attractor.corpus.prepare import Preparation, prepare
from attractor.corpus.tokenizer import END_OF_TEXT
from attractor.errors import InputError
from attractor.evaluate.causal import Causal
from attractor.evaluate.texts.documents import TrainedText, texts_on
from attractor.evaluate.texts.texts import DocumentScore, TextScore, score_texts
from attractor.evaluate.texts.windows import windows
from attractor.tasks.text import Text, load_corpus
from tiny_causal import N_POSITIONS, TEXTS, bytes_causal

SHORT = [(str(i), text[: 5 + 7 * i].encode()) for i, text in enumerate(TEXTS[:6])]
LONG = ("long", "".join(TEXTS[:4]).encode())


@pytest.fixture(scope="module")
def causal() -> Causal:
    return bytes_causal()


@torch.no_grad()
def nats_of(causal: Causal, given: list[int], n_scored: int) -> float:
    """Return the negative log-likelihood of the last `n_scored` tokens, computed alone."""
    x = torch.tensor([given])
    logits = causal.model(x[:, :-1])[0][0, -n_scored:].double()
    return float(F.cross_entropy(logits, x[0, -n_scored:], reduction="sum"))


def test_a_text_that_fits_is_predicted_in_one_window(causal: Causal) -> None:
    found = score_texts(causal, SHORT)
    for (_, text), document in zip(SHORT, found.documents, strict=True):
        assert document.nats == pytest.approx(nats_of(causal, [END_OF_TEXT, *text], len(text)), rel=1e-5)
        assert document.n_tokens == document.n_bytes == len(text)
    n_bytes = sum(len(text) for _, text in SHORT)
    assert found.bits_per_byte == pytest.approx(found.nats / n_bytes / math.log(2))
    assert found.perplexity == pytest.approx(2**found.bits_per_byte)  # here a token is a byte


@pytest.mark.parametrize(("window", "stride"), [(16, 16), (16, 5), (N_POSITIONS, 1)])
def test_a_long_text_is_the_sum_of_its_windows(causal: Causal, window: int, stride: int) -> None:
    given = [END_OF_TEXT, *LONG[1]]
    found = score_texts(causal, [LONG], window, stride)
    wanted = sum(nats_of(causal, given[w.begin : w.end + 1], w.n_scored) for w in windows(len(LONG[1]), window, stride))
    assert found.nats == pytest.approx(wanted, rel=1e-5)


def test_scores_do_not_depend_on_the_batch(causal: Causal) -> None:
    alone, *others = (score_texts(causal, [LONG, *SHORT], 16, 5, batch_size=n) for n in (1, 4, None))
    for other in others:
        for document, same in zip(alone.documents, other.documents, strict=True):
            assert same.nats == pytest.approx(document.nats, rel=1e-5)
    with pytest.raises(InputError, match="batch_size must be at least 1"):
        score_texts(causal, SHORT, batch_size=0)


def test_without_a_start_token_the_first_token_counts_as_a_uniform_guess(causal: Causal) -> None:
    found = score_texts(replace(causal, start=None), SHORT)
    for (_, text), document in zip(SHORT, found.documents, strict=True):
        wanted = math.log(causal.vocab_size) + nats_of(causal, list(text), len(text) - 1)
        assert document.nats == pytest.approx(wanted, rel=1e-5)


def test_a_model_is_scored_on_the_held_out_part_of_its_own_corpus(tmp_path: Path) -> None:
    several, one = tmp_path / "several.txt", tmp_path / "one.txt"
    several.write_text("<|endoftext|>\n".join(TEXTS))
    one.write_text("".join(TEXTS))
    for path in (several, one):
        held_out = texts_on(str(path), trained_on=[Text(str(path))])
        assert held_out.held_out
        joined = bytes([255]).join(text for _, text in held_out.documents)
        tokens = load_corpus(str(path)).valid[:]
        assert joined == bytes(255 if token == END_OF_TEXT else token for token in tokens)
        everything = texts_on(str(path))
        assert not everything.held_out
        assert list(everything.documents) == documents_at(path)


def test_a_prepared_corpus_gives_back_its_texts(tmp_path: Path) -> None:
    source = tmp_path / "texts.txt"
    source.write_text("<|endoftext|>\n".join(TEXTS))
    prepare(Preparation(str(source), tmp_path / "corpus", tokenizer="bpe:300"))
    found = texts_on(str(tmp_path / "corpus"))
    assert found.held_out
    assert {text.decode() for _, text in found.documents} < {*TEXTS, "".join(TEXTS)}
    again = texts_on(str(source), [Text(str(tmp_path / "corpus"))])
    assert (again.name, again.documents, again.held_out) == ("texts.txt", found.documents, True)
    assert not texts_on(str(source)).held_out


def test_a_file_among_those_of_a_prepared_corpus_is_said_to_be_one(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text("<|endoftext|>\n".join(TEXTS) + name)
    prepare(Preparation(str(folder), tmp_path / "corpus"))
    found = texts_on(str(folder / "a.txt"), [Text(str(tmp_path / "corpus"))])
    assert found.describe().endswith("part of corpus, most of which was trained on")


def test_missing_texts_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text(" \n")
    for name, said in (
        ("stdlib-dosc", "did you mean 'stdlib-docs'"),
        ("some/file.txt", "does not exist"),
        (str(tmp_path / "empty.txt"), "must contain text"),
    ):
        with pytest.raises(InputError, match=said):
            texts_on(name)


def test_the_data_of_a_run_are_known_from_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Criterion: only the held-out part of a training corpus is scored, from another folder and under another name."""
    corpus = tmp_path / "corp"
    corpus.mkdir()
    for number, text in enumerate(TEXTS):
        (corpus / f"{number}.txt").write_text(text)
    monkeypatch.chdir(tmp_path)
    trained = TrainedText(Text("corp"), load_corpus("corp").fingerprint)
    wanted = texts_on("corp", [trained])
    assert wanted.held_out
    within = texts_on("corp/1.txt", [trained])
    assert within.describe().endswith("part of corp, most of which was trained on")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert texts_on("../corp", [trained]) == wanted
    corpus.rename(tmp_path / "renamed")
    assert texts_on("../renamed", [trained]).documents == wanted.documents
    assert not texts_on("../renamed").held_out


@pytest.mark.parametrize(("column", "begin"), [(None, b"body"), ("title", b"title"), ("title,body", b"title")])
def test_trained_rows_are_left_out_whichever_column_is_scored(tmp_path: Path, column: str | None, begin: bytes) -> None:
    """Criterion: without a column that of the training is scored; without a training all rows are."""
    path = tmp_path / "a.jsonl"
    rows = [{"title": f"title {i}", "body": f"body {i}"} for i in range(60)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = texts_on(str(path), [Text(str(path), "body")], column)
    unseen = bytes(token if token < 256 else 10 for token in load_corpus(str(path), "body").valid[:]).split(b"\n")
    numbers = {int(text.split()[-1]) for text in unseen}
    assert found.held_out
    assert all(text.startswith(begin) for _, text in found.documents)
    assert {int(text.split()[1]) for _, text in found.documents} == numbers
    assert 0 < len(numbers) < 60
    titles = texts_on(str(path), column="title")
    assert [text.decode() for _, text in titles.documents] == [row["title"] for row in rows]


def test_an_infinite_loss_has_an_infinite_perplexity() -> None:
    found = TextScore("m", 8, 4, (DocumentScore("a", 3, 3, math.inf), DocumentScore("b", 3, 3, 1.0)))
    assert found.perplexity == found.nats_per_token == math.inf
    assert math.isnan(replace(found, documents=(DocumentScore("a", 3, 3, math.nan),)).perplexity)
