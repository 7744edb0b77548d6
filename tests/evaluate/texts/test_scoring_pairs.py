"""Two models are compared on the same documents: a difference is shown where there is one, and too few are refused."""

import json

import numpy as np
import pytest

from attractor.errors import InputError
from attractor.evaluate.texts.paired_test import FEWEST, in_words, paired
from attractor.evaluate.texts.tables import lines_of_documents
from attractor.evaluate.texts.texts import DocumentScore, TextScore

N_BYTES = 100


def scored(model: str, nats_per_byte: np.ndarray) -> TextScore:
    documents = [DocumentScore(str(i), 50, N_BYTES, N_BYTES * float(nats)) for i, nats in enumerate(nats_per_byte)]
    return TextScore(model, 32, 16, tuple(documents))


def hard(n: int, seed: int = 0) -> np.ndarray:
    """Draw documents whose losses differ far more among themselves than between models."""
    return np.random.default_rng(seed).normal(2.0, 1.0, n)


def test_the_better_model_is_named_from_either_side_despite_a_large_spread_of_documents() -> None:
    documents, noise = hard(20), np.random.default_rng(1).normal(0, 0.02, 20)
    new, old = scored("new", documents), scored("old", documents + 0.05 + noise)
    verdict, turned = paired(new, old), paired(old, new)
    assert verdict.difference == pytest.approx(-0.05 - noise.mean())
    assert turned.p == pytest.approx(verdict.p)
    assert (verdict.outcome, turned.outcome) == ("better", "worse")
    assert in_words(verdict).startswith("new against old: better, -0.05")
    assert "nats per byte. Shown by 20 pairs of documents (p < 0.001)" in in_words(verdict)


def test_scores_of_different_documents_are_not_paired() -> None:
    with pytest.raises(InputError, match="same documents in the same order, got '12' and 'None'"):
        paired(scored("new", hard(13)), scored("old", hard(12)))


def test_noise_decides_nothing_and_equal_models_are_said_to_be_equal() -> None:
    documents, noise = hard(12), np.random.default_rng(2).normal(0, 0.02, 12)
    verdict = paired(scored("new", documents), scored("old", documents + noise - noise.mean()))
    assert verdict.outcome == "undecided"
    assert "Not shown by 12 pairs of documents, which show a true difference of" in in_words(verdict)
    assert "all of which are equal" in in_words(paired(scored("new", documents), scored("old", documents)))


@pytest.mark.parametrize("lost", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_gives_no_verdict_and_is_null_in_json(lost: float) -> None:
    documents = hard(FEWEST)
    new = scored("new", np.append(documents[1:], lost))
    verdict = paired(new, scored("old", documents))
    assert in_words(verdict) == (
        "new against old: undecided. A document has no finite loss; evaluate with --precision fp32."
    )
    assert json.loads([*lines_of_documents([new])][-1])["nats"] is None


def test_too_few_documents_are_refused() -> None:
    few = hard(FEWEST - 1)
    with pytest.raises(InputError, match=f"at least {FEWEST}"):
        paired(scored("new", few), scored("old", few + 1))
