"""Descriptors of corpora are compared with their true values."""

import io
import json
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from attractor.corpus.describe import Description, Settings, describe, describe_all
from attractor.corpus.description_report import report_descriptions, report_sources, table
from attractor.corpus.documents import Document
from attractor.corpus.sampling import draw_pieces
from attractor.corpus.text_statistics import (
    compressed_size,
    compression,
    entropy,
    expected_types,
    growth,
    heaps_exponent,
    jackknife,
    mean_over_documents,
    next_word_entropy,
    register_distances,
    topical_dispersion,
    type_token_ratios,
    word_entropy,
)
from attractor.errors import InputError

SMALL = Settings(max_words=4000, piece_words=40)


def uniform(n_documents: int, n_words: int, n_types: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(n_types, size=(n_documents, n_words))


def zipf(n_documents: int, n_words: int, exponent: float, seed: int = 0) -> np.ndarray:
    """Draw words whose frequency falls with this power of their rank."""
    ranks = np.random.default_rng(seed).zipf(exponent, size=(n_documents, n_words))
    return np.unique(ranks, return_inverse=True)[1].reshape(ranks.shape)


def documents(words: np.ndarray, prefix: str = "w") -> list[Document]:
    return [(f"d{i}", " ".join(f"{prefix}{word}" for word in row).encode()) for i, row in enumerate(words)]


@given(st.lists(st.text(alphabet="ab .,é\n", max_size=60), max_size=30), st.integers(1, 10), st.integers(1, 6))
def test_pieces_have_the_requested_number_of_words(texts: list[str], n_pieces: int, piece_words: int) -> None:
    pieces = draw_pieces([(str(i), text.encode()) for i, text in enumerate(texts)], n_pieces, piece_words)
    long_enough = int((pieces.sizes >= piece_words).sum())
    assert len(pieces.texts) == min(n_pieces, long_enough)
    assert pieces.words().shape == ((len(pieces.texts), piece_words) if pieces.texts else (0,))
    assert all(any(piece in text for text in texts) for piece in pieces.texts)
    assert pieces.sizes.all(), "a document without a word is none"


@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_a_sample_does_not_depend_on_order_and_a_smaller_one_is_its_start(rng: random.Random, n: int) -> None:
    corpus = documents(uniform(40, 12, 50))
    shuffled = rng.sample(corpus, len(corpus))
    sample = draw_pieces(corpus, 40, 10)
    assert draw_pieces(shuffled, n, 10).texts == sample.texts[:n] == sample.first(n).texts


def test_words_ignore_case_and_punctuation_marks_are_words() -> None:
    pieces = draw_pieces([("a", b"The cat, the cat.")], 1, 6)
    assert pieces.words().tolist() == [[0, 1, 2, 0, 1, 3]]


@pytest.mark.parametrize("n_types", [2, 50, 1000])
def test_the_entropy_of_uniform_words_is_the_logarithm_of_their_number(n_types: int) -> None:
    words = uniform(100, 100, n_types)
    assert word_entropy(words) == pytest.approx(math.log(n_types), abs=0.01)


def test_the_entropy_of_a_zipf_sample_is_that_of_its_distribution() -> None:
    share = 1 / np.arange(1, 501)
    share /= share.sum()
    words = np.random.default_rng(0).choice(500, size=(1000, 200), p=share)
    assert word_entropy(words) == pytest.approx(-(share * np.log(share)).sum(), abs=0.01)


def test_the_correction_removes_most_of_the_bias_of_a_sample_as_small_as_its_vocabulary() -> None:
    counts = np.bincount(uniform(1, 1000, 1000).ravel())
    share = counts[counts > 0] / 1000
    plain_bias = math.log(1000) + (share * np.log(share)).sum()
    assert abs(entropy(counts) - math.log(1000)) < plain_bias / 4


def test_words_in_a_fixed_cycle_have_no_entropy_after_the_first() -> None:
    words = (np.arange(100)[None, :] + uniform(200, 1, 7)) % 7
    assert word_entropy(words) == pytest.approx(math.log(7), abs=0.01)
    assert next_word_entropy(words) == pytest.approx(0, abs=0.01)


def test_independent_words_do_not_predict_one_another() -> None:
    words = uniform(400, 100, 20)
    assert next_word_entropy(words) == pytest.approx(math.log(20), abs=0.01)


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    values = np.random.default_rng(0).normal(size=(2000, 1))
    estimate = jackknife(values, lambda v: float(v.mean()))
    assert estimate.value == values.mean()
    assert estimate.error == pytest.approx(1 / math.sqrt(2000), rel=0.4)


def test_errors_match_the_spread_of_estimates_over_samples() -> None:
    samples = [zipf(100, 50, 1.8, seed) for seed in range(40)]
    estimates = [jackknife(words, word_entropy) for words in samples]
    spread = np.std([estimate.value for estimate in estimates])
    assert np.mean([estimate.error for estimate in estimates]) == pytest.approx(spread, rel=0.35)


@settings(max_examples=30)
@given(st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=6))
def test_expected_types_are_the_mean_over_all_choices_of_documents(corpus: list[set[int]]) -> None:
    frequency = np.array([sum(word in document for document in corpus) for word in set().union(*corpus)])
    drawn = list(range(1, len(corpus) + 1))
    brute = [np.mean([len(set().union(*some)) for some in combinations(corpus, m)]) for m in drawn]
    np.testing.assert_allclose(expected_types(frequency, len(corpus), drawn), brute)


