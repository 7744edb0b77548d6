"""MQAR: the structure of every sequence, its distributions, and the independence of examples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attractor.tasks.epochs import philox_draws
from attractor.tasks.recall import LEVELS, N_VALID, PLACES_APART, Recall, RecallExamples, mqar
from attractor.tasks.task import NOT_SCORED


@st.composite
def arguments(draw: st.DrawFn) -> dict[str, object]:
    """Draw arguments down to the shortest sequences and smallest vocabularies that the number of pairs allows."""
    n_pairs, gap = draw(st.integers(1, 12)), draw(st.sampled_from(sorted(PLACES_APART)))
    distance = {"least_gap": draw(st.integers(0, 9)), "delay": draw(st.integers(0, 5))}
    length = (2 + PLACES_APART[gap]) * n_pairs + sum(distance.values()) + draw(st.integers(0, 30))
    vocab_size = 2 * n_pairs + draw(st.integers(0, 40))
    own = {"seed": draw(st.integers(0, 2**64 - 1)), "power_a": draw(st.floats(-5, 5))}
    return own | distance | {"length": length, "n_pairs": n_pairs, "vocab_size": vocab_size, "gap": gap}


@given(arguments())
def test_a_sequence_is_pairs_then_queries_among_fillers(given_arguments: dict) -> None:
    tokens, labels = mqar(5, **given_arguments)
    n, half, delay = given_arguments["n_pairs"], given_arguments["vocab_size"] // 2, given_arguments["delay"]
    assert tokens.shape == labels.shape == (5, given_arguments["length"])
    assert tokens.dtype == labels.dtype == np.int64
    assert tokens.min() >= 0
    assert tokens.max() < given_arguments["vocab_size"]
    for row, label in zip(tokens, labels, strict=True):
        keys, values, rest = row[0 : 2 * n : 2], row[1 : 2 * n : 2], row[2 * n :]
        assert len(set(keys)) == n
        assert len(set(values)) == n
        assert keys.max() < half <= values.min()
        assert sorted(rest[np.isin(rest, keys)]) == sorted(keys), "a key stands behind the pairs as its query alone"
        assert not np.isin(rest[: given_arguments["least_gap"]], keys).any(), "the gap holds no query"
        answer = dict(zip(keys, values, strict=True))
        asked = [answer.get(token, NOT_SCORED) for token in rest]
        assert label.tolist() == [NOT_SCORED] * (2 * n + delay) + asked[: len(asked) - delay]
        assert asked[len(asked) - delay :] == [NOT_SCORED] * delay, "every query has its answer within the sequence"


@given(arguments())
def test_power_gaps_are_even_numbers_as_in_the_literature(given_arguments: dict) -> None:
    first = 2 * given_arguments["n_pairs"] + given_arguments["least_gap"] + given_arguments["delay"]
    _, labels = mqar(5, **given_arguments | {"gap": "power", "length": first + 2 * given_arguments["n_pairs"] + 9})
    assert not ((np.nonzero(labels != NOT_SCORED)[1] - first) % 2).any()


def worst_z(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Return the largest distance of a count from its expectation, in standard deviations."""
    n = counts.sum()
    return float(np.abs((counts - n * probabilities) / np.sqrt(n * probabilities * (1 - probabilities))).max())


@pytest.mark.parametrize("column", [0, 1, 6, 7])
def test_keys_and_values_are_uniform_at_every_pair(column: int) -> None:
    tokens, _ = mqar(20_000, 20, 4, 20, seed=1)
    counts = np.bincount(tokens[:, column], minlength=20)
    assert worst_z(counts[10:] if column % 2 else counts[:10], np.full(10, 0.1)) < 4.5


def test_keys_and_values_are_independent() -> None:
    tokens, _ = mqar(20_000, 20, 4, 20, seed=2)
    counts = np.bincount(10 * tokens[:, 4] + tokens[:, 5] - 10, minlength=100)
    assert worst_z(counts, np.full(100, 0.01)) < 4.5


def test_fillers_are_uniform_over_all_symbols_but_the_keys() -> None:
    """With two pairs of ten symbols, a filler is one of the three keys outside the sequence or one of the five
    values."""
    tokens, labels = mqar(20_000, 12, 2, 10, seed=3)
    fillers = tokens[:, 4:][labels[:, 4:] == NOT_SCORED]
    counts = np.bincount(fillers, minlength=10)
    assert abs(counts[5:].sum() / len(fillers) - 5 / 8) < 0.01
    assert worst_z(counts[5:], np.full(5, 0.2)) < 4.5


