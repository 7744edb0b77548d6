"""The trajectory of a board: its grids and energies at every iteration."""

import numpy as np
import pytest
import torch

from attractor.evaluate import boards as solving
from attractor.models.recurrent import RecurrentModel

Pair = tuple[np.ndarray, np.ndarray]


def test_a_trajectory_holds_the_answer_after_each_number_of_iterations(model: RecurrentModel, boards: Pair) -> None:
    puzzles, _ = boards
    answer = solving.solve(model, puzzles, 5, batch_size=3)
    trajectory, blank = answer.trajectory, puzzles == 0
    assert trajectory.grids.shape == (6, *puzzles.shape)
    for n in range(1, 6):
        with torch.no_grad():
            logits, _ = model(torch.from_numpy(puzzles.reshape(len(puzzles), -1)), n_iterations=n)
        assert np.array_equal(trajectory.grids[n][blank], logits.argmax(-1).numpy().reshape(puzzles.shape)[blank])
    assert (trajectory.grids[:, ~blank] == puzzles[~blank]).all()
    assert np.array_equal(answer.grids, trajectory.grids[-1])
    np.testing.assert_allclose(answer.energies[:, 0], trajectory.energies[:-1].sum(axis=0), rtol=1e-12)


def test_changed_cells_and_violated_rules_are_counted(boards: Pair) -> None:
    puzzles, solutions = boards
    wrong = solutions.copy()
    wrong[:, 0, 0] = wrong[:, 0, 1]  # violates the rule of a row, a box and a column
    grids = np.stack([wrong, wrong, solutions])
    trajectory = solving.Trajectory(grids, np.zeros(grids.shape[:2]))
    assert trajectory.n_changing.tolist() == [[0] * len(puzzles), [1] * len(puzzles)]
    assert (trajectory.n_broken[:2] == 3).all()
    assert not trajectory.n_broken[2].any()


def test_accuracy_is_measured_on_blanks(itrsa: RecurrentModel, boards: Pair) -> None:
    """Criterion: with the model's own answers as solutions, the accuracy is 1. After one changed blank, one board and
    one cell count as wrong."""
    puzzles, _ = boards
    cast = solving.cast_votes(itrsa, puzzles, (2, 4)).predictions
    answers = np.where(puzzles > 0, puzzles, cast[1].reshape(puzzles.shape)).astype(int)
    point = solving.accuracy_over_time(itrsa, puzzles, answers, (4,))[0]
    assert (point.n_iterations, point.board_accuracy, point.cell_accuracy) == (4, 1.0, 1.0)
    where = tuple(np.argwhere(puzzles[2] == 0)[0])
    answers[2][where] = answers[2][where] % 4 + 1
    earlier, point = solving.accuracy_over_time(itrsa, puzzles, answers, (4, 2))
    assert point.board_accuracy == pytest.approx(1 - 1 / len(puzzles))
    assert point.cell_accuracy == pytest.approx(1 - 1 / (puzzles == 0).sum())
    assert (earlier.n_iterations, point.n_iterations) == (2, 4)
    assert 0 < earlier.seconds < point.seconds
