"""Tokenizers for Hugging Face's tools give our token ids for any text, before and after they are saved."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from attractor.corpus import bpe
from attractor.corpus.tokenizer import ByteTokenizer, Tokenizer, restore
from attractor.hf.tokenizers import as_fast_tokenizer
from papers.coupled_qk.glue import TokenizedSplit

WORDS = ["the", "then", "other", "mother", "an", "sand", "12", "2024", "it's", "we'll", "naïve", "日本", "...", "!!"]
TEXTS = [" ".join(random.Random(seed).choices(WORDS, k=200)) + "\n\n" for seed in range(50)]


def with_a_beginning() -> bpe.BytePairs:
    """Build a tokenizer like Llama's: special tokens have other names, and one of them is put before every text."""
    definition = json.loads(bpe.train(iter(TEXTS), 280).definition)
    definition["model"]["vocab"].pop("<|endoftext|>")
    for token, name in ((0, "</s>"), (280, "<s>"), (281, "<pad>")):
        definition["model"]["vocab"][name] = token
        definition["added_tokens"].append(dict(definition["added_tokens"][0], id=token, content=name))
    del definition["added_tokens"][0]
    definition["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [280], "tokens": ["<s>"]}},
    }
    return bpe.BytePairs(json.dumps(definition).encode(), "with-a-beginning")


OURS: dict[str, Tokenizer] = {
    "bytes": ByteTokenizer(),
    "trained": bpe.train(iter(TEXTS), 300),
    "with-a-beginning": with_a_beginning(),
}
THEIRS = {name: as_fast_tokenizer(tokenizer, model_max_length=1024) for name, tokenizer in OURS.items()}
every = pytest.mark.parametrize("name", OURS)
SPELLED = st.lists(st.sampled_from(["<|endoftext|>", "<|pad|>", "</s>", "<s>", " the", "\n", "é"])).map("".join)


@every
@settings(max_examples=60)
@given(text=st.text() | SPELLED)
def test_ids_and_text_are_ours(name: str, text: str) -> None:
    ours, theirs = OURS[name], THEIRS[name]
    ids = ours.encode(text).tolist()
    assert theirs(text)["input_ids"] == ids
    assert theirs.decode(ids) == ours.decode(ids)


@every
@settings(max_examples=60)
@given(data=st.data())
def test_any_ids_are_decoded_to_the_same_text(name: str, data: st.DataObject) -> None:
    """Criterion: decoding agrees even for bytes that are not UTF-8 and special tokens between them, as a model may
    sample."""
    ours, theirs = OURS[name], THEIRS[name]
    ids = data.draw(st.lists(st.integers(0, ours.n_spelled - 1), max_size=20))
    assert theirs.decode(ids) == ours.decode(ids)


@every
def test_specials_have_our_ids(name: str) -> None:
    ours, theirs = OURS[name], THEIRS[name]
    assert theirs.eos_token_id == theirs.bos_token_id == ours.end_of_text
    assert theirs.pad_token_id == ours.pad
    assert len(theirs) == ours.n_spelled <= ours.vocab_size
    assert theirs.model_max_length == 1024


@every
def test_batches_are_padded_on_the_left(name: str) -> None:
    theirs = THEIRS[name]
    batch = theirs(["the mother", "an"], padding=True)
    short = theirs("an")["input_ids"]
    n_padded = len(batch["input_ids"][0]) - len(short)
    assert batch["input_ids"][1] == [theirs.pad_token_id] * n_padded + short
    assert batch["attention_mask"][1] == [0] * n_padded + [1] * len(short)
    assert set(batch) == {"input_ids", "attention_mask"}  # only arguments that our models accept


@every
def test_a_pair_is_joined_as_glue_joins_it(name: str) -> None:
    ours, theirs = OURS[name], THEIRS[name]
    first, second = (ours.encode(text) for text in ("the mother", "an it's"))
    bounds = np.array([[0, len(first), len(first) + len(second)]])
    part = TokenizedSplit(np.concatenate([first, second]), bounds, np.zeros(1))
    for length in (3, 5, 40):
        sequence = part.sequence(0, length, ours.end_of_text).tolist()
        assert theirs("the mother", "an it's", truncation=True, max_length=length)["input_ids"] == sequence


@every
def test_a_saved_and_loaded_tokenizer_is_the_same(name: str, tmp_path: Path) -> None:
    ours, theirs = OURS[name], THEIRS[name]
    theirs.save_pretrained(tmp_path)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in (*TEXTS[:3], "<|endoftext|> </s>", "", " \n"):
        assert again(text)["input_ids"] == ours.encode(text).tolist()
    assert again.padding_side == "left"
    assert (again.pad_token_id, again.eos_token_id) == (ours.pad, ours.end_of_text)
    assert again.model_max_length == 1024


def test_the_saved_file_is_a_tokenizer_of_ours_again(tmp_path: Path) -> None:
    """Criterion: the tokenizer is restored from tokenizer.json alone, the file that `attractor import` reads."""
    THEIRS["trained"].save_pretrained(tmp_path)
    again = restore((tmp_path / "tokenizer.json").read_bytes(), "again")
    assert again.vocab_size == OURS["trained"].vocab_size
    for text in TEXTS[:3]:
        assert again.encode(text).tolist() == OURS["trained"].encode(text).tolist()


def test_a_million_bytes_without_a_space_are_encoded_in_a_second() -> None:
    text = "a" * 1_000_000
    assert len(THEIRS["bytes"](text)["input_ids"]) == len(text)
