"""Recognise boards that are the same sudoku, by hashes that no symmetry changes.

The symmetries relabel digits, transpose, and exchange bands, stacks, rows or columns. Where boxes are not square, as at
size 6, transposing would change the boxes, so it is no symmetry there.

Two rows define a permutation of the digits: the digit in one goes to the digit in the other of the same column.
Exchanging columns does not change it and relabelling conjugates it, so its cycle type is a property of the two rows.

    (1)  a row's hash follows from its cycle types with the rows of its band and with all others; likewise a column's
    (2)  a cell begins with the hashes of its row and column, and with whether it is a given
    (3)  a cell takes up the sums over its row, its column, its box and all cells of its digit, ROUNDS times
    (4)  a board's hash is that of the sum over its cells
    (5)  where transposing is a symmetry, the hashes of the board and of its transpose are added
    (6)  at sizes 4 and 6, whose grids are few, those with each of the digits marked are added

Equivalent boards have equal hashes. Boards that are not equivalent have different ones but for rare cases, in which a
board is taken for another: 6 of the 49 grids of size 6, but no puzzle of size 4 in the tests.
"""

import numpy as np

from attractor.tasks.sudoku.board import BOXES

ROUNDS = 4
SMALL = (4, 6)
BOARDS_AT_ONCE = 256


def hashes(boards: np.ndarray, solutions: np.ndarray) -> np.ndarray:
    """Return a number for each board (n x size x size, 0 is blank); whole grids are their own solutions."""
    parts = range(0, len(boards), BOARDS_AT_ONCE)
    of_parts = [_hashes(boards[i : i + BOARDS_AT_ONCE], solutions[i : i + BOARDS_AT_ONCE]) for i in parts]
    return np.concatenate([np.zeros(0, dtype=np.uint64), *of_parts])


def _hashes(boards: np.ndarray, solutions: np.ndarray) -> np.ndarray:
    total = np.zeros(len(boards), dtype=np.uint64)
    size = boards.shape[1]
    height, width = BOXES[size]
    marks = range(1, size + 1) if size in SMALL else (0,)
    for grids, given in [(solutions, boards > 0), (solutions.mT, (boards > 0).mT)][: 1 + (height == width)]:  # (5)
        lines = _mixed(_lines(grids, height))[:, :, None] + _mixed(_lines(grids.mT, width), 1)[:, None, :]
        for digit in marks:  # (6)
            total += _refined(_mixed(lines + given.astype(np.uint64) + _mixed(grids == digit)), grids)
    return total


def _refined(cells: np.ndarray, grids: np.ndarray) -> np.ndarray:
    """Return the hash (4) of boards whose cells begin with these hashes."""
    n, size, _ = grids.shape
    height, width = BOXES[size]
    digits = (np.arange(n)[:, None] * size + grids.reshape(n, -1) - 1).ravel()
    for _ in range(ROUNDS):  # (3)
        boxes = cells.reshape(n, size // height, height, size // width, width).sum((2, 4))
        by_digit = np.zeros(n * size, dtype=np.uint64)
        np.add.at(by_digit, digits, cells.ravel())
        cells = _mixed(
            _mixed(cells)
            + _mixed(cells.sum(2, keepdims=True), 1)
            + _mixed(cells.sum(1, keepdims=True), 2)
            + _mixed(boxes.repeat(height, axis=1).repeat(width, axis=2), 3)
            + _mixed(by_digit[digits].reshape(cells.shape), 4)
        )
    return _mixed(cells.sum((1, 2)))  # (4)


def _lines(grids: np.ndarray, in_band: int) -> np.ndarray:
    """Return the hash (1) of every row, n x size."""
    n, size, _ = grids.shape
    moves = np.empty((n, size, size, size), dtype=np.int64)  # for each pair of rows, where each digit goes
    upper, lower = np.broadcast_arrays(grids[:, :, None] - 1, grids[:, None] - 1)
    np.put_along_axis(moves, upper, lower, axis=-1)
    walk, types = moves, np.zeros((n, size, size), dtype=np.uint64)
    for length in range(size):  # the digits that return after so many moves determine the cycle type
        types = _mixed(types + (walk == np.arange(size)).sum(-1).astype(np.uint64), length)
        walk = np.take_along_axis(moves, walk, axis=-1)
    same_band = np.equal.outer(np.arange(size) // in_band, np.arange(size) // in_band)
    within, across = (np.where(there, types, np.uint64(0)).sum(-1) for there in (same_band, ~same_band))
    return _mixed(_mixed(within, 1) + _mixed(across, 2))


def _mixed(x: np.ndarray, kind: int = 0) -> np.ndarray:
    """Mix the bits of every number, so that sums of mixed numbers hardly ever agree by chance (splitmix64)."""
    x = x.astype(np.uint64) + np.uint64((kind + 1) * 0x9E3779B97F4A7C15 % 2**64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)))


def reordered(grids: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return np.take_along_axis(np.take_along_axis(grids, columns[:, None, :], axis=2), rows[:, :, None], axis=1)
