"""Byte-pair encodings restore any text, keep text from forging special tokens, and agree with the faster encoder."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attractor.corpus import bpe
from attractor.corpus.tokenizer import ByteTokenizer, load_tokenizer, restore
from attractor.errors import InputError

pytest.importorskip("tokenizers")

WORDS = ["the", "then", "there", "other", "mother", "an", "and", "sand", "ab", "abab", "12", "123", "2024", "it's"]
WORDS += ["we'll", "don't", "naïve", "日本", "...", "!!"]
TEXTS = [" ".join(random.Random(seed).choices(WORDS, k=200)) + "\n\n" for seed in range(50)]
TRAINED = bpe.train(iter(TEXTS), 300)


def write_pair(folder: Path) -> Path:
    """Write the trained tokenizer in GPT-2's format."""
    model = json.loads(TRAINED.definition)["model"]
    (folder / "encoder.json").write_text(json.dumps(model["vocab"]))
    lines = [" ".join(pair) for pair in model["merges"]]
    (folder / "vocab.bpe").write_text("#version: 0.2\n" + "\n".join(lines) + "\n")
    return folder


@settings(max_examples=30)
@given(st.text())
def test_text_survives_the_round_trip(text: str) -> None:
    assert TRAINED.decode(TRAINED.encode(text)) == text


@given(st.lists(st.text(alphabet=st.sampled_from("abehnort '\n\t129.é日<|>"), max_size=60), max_size=5))
def test_the_faster_encoder_gives_the_same_ids(texts: list[str]) -> None:
    pytest.importorskip("tiktoken")
    assert TRAINED._tiktoken is not None
    plain = TRAINED._rust.encode_batch(texts, add_special_tokens=False)
    assert [ids.tolist() for ids in TRAINED.encode_batch(texts)] == [encoding.ids for encoding in plain]


def test_the_faster_encoder_is_refused_where_it_would_differ(tmp_path: Path) -> None:
    """The tokens are 'ab', 'bc' and 'abc', and only 'ab' + 'c' merge to 'abc'. The rule for 'bc' comes first, so an
    encoder that follows the merges in order never reaches 'abc'."""
    alphabet = [*bpe._alphabet(), "bc", "ab", "abc"]
    (tmp_path / "vocab.json").write_text(json.dumps({spelling: i for i, spelling in enumerate(alphabet)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nb c\na b\nab c\n")
    odd = load_tokenizer(str(tmp_path))
    assert isinstance(odd, bpe.BytePairs)
    assert odd._tiktoken is None
    assert odd.encode("abc").tolist() == [odd.encode("a")[0], odd.encode("bc")[0]]


@pytest.mark.parametrize("sign", ["a", " ", "^", "\n", "1"])
def test_a_long_run_of_one_character_is_encoded(sign: str) -> None:
    assert TRAINED.decode(TRAINED.encode(sign * 100_000)) == sign * 100_000


def test_text_cannot_forge_the_end_of_text() -> None:
    ids = TRAINED.encode("a<|endoftext|>b")
    assert TRAINED.end_of_text not in ids
    assert TRAINED.decode([*ids, TRAINED.end_of_text]) == "a<|endoftext|>b<|endoftext|>"


def test_training_gives_the_wanted_size_and_the_same_tokenizer_twice() -> None:
    assert TRAINED.vocab_size == 300
    assert bpe.train(iter(TEXTS), 300).definition == TRAINED.definition
    with pytest.raises(InputError, match=r"must have from 257 tokens.*, got 'bpe:100'"):
        bpe.train(iter(TEXTS), 100)


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), TRAINED], ids=["bytes", "bpe"])
def test_a_definition_restores_the_tokenizer(tokenizer: ByteTokenizer | bpe.BytePairs) -> None:
    again = restore(tokenizer.definition, tokenizer.name)
    assert again.fingerprint == tokenizer.fingerprint
    for name in ("vocab_size", "end_of_text", "pad"):
        assert getattr(again, name) == getattr(tokenizer, name)
    for text in TEXTS[:3]:
        assert np.array_equal(again.encode(text), tokenizer.encode(text))
        assert np.array_equal(tokenizer.encode_batch([text, ""])[0], tokenizer.encode(text))


def test_a_gpt2_pair_and_a_tokenizer_json_are_found_in_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = load_tokenizer(str(write_pair(tmp_path)))
    assert pair.vocab_size == 300
    assert pair.encode(TEXTS[0]).tolist() == TRAINED.encode(TEXTS[0]).tolist()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tokenizer.json").write_bytes(TRAINED.definition)
    assert load_tokenizer(str(tmp_path / "other")).fingerprint == TRAINED.fingerprint
    assert load_tokenizer(str(tmp_path / "other" / "tokenizer.json")).name == "other"
    monkeypatch.chdir(tmp_path / "other")
    assert load_tokenizer("tokenizer.json").name == "other"
    # A run on bytes, or a corpus prepared as bytes, has such a file in its folder.
    (tmp_path / "bytes").mkdir()
    (tmp_path / "bytes" / "tokenizer.json").write_bytes(ByteTokenizer.definition)
    for place in (tmp_path / "bytes", tmp_path / "bytes" / "tokenizer.json"):
        assert isinstance(load_tokenizer(str(place)), ByteTokenizer)


def test_gpt2_is_found_in_the_folder_of_the_environment_variable_or_the_files_to_fetch_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub as hub

    monkeypatch.setenv(bpe.GPT2_FOLDER, str(write_pair(tmp_path)))
    assert load_tokenizer("gpt2").name == "gpt2"
    monkeypatch.delenv(bpe.GPT2_FOLDER)
    monkeypatch.setattr(bpe, "reachable", lambda: False)
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *_: None)
    with pytest.raises(InputError, match=r"'gpt2' must be downloaded, but .* cannot be reached; fetch encoder.json"):
        load_tokenizer("gpt2")


def test_the_end_of_a_turn_ends_documents_where_nothing_else_does() -> None:
    """Criterion: a chat tokenizer needs no further token, and a name that ends documents comes first."""
    import tokenizers

    for names, end in ((["a", "<|im_end|>"], 1), (["<|im_end|>", "</s>"], 1)):
        vocabulary = {name: token for token, name in enumerate(names)}
        words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=names[0]))
        loaded = restore(words.to_str().encode(), "words")
        assert (loaded.end_of_text, loaded.vocab_size) == (end, 2)


def test_a_vocabulary_without_an_end_gets_one(tmp_path: Path) -> None:
    import tokenizers

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "words.json"))
    loaded = load_tokenizer(str(tmp_path / "words.json"))
    assert (loaded.name, loaded.end_of_text, loaded.pad, loaded.vocab_size) == ("words", 3, 3, 4)
    assert loaded.encode("b a").tolist() == [1, 0]
    assert restore(loaded.definition, "words").fingerprint == loaded.fingerprint


def test_what_is_no_tokenizer_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "tokenizer.json").write_text("{}")
    for name, message in {
        "gpt3": "unknown tokenizer 'gpt3'; did you mean 'gpt2'",
        "bpe:8192": "'bpe:8192' must first be trained on a corpus",
        "missing/tokenizer.json": "'missing/tokenizer.json' does not exist",
        str(tmp_path): "must be JSON of the tokenizers library",
        str(tmp_path / "empty"): r"folder must hold tokenizer.json, vocab.json with merges.txt",
    }.items():
        with pytest.raises(InputError, match=message):
            load_tokenizer(name)


def test_an_id_without_meaning_is_named() -> None:
    with pytest.raises(InputError, match="token id must be between 0 and 299, but is 300"):
        TRAINED.decode([3, 300])
