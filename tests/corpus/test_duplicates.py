"""Planted duplicates are found, other documents are not, and a document's sketch depends on its text alone."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attractor.corpus import duplicates
from attractor.corpus.duplicates import NEAR, SAMPLED, find, sketch


class Side:
    """Present texts as one side of a corpus, in portions of three documents."""

    def __init__(self, texts: list[bytes]) -> None:
        self.keys, self.n_hashes, self._hashes = sketch(texts)

    def sketches(self) -> Iterator[tuple[int, int, np.ndarray]]:
        ends = np.concatenate(([0], np.cumsum(self.n_hashes)))
        for first in range(0, len(self.keys), 3):
            behind = min(first + 3, len(self.keys))
            yield first, behind, self._hashes[ends[first] : ends[behind]]


def words(seed: int, n: int) -> list[str]:
    return [f"w{i}" for i in np.random.default_rng(seed).integers(0, 5000, n)]


def text(parts: list[str], between: str = " ") -> bytes:
    return between.join(parts).encode()


@given(st.lists(st.text(alphabet="ab \n\té", min_size=0, max_size=40).map(str.encode), min_size=1, max_size=8))
def test_a_sketch_depends_on_the_text_alone(texts: list[bytes]) -> None:
    keys, sizes, hashes = sketch(texts)
    ends = np.cumsum(sizes)
    for i, each in enumerate(texts):
        key, size, own = sketch([each])
        assert (key[0], size[0]) == (keys[i], sizes[i])
        assert np.array_equal(own, hashes[ends[i] - sizes[i] : ends[i]])
    equal_words = {each: tuple(each.split()) for each in texts}
    for i, one in enumerate(texts):
        for j, other in enumerate(texts):
            assert (keys[i] == keys[j]) == (equal_words[one] == equal_words[other])


def test_a_sketch_is_a_sample_of_all_runs_of_words() -> None:
    """Criterion: the sampled hashes are those of the sketches of every run of five words alone."""
    parts = words(0, 2000)
    _, sizes, hashes = sketch([text(parts)])
    assert sizes[0] == pytest.approx(2000 / SAMPLED, rel=0.25)
    alone = {int(h) for i in range(len(parts) - 4) for h in sketch([text(parts[i : i + 5])])[2]}
    assert set(hashes.tolist()) == alone


def test_planted_duplicates_are_found_and_nothing_else() -> None:
    valid = [words(seed, 400) for seed in range(20)]
    edited = list(valid[5])
    edited[::25] = ["changed"] * len(edited[::25])
    train = {
        "strange": text(words(100, 400)),
        "exact": text(valid[3]),
        "other spaces": text(valid[4], "\n\n "),
        "edited": text(edited),
        "a third": text(valid[6][:130] + words(101, 270)),
        "quoted whole": text(words(102, 5000) + valid[7] + words(103, 5000)),
        "a piece": text(valid[8][50:250]),
        "short": b"w1 w2 w3",
    }
    found = find(Side(list(train.values())), Side([text(parts) for parts in valid]))
    names = [list(train)[i] for i in found.train]
    assert names == ["exact", "other spaces", "edited", "quoted whole", "a piece"]
    assert found.valid.tolist() == [3, 4, 5, 7, 8]
    assert found.exact.tolist() == [True, True, False, False, False]
    assert (found.share >= NEAR).all()
    assert found.share[-1] == pytest.approx(1.0, abs=0.05)


def test_a_phrase_in_every_document_makes_no_duplicates() -> None:
    phrase = [f"licence{i}" for i in range(60)]
    valid = [text(phrase + words(seed, 400)) for seed in range(30)]
    train = [text(phrase + words(seed, 400)) for seed in range(100, 130)]
    assert not len(find(Side(train), Side(valid)).train)


def test_a_side_too_large_is_sampled_more_thinly(monkeypatch: pytest.MonkeyPatch) -> None:
    valid = [text(words(seed, 4000)) for seed in range(20)]
    train = [text(words(50, 4000)), valid[12] + b" end", valid[3]]
    monkeypatch.setattr(duplicates, "MOST_HASHES", 2600)
    found = find(Side(train), Side(valid))
    assert found.sampled == 4 * SAMPLED
    assert (found.train.tolist(), found.valid.tolist(), found.exact.tolist()) == ([1, 2], [12, 3], [False, True])


def test_texts_of_a_word_or_none_are_no_near_duplicates() -> None:
    found = find(Side([b"a", b"b b", b" "]), Side([b"b  b", b"c"]))
    assert (found.train.tolist(), found.valid.tolist()) == ([1], [0])
