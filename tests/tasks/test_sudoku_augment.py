"""Random symmetric copies of boards are the same sudokus, with solutions that stay right."""

import numpy as np
import pytest

from attractor.tasks.sudoku import Sudoku, generate
from attractor.tasks.sudoku.augment import symmetric_copies
from attractor.tasks.sudoku.board import BOXES, is_solved
from attractor.tasks.sudoku.symmetry import hashes

GIVENS = {4: 7, 6: 16, 9: 36}


def copies_of_one(size: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    pair = (np.repeat(grid, n, axis=0) for grid in generate(1, GIVENS[size], seed=3, size=size))
    boards, solutions = symmetric_copies(tuple(pair), 0, np.arange(n))
    return boards, solutions


@pytest.mark.parametrize("size", GIVENS)
def test_a_copy_is_the_same_sudoku_and_its_solution_stays_right(size: int) -> None:
    """Criterion: all copies have the hash of the board, solutions keep the rules, and givens agree."""
    boards, solutions = copies_of_one(size, 20)
    assert is_solved(solutions).all()
    assert ((boards == 0) | (boards == solutions)).all()
    assert (np.count_nonzero(boards, axis=(1, 2)) == GIVENS[size]).all()
    assert (hashes(boards, solutions) == hashes(*generate(1, GIVENS[size], seed=3, size=size))).all()
    assert len(np.unique(boards, axis=0)) > 10


@pytest.mark.parametrize("size", GIVENS)
def test_every_kind_of_symmetry_occurs(size: int) -> None:
    """Criterion: rows become columns for about half of the copies, or never where boxes are not square; rows of a band
    stay together; and every digit becomes every other about equally often."""
    n, height = 2000, BOXES[size][0]
    rows, columns = np.indices((size, size))
    marks = tuple(np.repeat((x[None] // height if x is rows else x[None]) + 1, n, axis=0) for x in (rows, columns))
    bands, _ = symmetric_copies(marks, 0, np.arange(n))
    in_rows = (bands == bands[:, :, :1]).all(axis=(1, 2))
    share = 0.5 if BOXES[size][0] == BOXES[size][1] else 1.0
    assert abs(in_rows.mean() - share) < (0.05 if share < 1 else 1e-9)
    of_bands = bands[in_rows, :, 0].reshape(in_rows.sum(), -1, height)
    assert (of_bands == of_bands[:, :, :1]).all()
    places = np.arange(1, size + 1)[None, :, None] + np.zeros((n, 1, size), dtype=int)
    (moved,) = symmetric_copies((places,), 1, np.arange(n))
    top = moved[(moved == moved[:, :, :1]).all(axis=(1, 2)), 0, 0]
    assert np.bincount(top, minlength=size + 1)[1:].min() > 0.6 * len(top) / size


def test_a_copy_is_a_function_of_seed_and_sample() -> None:
    pair = generate(6, 30, seed=0)
    whole = symmetric_copies(pair, 5, np.arange(6))
    part = symmetric_copies(tuple(grid[2:4] for grid in pair), 5, np.arange(2, 4))
    assert all(np.array_equal(a[2:4], b) for a, b in zip(whole, part, strict=True))
    assert not np.array_equal(whole[0], symmetric_copies(pair, 6, np.arange(6))[0])


def test_only_training_boards_are_replaced_and_epochs_have_new_copies() -> None:
    config = Sudoku(board_size=4, n_boards=6, n_valid_boards=3, augment=True)
    task, plain = config.build(16, 0), Sudoku(board_size=4, n_boards=6, n_valid_boards=3).build(16, 0)
    n = len(task.sets.train)
    assert task.fingerprint == plain.fingerprint
    for ours, theirs in zip(task.valid_batches(3), plain.valid_batches(3), strict=True):
        assert np.array_equal(ours.inputs, theirs.inputs)
    first, again, later = task.train_batch(0, n), task.train_batch(0, n), task.train_batch(1, n)
    assert np.array_equal(first.inputs, again.inputs)
    assert not np.array_equal(np.sort(first.inputs, axis=0), np.sort(later.inputs, axis=0))
    assert not np.array_equal(first.inputs, plain.train_batch(0, n).inputs)
    halves = [task.train_batch(step, n // 2) for step in (0, 1)] if n % 2 == 0 else [first]
    assert np.array_equal(np.concatenate([half.inputs for half in halves]), first.inputs)


def test_the_field_is_stored_only_where_it_is_used() -> None:
    assert "augment" not in Sudoku().to_dict()
    assert Sudoku.from_dict({"augment": True}).augment
