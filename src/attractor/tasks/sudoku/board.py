"""Boards as arrays, and their candidates as bit masks.

A board is size x size integers, 0 is blank; a box has as many cells as a row. Its candidates are a uint16 mask for each
cell, with bit d - 1 for digit d, in arrays of shape (cells, boards): with boards last, an operation on a cell runs over
all of them.
"""

from math import isqrt

import numpy as np

from attractor.errors import InputError

BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3), 16: (4, 4)}  # rows and columns of a box
SIZES = tuple(BOXES)
FEWEST_KNOWN = {4: 4, 6: 8, 9: 17, 16: 55}  # givens that have left one solution; at size 16 fewer are not ruled out


def as_boards(boards: np.ndarray) -> np.ndarray:
    """Those boards as int64 of shape n x size x size; what is none is refused."""
    found = np.asarray(boards)
    if found.ndim != 3 or found.shape[1] != found.shape[2] or found.shape[1] not in SIZES:
        shapes = ", ".join(f"n x {size} x {size}" for size in SIZES)
        raise InputError(f"boards must have a shape out of {shapes}, got {found.shape}; reshape them")
    size = found.shape[1]
    if found.dtype.kind not in "iu" or (found.size and not 0 <= found.min() <= found.max() <= size):
        raise InputError(f"boards must hold integers from 0 (blank) to {size}; check the cells")
    return found.astype(np.int64)


def check_size(size: int, field: str = "size") -> None:
    if size not in SIZES:
        raise InputError(f"{field} must be one of {', '.join(map(str, SIZES))}, got {size}; give one of them")


def in_boxes(size: int) -> tuple[int, int, int, int]:
    """Cells as (band, row in band, stack, column in stack): the lengths of these axes."""
    rows, columns = BOXES[size]
    return size // rows, rows, size // columns, columns


def candidates(boards: np.ndarray) -> np.ndarray:
    """Masks (cells, boards): a given has its own digit, a blank has all."""
    size = boards.shape[1]
    cells = boards.reshape(-1, size * size).T
    everything = (1 << size) - 1
    # In C order: with boards strided, everything that follows would take several times as long.
    return np.where(cells > 0, 1 << np.maximum(cells - 1, 0), everything).astype(np.uint16, order="C")


def digits(masks: np.ndarray) -> np.ndarray:
    """Boards n x size x size of masks (cells, boards) that have one bit each."""
    size = isqrt(len(masks))
    # The bits below a single bit are as many as its index.
    return (np.bitwise_count(masks - np.uint16(1)).T.astype(np.int64) + 1).reshape(-1, size, size)


def is_solved(grids: np.ndarray) -> np.ndarray:
    """Which grids have every digit in every row, column and box."""
    n, size = len(grids), grids.shape[1]
    boxes = grids.reshape(n, *in_boxes(size)).swapaxes(2, 3).reshape(n, size, size)
    every = np.arange(1, size + 1)
    units = np.stack([grids, grids.swapaxes(1, 2), boxes], axis=1)
    return np.asarray((np.sort(units, axis=-1) == every).all(axis=(1, 2, 3)))
