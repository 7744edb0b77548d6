"""With K starts for each board, the answer of the lowest energy wins."""

import numpy as np
import pytest

from attractor.errors import InputError
from attractor.tasks.sudoku import lowest_energy


@pytest.mark.parametrize("shape", [(81,), (9, 9), ()])
def test_every_board_gets_its_own_lowest_answer(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    boards, energies = random.integers(0, 10, (7, *shape)), random.normal(size=35)
    repeated = np.repeat(boards, 5, axis=0)
    assert np.array_equal(lowest_energy(repeated, energies, 5), boards)
    answers = np.arange(35)
    chosen = lowest_energy(answers, energies, 5)
    assert (chosen // 5 == np.arange(7)).all()
    assert (energies[chosen] == energies.reshape(7, 5).min(axis=1)).all()


def test_equal_energies_take_the_first_and_nan_never_wins() -> None:
    energies = np.array([1.0, 1.0, np.nan, np.nan, np.inf, 3.0, np.nan, np.nan, np.nan])
    assert lowest_energy(np.arange(9), energies, 3).tolist() == [0, 5, 6]


def test_one_start_needs_no_vote() -> None:
    answers = np.arange(12).reshape(4, 3)
    assert np.array_equal(lowest_energy(answers, np.zeros(4), 1), answers)


def test_arrays_of_the_wrong_size_are_refused() -> None:
    for answers, energies, n_starts in [
        ((6, 81), (5,), 3),
        ((7, 81), (7,), 3),
        ((6, 81), (6, 1), 3),
        ((6, 81), (6,), 0),
    ]:
        with pytest.raises(InputError, match="answers and energies must be n_starts"):
            lowest_energy(np.zeros(answers), np.zeros(energies), n_starts)