@pytest.mark.parametrize("exponent", [1.6, 2.0])
def test_zipf_words_grow_with_the_inverse_of_their_exponent(exponent: float) -> None:
    assert heaps_exponent(zipf(1000, 100, exponent)) == pytest.approx(1 / exponent, abs=0.03)


def test_growth_ends_at_the_number_of_types() -> None:
    words = uniform(100, 100, 800)
    n_words, n_types = growth(words)
    assert (n_words[-1], n_types[-1]) == pytest.approx((10_000, len(np.unique(words))))
    ratios = type_token_ratios(words)
    assert list(ratios) == [1000, 10_000]
    assert ratios[10_000] == pytest.approx(len(np.unique(words)) / 10_000)
    assert ratios[1000] == pytest.approx(800 * (1 - (1 - 1 / 800) ** 1000) / 1000, rel=0.02)


def test_topical_dispersion_is_the_mean_distance_of_two_documents() -> None:
    words = uniform(30, 20, 40)
    counts = np.stack([np.bincount(row, minlength=40) for row in words])
    vectors = counts * np.log(30 / (counts > 0).sum(axis=0))
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    distances = 1 - vectors @ vectors.T
    estimate = topical_dispersion(words)
    assert estimate.value == pytest.approx(np.mean([distances[pair] for pair in combinations(range(30), 2)]))
    without = [
        np.mean([distances[pair] for pair in combinations(range(30), 2) if left_out not in pair])
        for left_out in range(30)
    ]
    assert estimate.error == pytest.approx(np.std(without) * math.sqrt(29))


def test_two_topics_are_further_apart_than_one() -> None:
    one = uniform(200, 50, 100)
    two = one + 100 * (np.arange(200) % 2)[:, None]
    apart, together = topical_dispersion(two), topical_dispersion(one)
    assert apart.error is not None
    assert apart.value - together.value > 10 * apart.error


def test_equal_documents_have_no_dispersion() -> None:
    assert topical_dispersion(np.tile(np.arange(20), (50, 1))).value == 0.0


@pytest.mark.parametrize("n_types", [5, 60, 1000])
def test_register_dispersion_is_one_where_all_documents_have_one_distribution_of_words(n_types: int) -> None:
    estimate = mean_over_documents(register_distances(uniform(1000, 125, n_types)))
    assert estimate.error is not None
    assert abs(estimate.value - 1) < 4 * estimate.error


