"""Grids have equal canonical forms if and only if a symmetry maps one to the other."""

from itertools import combinations, permutations
from math import isqrt

import numpy as np
import pytest

from attractor.errors import InputError
from attractor.tasks.sudoku import count_solutions, generate, solve
from attractor.tasks.sudoku.board import BOXES, is_solved
from attractor.tasks.sudoku.symmetry import canonical, canonical_puzzles


def n_distinct(grids: np.ndarray) -> int:
    return len(np.unique(canonical(grids), axis=0))


def disguise(grid: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Apply a random element of the symmetry group to the grid, or to the board with blanks."""
    size = len(grid)
    height, width = BOXES[size]

    def lines(in_band: int) -> np.ndarray:
        bands = random.permutation(size // in_band)
        return np.concatenate([band * in_band + random.permutation(in_band) for band in bands])

    if height == width and random.integers(2):
        grid = grid.T
    return np.concatenate([[0], 1 + random.permutation(size)])[grid[lines(height)][:, lines(width)]]


def cyclic(size: int) -> np.ndarray:
    """Return a grid with many symmetries, in which every row is the one above shifted by a box."""
    box = isqrt(size)
    rows, columns = np.indices((size, size))
    return (box * (rows % box) + rows // box + columns) % size + 1


@pytest.mark.parametrize("size", [4, 6, 9])
def test_a_canonical_grid_is_a_grid_and_its_own(size: int) -> None:
    forms = canonical(generate(15, size**2, seed=3, size=size)[1])
    assert is_solved(forms).all()
    assert np.array_equal(canonical(forms), forms)


def test_all_grids_of_size_six_have_forty_nine_canonical_forms() -> None:
    """Criterion: there are 28,200,960 grids in 49 classes, as counted in the literature.

    The test enumerates one grid of 720 * 6 * 8. Of 6! relabellings one makes the first row 1 to 6. Of 6 orders of the
    second stack, with a relabelling that keeps the first row, one begins the second row with 4 5 6. Of 8 orders of the
    rows below, one sorts rows within bands, and bands, by the first column.
    """
    rows = np.array(list(permutations(range(1, 7))), dtype=np.int8)
    above = {3: [2], 4: [2], 5: [4]}  # earlier rows whose first digit must be lower
    grids = rows[None, :1]
    for r in range(1, 6):
        grids = np.concatenate([np.repeat(grids, len(rows), axis=0), np.tile(rows, (len(grids), 1))[:, None]], axis=1)
        fits = (grids[:, :r] != grids[:, r:]).all(axis=(1, 2))
        fits &= (grids[:, above.get(r, []), 0] < grids[:, r:, 0]).all(axis=1)
        if r == 1:
            fits &= (grids[:, 1, :3] == [4, 5, 6]).all(axis=1)
        if r % 2:
            halves = grids[:, r - 1 :].reshape(-1, 2, 2, 3)
            fits &= (halves[:, 0, :, :, None] != halves[:, 1, :, None, :]).all(axis=(1, 2, 3))
        grids = grids[fits]
    assert is_solved(grids).all()
    assert len(grids) * 720 * 6 * 8 == 28_200_960
    assert n_distinct(grids) == 49


def test_grids_that_differ_in_one_cycle_of_two_digits_have_different_forms() -> None:
    """Two rows that hold the same pair of digits exchange them, so the grids share most of their rows."""
    _, grids = generate(100, 81, seed=5)
    pairs = []
    for grid in grids:
        for r, s in ((0, 1), (3, 4), (6, 7)):
            for c, d in permutations(range(9), 2):
                if grid[r, c] == grid[s, d] and grid[s, c] == grid[r, d]:
                    other = grid.copy()
                    other[[r, s], c], other[[r, s], d] = grid[[s, r], c], grid[[s, r], d]
                    pairs.append((grid, other))
    assert len(pairs) > 10
    for grid, other in pairs[:10]:
        assert is_solved(other[None]).all()
        assert n_distinct(np.stack([grid, other])) == 2


@pytest.mark.parametrize(("size", "n_givens", "n"), [(4, 6, 40), (6, 12, 30), (9, 30, 15), (16, 160, 2)])
def test_a_disguise_does_not_change_the_canonical_puzzle(size: int, n_givens: int, n: int) -> None:
    boards, solutions = generate(n, n_givens, seed=7, size=size)
    random = np.random.default_rng(0)
    forms = canonical_puzzles(boards, solutions)
    assert (np.count_nonzero(forms, axis=(1, 2)) == n_givens).all()
    assert np.array_equal(solve(forms), canonical(solutions))
    disguised = np.stack([disguise(board, random) for board in boards])
    assert np.array_equal(canonical_puzzles(disguised, solve(disguised)), forms)


def test_symmetries_of_a_grid_do_not_change_its_canonical_puzzles() -> None:
    """Several symmetries map a symmetric grid to its canonical grid, and the givens must decide between them."""
    random = np.random.default_rng(3)
    grid = cyclic(9)
    board = grid * (random.random(grid.shape) < 0.6)
    disguised = np.stack([disguise(board, random) for _ in range(40)])
    assert len(np.unique(canonical_puzzles(disguised, solve(disguised)), axis=0)) == 1


def test_all_puzzles_with_four_givens_have_thirteen_canonical_forms() -> None:
    """Criterion: the count is exact, as for grids; 25,728 boards of size 4 with four givens have one solution."""
    grids = np.array(
        [
            [[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]],
            [[1, 2, 3, 4], [3, 4, 1, 2], [2, 3, 4, 1], [4, 1, 2, 3]],
        ]
    )
    orbits = [96, 192]
    assert n_distinct(grids) == 2
    places = np.zeros((1820, 16), dtype=int)
    np.put_along_axis(places, np.array(list(combinations(range(16), 4))), 1, axis=1)
    n_boards, n_puzzles = 0, 0
    for grid, orbit in zip(grids, orbits, strict=True):
        boards = places.reshape(-1, 4, 4) * grid
        boards = boards[count_solutions(boards) == 1]
        n_boards += orbit * len(boards)
        n_puzzles += len(np.unique(canonical_puzzles(boards, np.broadcast_to(grid, boards.shape)), axis=0))
    assert (n_boards, n_puzzles) == (25_728, 13)


def test_what_has_no_canonical_form_is_refused() -> None:
    boards, solutions = generate(3, 40, seed=6)
    for wrong in (solutions[:2], solutions[::-1]):
        with pytest.raises(InputError, match="solutions must be one for each of 3 boards and repeat its givens"):
            canonical_puzzles(boards, wrong)
    with pytest.raises(InputError, match="grid 1 is not"):
        canonical(np.stack([solutions[0], boards[1], solutions[2]]))
    rows, columns = np.indices((16, 16))
    grid = ((4 * (rows % 4) + rows // 4) ^ columns) + 1  # its symmetries are too many: pairs exchange digits everywhere
    with pytest.raises(InputError, match="at most 1,000,000 trials"):
        canonical(grid[None])
    assert canonical(boards[:0]).shape == canonical_puzzles(boards[:0], boards[:0]).shape == (0, 9, 9)