def first_two_places(gap: str, power_a: float, length: int) -> np.ndarray:
    """Return where the queries of the first and second key are, counted in places from the end of the pairs."""
    tokens, labels = mqar(30_000, length, 2, 40, seed=4, gap=gap, power_a=power_a)
    asked = [np.argmax((tokens == tokens[:, [2 * i]]) & (labels != NOT_SCORED), axis=1) for i in (0, 1)]
    return (np.stack(asked) - 4) // PLACES_APART[gap]


@pytest.mark.parametrize(
    ("gap", "power_a", "length"), [("uniform", 0.01, 8), ("power", 0.01, 12), ("power", 1.0, 12), ("power", 2.5, 12)]
)
def test_gaps_follow_successive_draws_by_weight(gap: str, power_a: float, length: int) -> None:
    """Criterion: the probability of each ordered pair of places follows the definition. One place is drawn by weight,
    and then one of the others."""
    weights = np.arange(1.0, 5.0) ** (power_a - 1) if gap == "power" else np.ones(4)
    weights /= weights.sum()
    chances = weights[:, None] * weights[None, :] / (1 - weights[:, None])
    np.fill_diagonal(chances, 0)
    first, second = first_two_places(gap, power_a, length)
    counts = np.bincount(4 * first + second, minlength=16).reshape(4, 4)
    assert not counts.diagonal().any()
    possible = ~np.eye(4, dtype=bool)
    assert worst_z(counts[possible], chances[possible]) < 4.5


def test_extreme_powers_stay_finite() -> None:
    for power_a, place in ((-1e6, 0), (1e6, 9)):
        _, labels = mqar(10, 22, 1, 4, seed=0, gap="power", power_a=power_a)
        assert (np.nonzero(labels != NOT_SCORED)[1] == 2 + 2 * place).all()


@settings(max_examples=30)
@given(arguments(), st.integers(0, 2**40), st.integers(1, 20))
def test_any_slice_can_be_drawn(given_arguments: dict, first: int, count: int) -> None:
    whole = mqar(count + 3, **given_arguments, first=first)
    part = mqar(count, **given_arguments, first=first + 3)
    for side in (0, 1):
        assert np.array_equal(whole[side][3:], part[side])


def test_drawing_in_chunks_changes_no_example() -> None:
    """The test draws more examples than fit into one chunk."""
    tokens, labels = mqar(1200, 64, 4, 64, seed=5)
    for first in (0, 990, 1199):
        alone = mqar(1, 64, 4, 64, seed=5, first=first)
        assert all(map(np.array_equal, (tokens[[first]], labels[[first]]), alone))


def test_no_two_examples_or_seeds_are_alike() -> None:
    tokens = np.concatenate([mqar(500, 64, 4, 64, seed=seed)[0] for seed in (0, 1, 2**63)])
    assert len(np.unique(tokens, axis=0)) == 1500


def test_no_random_number_is_used_twice() -> None:
    n_raw = RecallExamples(64, 4, 64, seed=0).n_raw
    raw = [philox_draws(seed, stream, np.arange(40), n_raw) for seed in (0, 1) for stream in range(3)]
    assert len(np.unique(raw)) == np.size(raw)


def test_the_data_never_change_between_versions() -> None:
    tokens, labels = mqar(1, 12, 2, 8, seed=7)
    assert tokens.tolist() == [[3, 5, 0, 6, 0, 7, 5, 6, 3, 5, 6, 4]]
    assert {at: labels[0, at] for at in np.flatnonzero(labels != NOT_SCORED)} == {4: 6, 8: 5}


@pytest.mark.parametrize("level", LEVELS)
def test_every_level_builds_the_named_setting(level: str) -> None:
    config = Recall(level=level)
    task = config.build(config.seq_len, seed=0)
    inputs, targets, real = task.train_batch(step=3, batch_size=2)
    named = LEVELS[level]
    assert inputs.shape == targets.shape == (2, named.length)
    assert ((targets != NOT_SCORED).sum(axis=1) == named.n_pairs).all()
    assert real is None
    assert task.demands == {"vocab_size": named.symbols, "n_classes": None}
    assert task.n_tokens == (named.n_examples * named.length or None)
    assert task.name == f"mqar:{level}"
    assert f"{named.n_pairs} pairs" in task.describe()


