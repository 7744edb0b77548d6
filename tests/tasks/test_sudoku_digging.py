"""Generated boards have one solution and the requested givens, and each is a function of the seed and its index."""

import hashlib

import numpy as np
import pytest

from attractor.tasks.sudoku import add_givens, count_solutions, generate
from attractor.tasks.sudoku.board import is_solved

DIGESTS = {4: "12b4805405c61526", 6: "165550065aef7302", 9: "ccdeb8c49d54d1ac", 16: "df782056b9d7a536"}


def n_givens_of(boards: np.ndarray) -> np.ndarray:
    return np.count_nonzero(boards, axis=(1, 2))


@pytest.mark.parametrize(("n", "n_givens", "size"), [(40, 4, 4), (20, 10, 6), (12, 25, 9), (2, 81, 9), (2, 120, 16)])
def test_boards_have_the_requested_givens_and_one_solution(n: int, n_givens: int, size: int) -> None:
    boards, solutions = generate(n, n_givens, seed=0, size=size)
    assert boards.shape == solutions.shape == (n, size, size)
    assert (n_givens_of(boards) == n_givens).all()
    assert is_solved(solutions).all()
    assert ((boards == 0) | (boards == solutions)).all()
    assert (count_solutions(boards) == 1).all()


@pytest.mark.slow
def test_a_board_depends_on_the_seed_and_its_index_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    many, _ = generate(20, 25, seed=7)
    few, _ = generate(3, 25, seed=7)
    assert np.array_equal(few, many[:3])
    monkeypatch.setattr("attractor.tasks.sudoku.digging.GRIDS_AT_ONCE", 7)
    narrow, _ = generate(20, 25, seed=7)
    assert np.array_equal(narrow, many)
    other, _ = generate(3, 25, seed=8)
    assert not (other == few).all(axis=(1, 2)).any()


@pytest.mark.parametrize(("size", "n_givens"), [(4, 5), (6, 14), (9, 28), (16, 150)])
def test_the_boards_of_a_seed_never_change(size: int, n_givens: int) -> None:
    """A resumed run generates its data again."""
    digest = hashlib.sha256()
    for drawn in generate(3, n_givens, seed=3, size=size):
        digest.update(drawn.astype(np.uint8).tobytes())
    assert digest.hexdigest()[:16] == DIGESTS[size]


def test_every_number_of_givens_in_a_range_occurs() -> None:
    boards, solutions = generate(80, (31, 42), seed=1)
    assert set(n_givens_of(boards)) == set(range(31, 43))
    assert len(np.unique(solutions, axis=0)) == 80
    assert np.array_equal(generate(2, [31, 42], seed=1)[0], boards[:2])
    assert generate(0, 30, seed=0)[0].shape == (0, 9, 9)


def test_cells_and_digits_are_used_evenly() -> None:
    boards, _ = generate(300, 40, seed=2)
    assert abs((boards > 0).mean(axis=0) - 40 / 81).max() < 0.15, "the standard deviation is 0.03"
    counts = np.bincount(boards.ravel(), minlength=10)[1:]
    assert counts.min() > 0.9 * counts.max()


def test_givens_are_added_from_the_solution_up_to_the_requested_number() -> None:
    boards, solutions = generate(24, (24, 30), seed=3)
    fuller = add_givens(boards, solutions, (26, 34), seed=0)
    assert (fuller == boards)[boards > 0].all()
    assert ((fuller == 0) | (fuller == solutions)).all()
    assert n_givens_of(fuller).min() >= 26
    assert n_givens_of(fuller).max() <= 34
    assert len(set(n_givens_of(fuller))) > 4
    assert np.array_equal(add_givens(boards[:5], solutions[:5], (26, 34), seed=0), fuller[:5])
    assert np.array_equal(add_givens(boards, solutions, 10, seed=0), boards), "a board that has more stays as it is"
