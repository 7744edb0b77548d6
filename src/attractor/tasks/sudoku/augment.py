"""Replace boards by random symmetric copies: the same sudokus with other digits in other places.

A copy relabels the digits, exchanges bands, stacks, rows of a band and columns of a stack, and is transposed or not,
each uniformly at random; where boxes are not square, no copy is transposed. Board and solution have the same symmetry,
so the copy of the solution solves the copy of the board. The symmetry is a function of (seed, sample) alone.
"""

import numpy as np

from attractor.tasks.epochs import philox_key
from attractor.tasks.sudoku.board import BOXES
from attractor.tasks.sudoku.symmetry import reordered

STREAM = 1  # counter of Philox, apart from those that order the samples and generate boards


def symmetric_copies(grids: tuple[np.ndarray, ...], seed: int, samples: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return copies of grids (n x size x size each), all of which have the symmetry of the same sample."""
    size = grids[0].shape[1]
    height, width = BOXES[size]
    counts = (size, size // height, size, size // width, size, 1)
    draws = np.stack([_draws(seed, int(sample), sum(counts)) for sample in samples])
    digits, bands, rows, stacks, columns, coin = np.split(draws, np.cumsum(counts)[:-1], axis=1)
    labels = np.pad(np.argsort(digits, axis=1) + 1, ((0, 0), (1, 0)))  # a blank stays blank
    row_order, column_order = _order(rows, bands, height), _order(columns, stacks, width)
    transposed = (coin % 2 == 1)[:, :, None] & (height == width)
    copies = []
    for cells in grids:
        turned = np.where(transposed, cells.swapaxes(1, 2), cells).reshape(len(cells), -1)
        relabelled = np.take_along_axis(labels, turned, axis=1).reshape(cells.shape)
        copies.append(reordered(relabelled, row_order, column_order))
    return tuple(copies)


def _draws(seed: int, sample: int, count: int) -> np.ndarray:
    return np.random.Philox(key=philox_key(seed, sample), counter=[0, 0, 0, STREAM]).random_raw(count)


def _order(lines: np.ndarray, bands: np.ndarray, n_in_band: int) -> np.ndarray:
    """Return an order of lines in which those of a band stay together."""
    band_order = np.argsort(bands, axis=1)[:, :, None]
    within = np.argsort(lines.reshape(*bands.shape, n_in_band), axis=2)
    return (band_order * n_in_band + np.take_along_axis(within, band_order, axis=1)).reshape(lines.shape)
