"""Documents with the same words are duplicates, and no others."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from attractor.corpus.duplicates import find, key

TEXTS = st.lists(st.text(alphabet="ab \n\té", max_size=12).map(str.encode), min_size=1, max_size=8)


def keys(texts: list[bytes]) -> np.ndarray:
    return np.array([key(text) for text in texts], dtype=np.uint64)


@given(TEXTS, TEXTS)
def test_a_duplicate_has_the_words_of_the_first_such_document_of_validation(
    train: list[bytes], valid: list[bytes]
) -> None:
    words = [text.split() for text in valid]
    expected = [(i, words.index(text.split())) for i, text in enumerate(train) if text.split() in words]
    found = find(keys(train), keys(valid))
    assert list(zip(*map(np.ndarray.tolist, found), strict=True)) == expected


def test_an_edited_copy_is_no_duplicate() -> None:
    found, twins = find(keys([b"a b c", b"a  b\n", b"b a"]), keys([b"c", b"a b"]))
    assert (found.tolist(), twins.tolist()) == ([1], [1])