def test_fields_override_the_level() -> None:
    config = Recall(level="hard", length=100, n_pairs=3, symbols=20, gap="power", n_examples=7)
    task = config.build(100, seed=0)
    assert task.name == "mqar:100x3x20"
    assert task.demands == {"vocab_size": 20, "n_classes": None}
    assert task.n_tokens == 700
    assert task.train_batch(0, 4).inputs.shape == (4, 100)
    assert Recall(level="zoology-64", n_examples=0).build(64, 0).n_tokens is None


def test_distance_changes_the_data_and_what_identifies_them() -> None:
    """Without distance, the stored configuration and the fingerprint are those of versions that did not know it."""
    plain, far = Recall(), Recall(least_gap=20, delay=2)
    assert not {"least_gap", "delay"} & plain.to_dict().keys()
    assert Recall.from_dict({k: v for k, v in far.to_dict().items() if k != "kind"}) == far
    assert plain.build(64, 0).fingerprint.startswith("da66c742")
    assert far.build(64, 0).fingerprint != plain.build(64, 0).fingerprint
    assert "from 20 tokens behind the pairs on, answers 2 later" in far.build(64, 0).describe()


@pytest.mark.parametrize("distance", [{}, {"least_gap": 20, "delay": 2}])
def test_training_draws_the_examples_of_its_seed(distance: dict[str, int]) -> None:
    batch = Recall(**distance).build(64, seed=9).train_batch(step=5, batch_size=8)
    assert all(map(np.array_equal, batch[:2], mqar(8, 64, 4, 64, seed=9, first=40, **distance)))


def test_validation_is_the_same_for_every_seed_and_batch_size_and_separate_from_training() -> None:
    tasks = [Recall().build(64, seed) for seed in (0, 1)]
    batches = tasks[0].valid_batches(24, 2), tasks[1].valid_batches(16, 3)
    held_out = [np.concatenate([batch.inputs for batch in of_task]) for of_task in batches]
    assert np.array_equal(*held_out)
    training = [task.train_batch(0, 48).inputs for task in tasks]
    fixed = Recall(n_examples=48).build(64, 0).train_batch(0, 48).inputs
    assert len(np.unique(np.concatenate([held_out[0], *training, fixed]), axis=0)) == 4 * 48
    assert sum(len(batch.inputs) for batch in Recall().build(64, 0).valid_batches(128)) == N_VALID


def test_a_fixed_set_is_one_set_that_seeds_visit_in_different_orders() -> None:
    epochs = [Recall(n_examples=30).build(64, seed).train_batch(step, 30).inputs for seed in (0, 1) for step in (0, 1)]
    for epoch in epochs[1:]:
        assert not np.array_equal(epoch, epochs[0])
        assert np.array_equal(np.unique(epoch, axis=0), np.unique(epochs[0], axis=0))
    assert len(np.unique(epochs[0], axis=0)) == 30


def test_the_fingerprint_follows_the_settings_and_not_the_seed() -> None:
    configs = [Recall(), Recall(symbols=128), Recall(gap="power"), Recall(gap="power", power_a=0.5), Recall(n_pairs=5)]
    assert len({config.build(64, 0).fingerprint for config in configs}) == 5
    assert Recall().build(64, 0).fingerprint == Recall().build(64, 1).fingerprint


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 6))
def test_measures_are_exact_answers_and_whole_sequences(seed: int, n_rows: int, n_columns: int) -> None:
    rng = np.random.default_rng(seed)
    targets = rng.choice([NOT_SCORED, 0, 1], (n_rows, n_columns))
    targets[0, 0] = 1
    predictions = rng.integers(0, 2, (n_rows, n_columns))
    rows = zip(predictions.tolist(), targets.tolist(), strict=True)
    right = [[p == t for p, t in zip(*row, strict=True) if t != NOT_SCORED] for row in rows]
    scored = [row for row in right if row]
    measured = Recall().build(64, 0).measure(targets, predictions)
    assert measured["accuracy"] == pytest.approx(np.mean([answer for row in scored for answer in row]))
    assert measured["sequence_accuracy"] == pytest.approx(np.mean([all(row) for row in scored]))
