"""Needles: real text around the lines, one scored answer a sequence, distances, and draws that depend on the number."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from attractor.tasks.needle import ANSWER, KEYS, LINE, VALUES, Needle
from attractor.tasks.task import NOT_SCORED
from attractor.tasks.text import Text

LENGTH = 96


def lines_in(tokens: np.ndarray) -> list[int]:
    """Return the places where a line with a key begins: a new line, an @, a key and an =."""
    text = bytes(tokens.astype(np.uint8))
    return [
        at
        for at in range(len(text) - ANSWER)
        if text[at : at + 2] == b"\n@" and text[at + 2] in KEYS and text[at + ANSWER : at + ANSWER + 1] == b"="
    ]


@given(n=st.integers(1, 6), gap=st.integers(0, 50), seed=st.integers(0, 2**64 - 1), step=st.integers(0, 30))
def test_the_answer_is_the_value_of_the_asked_key_far_enough_behind(n: int, gap: int, seed: int, step: int) -> None:
    task = Needle(n_needles=n, least_gap=gap).build(LENGTH, seed)
    text = Text().build(LENGTH, seed).train_batch(step, 8)
    batch = task.train_batch(step, 8)
    for tokens, targets, around in zip(batch.inputs, batch.targets, text.inputs, strict=True):
        (scored,) = np.flatnonzero(targets != NOT_SCORED)
        *needles, question = [at for at in lines_in(tokens) if at <= scored][-n - 1 :]
        assert question + ANSWER == scored
        told = {tokens[at + 2]: tokens[at + len(LINE) - 1] for at in needles}
        assert len(told) == n
        assert set(told.values()) <= set(VALUES.tolist())
        assert targets[scored] == told[tokens[question + 2]]
        end = needles[-1] + len(LINE)
        assert question - end >= gap
        written = np.zeros(LENGTH, dtype=bool)
        written[needles[0] : end] = written[question : scored + 1] = True
        assert np.array_equal(tokens[~written], around[~written]), "all other bytes are those of the text"


def test_places_keys_and_values_are_drawn_evenly() -> None:
    """With two spare places the needle stands at 0, 1 or 2; each value and each key is as frequent as the others."""
    length = len(LINE) + ANSWER + 1 + 10 + 2
    batch = Needle(least_gap=10).build(length, 0).train_batch(0, 12_000)
    counts = np.bincount(batch.targets[batch.targets != NOT_SCORED], minlength=128)[VALUES]
    assert abs(counts - 750).max() < 5 * 750**0.5
    first = np.array([lines_in(tokens)[0] for tokens in batch.inputs[:3_000]])
    assert abs(np.bincount(first, minlength=3) - 1_000).max() < 5 * 1_000**0.5
    keys = np.bincount([tokens[at + 2] for tokens, at in zip(batch.inputs, first, strict=False)], minlength=128)[KEYS]
    assert abs(keys - 3_000 / 26).max() < 5 * (3_000 / 26) ** 0.5


def test_validation_is_the_same_for_every_seed_and_batch_size() -> None:
    tasks = [Needle(n_needles=2).build(LENGTH, seed) for seed in (0, 1)]
    parts = [
        [np.concatenate(arrays) for arrays in zip(*[batch[:2] for batch in task.valid_batches(size, n)], strict=True)]
        for task, size, n in ((tasks[0], 12, 2), (tasks[1], 8, 3))
    ]
    assert all(np.array_equal(*pair) for pair in zip(*parts, strict=True))
    assert not np.array_equal(tasks[0].train_batch(0, 4).inputs, tasks[1].train_batch(0, 4).inputs)
    assert np.array_equal(tasks[0].train_batch(1, 4).inputs, tasks[0].train_batch(0, 8).inputs[4:])


def test_the_data_are_identified_by_text_number_of_needles_and_gap(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a line of another text\n" * 200)
    configs = [Needle(), Needle(n_needles=2), Needle(least_gap=5), Needle(corpus=str(tmp_path / "text.txt"))]
    tasks = [config.build(LENGTH, 0) for config in configs]
    assert len({task.fingerprint for task in tasks}) == 4
    assert tasks[2].describe().endswith("; a question at least 5 bytes behind the last of 1 lines with values")
    assert tasks[0].demands["vocab_size"] == 320
