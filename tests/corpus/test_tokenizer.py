"""The byte tokenizer restores every text and every byte."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attractor.corpus.tokenizer import END_OF_TEXT, PAD, ByteTokenizer
from attractor.errors import InputError

tokenizer = ByteTokenizer()


@given(st.text())
def test_text_survives_the_round_trip(text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.binary())
def test_bytes_survive_as_tokens(raw: bytes) -> None:
    tokens = tokenizer.encode(raw)
    assert tokens.dtype == np.uint16
    assert tokens.astype(np.uint8).tobytes() == raw
    assert tokenizer.decode(tokens) == raw.decode(errors="replace")


def test_specials_are_rendered_as_their_names_and_text_cannot_forge_them() -> None:
    assert tokenizer.decode([104, 105, END_OF_TEXT, PAD]) == "hi<|endoftext|><|pad|>"
    assert tokenizer.encode("<|endoftext|>").max() < END_OF_TEXT
    assert tokenizer.vocab_size > PAD
    assert tokenizer.vocab_size % 64 == 0, "padded for the matrix kernels"


@pytest.mark.parametrize("token", [-1, 258, 319])
def test_an_id_without_meaning_is_named(token: int) -> None:
    with pytest.raises(InputError, match=f"token id must be between 0 and 257, but is {token}"):
        tokenizer.decode([104, token])
