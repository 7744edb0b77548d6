"""Boards as arrays, and their candidates as bit masks.

A board is an array of size x size integers, where 0 is a blank; a box has as many cells as a row. The candidates of a
cell are a uint16 mask with bit d - 1 for digit d. Masks have shape (cells, boards): with boards last, an operation on a
cell runs over all boards.
"""

from math import isqrt

import numpy as np

from attractor.errors import InputError, require

BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3), 16: (4, 4)}  # rows and columns of a box
SIZES = tuple(BOXES)
SYMBOLS = ".123456789ABCDEFG"
FILLED = "'"  # follows a digit that is not a given
FEWEST_KNOWN = {4: 4, 6: 8, 9: 17, 16: 55}  # givens of known boards; at size 16, fewer may be possible


def as_boards(boards: np.ndarray) -> np.ndarray:
    """Return boards as int64 of shape n x size x size, and refuse arrays that are no boards."""
    array = np.asarray(boards)
    if array.ndim != 3 or array.shape[1] != array.shape[2] or array.shape[1] not in SIZES:
        shapes = ", ".join(f"n x {size} x {size}" for size in SIZES)
        raise InputError(f"boards must have a shape out of {shapes}, got {array.shape}; reshape them")
    size = array.shape[1]
    if array.dtype.kind not in "iu" or (array.size and not 0 <= array.min() <= array.max() <= size):
        raise InputError(f"boards must hold integers from 0 (blank) to {size}; check the cells")
    return array.astype(np.int64)


def check_size(size: int, field: str = "size") -> None:
    require(size in SIZES, field, f"one of {', '.join(map(str, SIZES))}", size, "give one of them")


def in_boxes(size: int) -> tuple[int, int, int, int]:
    """Return the lengths of the axes (band, row in band, stack, column in stack), by which cells are indexed."""
    rows, columns = BOXES[size]
    return size // rows, rows, size // columns, columns


def candidates(boards: np.ndarray) -> np.ndarray:
    """Return the masks (cells, boards) of boards: a given has its digit as candidate, and a blank has all digits."""
    size = boards.shape[1]
    cells = boards.reshape(-1, size * size).T
    everything = (1 << size) - 1
    # C order: with strided boards, all later operations would take several times as long.
    return np.where(cells > 0, 1 << np.maximum(cells - 1, 0), everything).astype(np.uint16, order="C")


def digits(masks: np.ndarray) -> np.ndarray:
    """Convert masks (cells, boards) with a single bit each to boards n x size x size."""
    size = isqrt(len(masks))
    # The index of a single bit is the number of bits below it.
    return (np.bitwise_count(masks - np.uint16(1)).T.astype(np.int64) + 1).reshape(-1, size, size)


def is_solved(grids: np.ndarray) -> np.ndarray:
    """Return which grids have every digit in every row, column and box."""
    n, size = len(grids), grids.shape[1]
    boxes = grids.reshape(n, *in_boxes(size)).swapaxes(2, 3).reshape(n, size, size)
    every = np.arange(1, size + 1)
    units = np.stack([grids, grids.swapaxes(1, 2), boxes], axis=1)
    return np.asarray((np.sort(units, axis=-1) == every).all(axis=(1, 2, 3)))


def show(board: np.ndarray, givens: np.ndarray | None = None) -> str:
    """Draw a board (size x size) with lines between boxes, dots for blanks, and a ' after digits that are no givens."""
    cells = as_boards(np.asarray(board)[None])[0]
    given = cells if givens is None else as_boards(np.asarray(givens)[None])[0]
    if given.shape != cells.shape:
        raise InputError(f"givens must have the shape of the board, {cells.shape}, got {given.shape}; give its puzzle")
    height, width = BOXES[len(cells)]
    drawn = [
        [SYMBOLS[cell] + (FILLED if cell != of_givens else " ") for cell, of_givens in zip(*pair, strict=True)]
        for pair in zip(cells, given, strict=True)
    ]
    rows = ["| ".join("".join(row[i : i + width]) for i in range(0, len(row), width)).rstrip() for row in drawn]
    bands = ["\n".join(rows[i : i + height]) for i in range(0, len(rows), height)]
    rule = "+".join(["-" * (2 * width)] + ["-" * (2 * width + 1)] * (len(cells) // width - 1))
    return f"\n{rule}\n".join(bands)
