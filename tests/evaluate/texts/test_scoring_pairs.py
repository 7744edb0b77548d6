"""Two models are compared on the same documents: a difference is shown where there is one, and too few are refused."""

import json

import numpy as np
import pytest

from attractor.errors import InputError
from attractor.evaluate.texts.paired_test import FEWEST, paired
from attractor.evaluate.texts.tables import lines_of_documents
from attractor.evaluate.texts.texts import DocumentScore, TextScore

N_BYTES = 100


def scored(model: str, nats_per_byte: np.ndarray) -> TextScore:
    documents = [DocumentScore(str(i), 50, N_BYTES, N_BYTES * float(nats)) for i, nats in enumerate(nats_per_byte)]
    return TextScore(model, 32, 16, tuple(documents))


def hard(n: int, seed: int = 0) -> np.ndarray:
    """Draw documents whose losses differ far more among themselves than between models."""
    return np.random.default_rng(seed).normal(2.0, 1.0, n)


def test_a_small_difference_is_shown_despite_a_large_spread() -> None:
    documents, noise = hard(20), np.random.default_rng(1).normal(0, 0.02, 20)
    test = paired(scored("new", documents), scored("old", documents + 0.05 + noise))
    assert test.difference.estimate == pytest.approx(-0.05 - noise.mean())
    assert test.difference.interval.excludes_zero
    assert test.verdict.startswith("new is better than old by 0.0")
    turned = paired(scored("old", documents + 0.05 + noise), scored("new", documents))
    assert turned.difference.p == pytest.approx(test.difference.p)
    assert turned.verdict.startswith("new is better than old by 0.0")


def test_scores_of_different_documents_are_not_paired() -> None:
    with pytest.raises(InputError, match="same documents in the same order, got '12' and 'None'"):
        paired(scored("new", hard(13)), scored("old", hard(12)))


def test_no_difference_is_reported_with_the_smallest_detectable_one() -> None:
    documents, noise = hard(12), np.random.default_rng(2).normal(0, 0.02, 12)
    test = paired(scored("new", documents), scored("old", documents + noise - noise.mean()))
    assert test.verdict.startswith("no difference shown between new and old over 12 documents")
    assert test.verdict.endswith("would have shown")
    assert "alike" in paired(scored("new", documents), scored("old", documents)).verdict


def test_chance_seldom_shows_a_difference() -> None:
    """Criterion: of models that differ by noise alone, about one in twenty is called better or worse."""
    rng, documents, n_called = np.random.default_rng(3), hard(FEWEST), 0
    for _ in range(400):
        noise_a, noise_b = rng.normal(0, 0.02, (2, FEWEST))
        test = paired(scored("a", documents + noise_a), scored("b", documents + noise_b))
        n_called += test.difference.interval.excludes_zero
    assert 5 <= n_called <= 40


@pytest.mark.parametrize("lost", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_gives_no_verdict_and_is_null_in_json(lost: float) -> None:
    documents = hard(FEWEST)
    new = scored("new", np.append(documents[1:], lost))
    test = paired(new, scored("old", documents))
    assert test.verdict == "no verdict on new and old: a document has no finite loss; evaluate with --dtype fp32"
    assert json.loads([*lines_of_documents([new])][-1])["nats"] is None


def test_too_few_documents_are_refused() -> None:
    few = hard(FEWEST - 1)
    with pytest.raises(InputError, match=f"at least {FEWEST}"):
        paired(scored("new", few), scored("old", few + 1))
