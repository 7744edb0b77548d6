"""Votes depend on the board, the seed and their number alone, and the vote with the lowest summed energy wins."""

import numpy as np
import pytest
import torch

from attractor.control import QKClip, QuacK
from attractor.equilibrium.fixed_point import Solver
from attractor.errors import InputError
from attractor.evaluate import boards as solving
from attractor.evaluate.boards.voting import lowest
from attractor.models import ItrSAConfig
from attractor.models.language_model import LanguageModel
from attractor.models.recurrent import RecurrentModel

AT = (1, 3, 6)
Pair = tuple[np.ndarray, np.ndarray]


def tokens_of(boards: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(boards.reshape(len(boards), -1))


def test_one_vote_is_the_models_own_answer_at_any_number_of_iterations(model: RecurrentModel, boards: Pair) -> None:
    votes = solving.cast_votes(model, boards[0], AT, seed=5)
    for n, predictions in zip(AT, votes.predictions, strict=True):
        with torch.no_grad():
            logits, _ = model(tokens_of(boards[0]), n_iterations=n)
        assert np.array_equal(predictions, logits.argmax(-1).numpy())
    assert not votes.winners.any()
    assert model.n_iterations == 3


def test_the_summed_energy_covers_all_states_but_the_last(model: RecurrentModel, boards: Pair) -> None:
    tokens = tokens_of(boards[0])
    with torch.no_grad():
        stimulus = model.stimulus(tokens)
        energies = np.stack([model.energy(state, stimulus).numpy() for state in model.states(tokens, max(AT))])
    votes = solving.cast_votes(model, boards[0], AT)
    for i, n in enumerate(AT):
        np.testing.assert_allclose(votes.energies[i, :, 0], energies[:n].sum(axis=0), rtol=1e-12)
        np.testing.assert_allclose(votes.last_energies[i], energies[n], rtol=1e-12)
    assert np.isfinite(votes.energies).all()


@pytest.mark.parametrize("batch_size", [1, 2, 5, 11])
def test_votes_do_not_depend_on_the_batch_size(itrsa: RecurrentModel, boards: Pair, batch_size: int) -> None:
    whole = solving.cast_votes(itrsa, boards[0], AT, n_votes=5, batch_size=1000)
    parts = solving.cast_votes(itrsa, boards[0], AT, n_votes=5, batch_size=batch_size)
    np.testing.assert_allclose(parts.energies, whole.energies, rtol=1e-10)
    for name in ("predictions", "winners"):
        assert np.array_equal(getattr(parts, name), getattr(whole, name))


def test_a_vote_is_a_function_of_its_board_its_number_and_the_seed(itrsa: RecurrentModel, boards: Pair) -> None:
    """Criterion: a vote does not change with the other boards, the number of votes or torch's generator, whose state
    stays."""
    before = torch.get_rng_state()
    of_five = solving.cast_votes(itrsa, boards[0], AT, n_votes=5, seed=1).energies
    of_two = solving.cast_votes(itrsa, boards[0][4:6], AT, n_votes=2, seed=1).energies
    np.testing.assert_allclose(of_two, of_five[:, 4:6, :2], rtol=1e-10)
    assert torch.equal(before, torch.get_rng_state())
    other = solving.cast_votes(itrsa, boards[0], AT, n_votes=5, seed=2).energies
    np.testing.assert_allclose(other[:, :, 0], of_five[:, :, 0], rtol=1e-10)  # the first vote starts without noise
    assert (other[:, :, 1:] != of_five[:, :, 1:]).all()
    assert len(np.unique(of_five[0, 0])) == 5


def test_the_lowest_summed_energy_wins(itrsa: RecurrentModel, boards: Pair) -> None:
    votes = solving.cast_votes(itrsa, boards[0], AT, n_votes=6)
    assert np.array_equal(votes.winners, votes.energies.argmin(axis=-1))
    assert votes.winners.any(), "without another winner than the first vote, this test could not fail"
    answer = solving.solve(itrsa, boards[0], AT[-1], n_votes=6)
    blanks = boards[0] == 0
    assert np.array_equal(answer.winners, votes.winners[-1])
    assert np.array_equal(answer.grids[blanks], votes.predictions[-1].reshape(blanks.shape)[blanks])
    np.testing.assert_allclose(answer.energies, votes.energies[-1], rtol=1e-12)
    of_the_winner = answer.trajectory.energies[:-1].sum(axis=0)
    np.testing.assert_allclose(of_the_winner, votes.energies[-1].min(axis=-1), rtol=1e-10)


def test_a_model_in_training_mode_answers_in_evaluation_mode(boards: Pair) -> None:
    model = ItrSAConfig(vocab_size=5, d_model=16, n_heads=2, max_seq_len=16, n_iterations=2, dropout=0.5).build(seed=0)
    model.train()
    first, second = (solving.solve(model, boards[0]).energies for _ in range(2))
    assert np.array_equal(first, second)
    assert model.training


def test_answers_contain_only_symbols_of_the_board(boards: Pair) -> None:
    model = ItrSAConfig(vocab_size=40, d_model=16, n_heads=2, max_seq_len=16).build(seed=0)
    assert solving.solve(model, boards[0], 1).grids.max() <= 4


def test_numbers_of_numpy_are_numbers(itrsa: RecurrentModel, boards: Pair) -> None:
    """Criterion: counts, rates and thresholds may come out of an array."""
    one, two = np.array([1, 2])
    puzzles = boards[0]
    ours, theirs = (solving.solve(itrsa, puzzles, count, n_votes=count) for count in (two, 2))
    assert np.array_equal(ours.grids, theirs.grids)
    solving.cast_votes(itrsa, puzzles, np.array([1, 2]))
    assert Solver("passes", two) == Solver("passes", 2)
    optimizer = torch.optim.SGD(itrsa.parameters(), lr=0.1)
    QuacK(itrsa, optimizer, tau=np.float32(one)).remove()
    QKClip(itrsa, optimizer, threshold=two).remove()


def test_impossible_requests_are_refused(itrsa: RecurrentModel, transformer: LanguageModel, boards: Pair) -> None:
    puzzles = boards[0]
    of_nine = ItrSAConfig(d_model=16, n_heads=2, d_ff=16, positions="grid", max_seq_len=81).build(seed=0).eval()
    standing = ItrSAConfig(vocab_size=5, d_model=16, n_heads=2, max_seq_len=16, blank=None).build(seed=0)
    for request, message in (
        (lambda: solving.solve(itrsa, puzzles, 0), "n_iterations must be an integer of at least 1, got 0"),
        (lambda: solving.cast_votes(itrsa, puzzles, (4, 0)), "n_iterations must be an integer of at least 1, got 0"),
        (lambda: solving.solve(itrsa, puzzles, n_votes=0), "n_votes must be an integer of at least 1, got 0"),
        (lambda: solving.solve(itrsa, puzzles, batch_size=0), "batch_size must be an integer of at least 1, got 0"),
        (lambda: solving.cast_votes(itrsa, puzzles, ()), "iterations must be at least one number"),
        (lambda: solving.solve(itrsa, puzzles[:0]), "boards must be at least one"),
        (lambda: solving.solve(transformer, puzzles), "model must be recurrent.*'transformer'; give an itrsa"),
        (lambda: solving.solve(itrsa, np.zeros((1, 9, 9), int)), "model must know 10 tokens.*vocab_size=5.*9 x 9"),
        (lambda: solving.solve(of_nine, puzzles, 2), "seq_len must be max_seq_len=81 under positions='grid', got 16"),
        (lambda: solving.solve(standing, puzzles, n_votes=2), "n_votes must be 1 where no cell starts from noise"),
    ):
        with pytest.raises(InputError, match=message):
            request()


def test_equal_energies_take_the_first_and_nan_never_wins() -> None:
    energies = np.array([[1.0, 1.0, np.nan], [np.nan, np.inf, 3.0], [np.nan, np.nan, np.nan]])
    assert lowest(energies).tolist() == [0, 2, 0]
