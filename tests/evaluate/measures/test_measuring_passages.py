"""Passages start at the same places for every tokenizer, are spread over the text, and have the requested number of
tokens."""

import gzip
from pathlib import Path

import pytest

from attractor.errors import InputError
from attractor.evaluate.measures.passages import passages, text_of

TEXT = "".join(f"line {i} of a text that goes on and on, and says nothing but its number, {i}.\n" for i in range(400))


def letters(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def pairs(text: str) -> list[int]:
    """Encode two letters as one token, so that a text has half as many tokens."""
    return [1000 * ord(a) + ord(b) for a, b in zip(text[::2], text[1::2], strict=False)]


def spelled(tokens: list[int]) -> str:
    return "".join(map(chr, tokens))


@pytest.mark.parametrize("seed", [0, 1])
def test_passages_are_spread_over_the_text_and_do_not_overlap(seed: int) -> None:
    found = passages(TEXT, letters, 5, 60, None, seed)
    assert found.shape == (5, 60)
    places = [TEXT.index(spelled(passage)) for passage in found.tolist()]
    for number, place in enumerate(places):
        assert len(TEXT) * number / 5 <= place <= len(TEXT) * (number + 1) / 5 - 60
        assert place == 0 or TEXT[place - 1] == "\n"


def test_the_places_depend_on_the_seed_and_not_on_the_tokenizer() -> None:
    by_letters, by_pairs = passages(TEXT, letters, 4, 40, None, 0), passages(TEXT, pairs, 4, 40, None, 0)
    assert [1000 * a + b for a, b in by_letters[:, :2].tolist()] == by_pairs[:, 0].tolist()
    assert not (by_letters == passages(TEXT, letters, 4, 40, None, 1)).all()


def test_the_first_token_is_the_start_token() -> None:
    found = passages(TEXT, letters, 3, 10, 7, 0)
    assert found.shape == (3, 10)
    assert (found[:, 0] == 7).all()
    assert (found[:, 1:] == passages(TEXT, letters, 3, 10, None, 0)[:, :9]).all()  # at the same places


def test_a_text_just_long_enough_suffices_and_a_shorter_one_is_refused() -> None:
    assert spelled(passages(TEXT[:40], letters, 2, 20, None, 0).flatten().tolist()) == TEXT[:40]
    with pytest.raises(InputError, match="2 passages of 21 tokens, one in each 20 characters, got one of 20; give a l"):
        passages(TEXT[:40], letters, 2, 21, None, 0)


def test_a_file_a_folder_and_a_corpus_have_texts(tmp_path: Path) -> None:
    (tmp_path / "any.name").write_text(TEXT, encoding="utf-8")
    assert text_of(str(tmp_path / "any.name")) == TEXT
    with gzip.open(tmp_path / "zipped.txt.gz", "wt", encoding="utf-8") as file:
        file.write(TEXT)
    assert text_of(str(tmp_path / "zipped.txt.gz")).strip() == TEXT.strip()
    assert "import" in text_of("stdlib-code")


def test_input_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes("größer".encode("latin-1"))
    with pytest.raises(InputError, match=r"must be UTF-8 text, but .*latin' has a byte at offset 2 .* UTF-8; .*iconv"):
        text_of(str(tmp_path / "latin"))
    with pytest.raises(InputError, match="does not exist; looked for in"):
        text_of(str(tmp_path / "nowhere.txt"))
    with pytest.raises(InputError, match="unknown source 'stdlib-cod'; did you mean 'stdlib-code'"):
        text_of("stdlib-cod")