def test_register_dispersion_depends_on_common_words_and_not_on_topics() -> None:
    rng = np.random.default_rng(0)
    common = rng.integers(50, size=(400, 100))
    topics = 50 + 1000 * (np.arange(400) % 2)[:, None] + rng.integers(1000, size=(400, 25))
    two_topics = register_distances(np.hstack([common, topics])).mean()
    two_manners = register_distances(np.hstack([common // (1 + np.arange(400) % 2)[:, None], topics])).mean()
    assert two_topics < 1.1 < 1.5 < two_manners


def test_repeated_text_costs_almost_nothing() -> None:
    text = documents(uniform(1, 500, 1000))[0][1]
    assert compressed_size(text + text) < compressed_size(text) + 40
    repeated = compression([text.decode()] * 50)
    assert repeated.gain > 0.95
    assert repeated.alone.error == pytest.approx(0)


def test_documents_of_random_letters_do_not_compress_one_another() -> None:
    rng = np.random.default_rng(0)
    letters = ["".join(map(chr, rng.integers(97, 97 + 16, size=2000))) for _ in range(20)]
    found = compression(letters)
    assert found.alone.value == pytest.approx(4, rel=0.15)
    assert abs(found.gain) < 0.1


def test_a_description_does_not_depend_on_the_order_of_documents() -> None:
    corpus = documents(zipf(120, 60, 1.5))
    described = describe(corpus, "c", SMALL)
    assert describe(corpus[::-1], "c", SMALL) == described
    assert describe(random.Random(0).sample(corpus, len(corpus)), "c", SMALL) == described


def test_duplicate_documents_are_predicted_by_their_copies() -> None:
    once = documents(uniform(100, 40, 500))
    budget = Settings(max_words=8000, piece_words=40)
    single, double = describe(once, settings=budget), describe(once + once, settings=budget)
    assert (single.n_duplicates, double.n_duplicates) == (0, 100)
    assert double.cross_document_perplexity < single.cross_document_perplexity / 10
    assert double.compression.gain > single.compression.gain


def test_documents_that_repeat_their_own_words_gain_from_their_past() -> None:
    own = uniform(100, 40, 10) + 10 * np.arange(100)[:, None]
    shared = uniform(100, 40, 1000)
    gains = [describe(documents(words), settings=SMALL).within_document_gain.value for words in (own, shared)]
    assert gains[0] > 5
    assert abs(gains[1]) < 0.5


def test_unlike_documents_spread_the_loss() -> None:
    even = uniform(100, 40, 50)
    uneven = np.where((np.arange(100) % 2)[:, None], even % 2, even)
    spreads = [describe(documents(words), settings=SMALL).cross_document_spread.value for words in (even, uneven)]
    assert spreads[1] > 3 * spreads[0]


def test_sizes_count_all_documents_unchanged() -> None:
    lengths = [10, 20, 30, 40, 1000]
    corpus = [(str(n), b" ".join([b"word"] * n)) for n in lengths] + [("empty", b" \n")]
    sizes = describe(corpus + documents(uniform(55, 40, 9)), settings=SMALL).sizes
    assert (sizes.n_documents, sizes.n_words) == (60, 1100 + 55 * 40)
    assert sizes.mean == pytest.approx(3300 / 60)
    assert sizes.quartiles == (40, 40, 40)
    assert sizes.too_short == pytest.approx(3 / 60)


def test_corpora_side_by_side_are_measured_on_equal_samples() -> None:
    large, small = documents(uniform(300, 80, 50)), documents(uniform(50, 80, 50, seed=1))
    described = describe_all({"large": large, "small": small}, Settings(max_words=10_000, piece_words=40))
    assert [each.n_pieces for each in described] == [50, 50]
    alone = describe(large, "large", Settings(max_words=2000, piece_words=40))
    assert described[0] == alone


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"max_words": 100}, "max_words must be at least 5,000, got 100"),
        ({"piece_words": 1}, "piece_words must be at least 2, got 1"),
        ({"order": 0}, "order must be at least 1, got 0"),
        ({"max_documents": 3}, "max_documents must be at least 40, got 3"),
    ],
)
def test_settings_that_give_no_sample_are_refused(change: dict[str, int], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        Settings(**change)


def test_a_corpus_of_few_or_short_documents_is_refused_by_name() -> None:
    corpus = documents(uniform(60, 10, 5))
    with pytest.raises(InputError, match="'tiny' has 0; lower piece_words"):
        describe(corpus, "tiny", SMALL)


@pytest.fixture(scope="module")
def described() -> list[Description]:
    corpora = {"one [bold]": documents(uniform(100, 60, 300)), "two $x$": documents(zipf(100, 60, 1.5))}
    return describe_all(corpora, SMALL)


def test_the_table_has_a_column_for_each_corpus(described: list[Description]) -> None:
    console = Console(width=100, file=io.StringIO())
    console.print(table(described))
    text = console.file.getvalue()
    assert "one [bold]" in text
    assert f"{described[1].cross_document_perplexity:.1f}" in text


def test_reports_are_complete_and_reproducible(tmp_path: Path) -> None:
    corpora = {"one": documents(uniform(100, 60, 300)), "two $x$": documents(zipf(100, 60, 1.5))}
    written = []
    for folder in (tmp_path / "a" / "b", tmp_path / "c"):
        with (tmp_path / "console").open("w") as file:
            found = report_descriptions(corpora, folder, SMALL, Console(width=100, file=file), {"command": "attractor"})
        assert sorted(path.name for path in folder.iterdir()) == ["describe.json", "describe.svg"]
        written.append([path.read_bytes() for path in sorted(folder.iterdir())])
    assert written[0] == written[1]
    stored = json.loads(written[0][0])
    assert stored["command"] == "attractor"
    assert [each["name"] for each in stored["corpora"]] == ["one", "two $x$"]
    assert stored["corpora"][0]["word_entropy"]["value"] == found[0].word_entropy.value
    assert b"two $x$" in written[0][1]


def test_sources_are_described_under_the_names_of_their_files(tmp_path: Path) -> None:
    texts = [text.decode() for _, text in documents(uniform(60, 50, 90))]
    (tmp_path / "a.txt").write_text("\n<|endoftext|>\n".join(texts))
    (tmp_path / "b.v1.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:50]))
    names = [str(tmp_path / name) for name in ("a.txt", "b.v1.jsonl")]
    console = Console(file=io.StringIO())
    a, b = report_sources(names, tmp_path / "out", SMALL, console, {})
    assert (a.name, b.name) == ("a", "b")
    assert (a.n_pieces, b.sizes.n_documents) == (50, 50)
    stored = json.loads((tmp_path / "out" / "describe.json").read_text())
    assert stored["sources"]["b"]["files"][0]["name"] == "b.v1.jsonl"
    with pytest.raises(InputError, match="different names"):
        report_sources([names[0], names[0]], tmp_path / "out", SMALL, console, {})


def test_only_the_start_of_a_corpus_is_read_on_request() -> None:
    read = []

    def stream() -> Iterator[Document]:
        for document in documents(uniform(200, 50, 90)):
            read.append(document)
            yield document

    described = describe(stream(), settings=replace(SMALL, max_documents=70))
    assert len(read) == described.sizes.n_documents == 70
