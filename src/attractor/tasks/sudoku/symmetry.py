"""Compute one canonical grid for all grids that are the same sudoku.

The symmetries relabel digits, transpose, and exchange bands, stacks, rows or columns. Where boxes are not square, as at
size 6, transposing would change the boxes, so it is no symmetry there.

Two rows r, s of a band define a permutation of the digits: the digit in r goes to the digit in s of the same column.
Exchanging columns does not change this permutation, and relabelling conjugates it. So its cycle type is a property of
the two rows. Let sigma be a fixed permutation of a type, and C its centraliser.

    (1)  of the types in a grid and in its transpose, if that is allowed, take the one with the fewest
         (pairs of rows) x |C|
    (2)  for each pair of this type, the relabellings that turn its permutation into sigma are C after any one of them
    (3)  each relabelling, with r on top, determines the order of everything else: columns by their digit in row r
         (stacks by the least), rows by their digit in the first column (bands by the least)

The canonical grid is the least of the grids that (3) gives. A symmetry only permutes the pairs and relabellings that
are tried, so equivalent grids have the same canonical grid, which is equivalent to them: the form is exact. A puzzle
also has the places of its givens. All symmetries that lead to its canonical grid are among those tried; the canonical
puzzle takes one of them that puts the givens into the least places.
"""

from functools import cache
from itertools import groupby, permutations, product
from math import factorial

import numpy as np

from attractor.errors import InputError
from attractor.tasks.sudoku.board import BOXES, as_boards, is_solved

GRIDS_AT_ONCE = 512
TRIALS_AT_ONCE = 1 << 14
MOST_TRIALS = 1_000_000  # for one grid; only very symmetric grids of size 16 need more


def canonical(grids: np.ndarray) -> np.ndarray:
    """Return the canonical grids of full grids (n x size x size). They are equal exactly where grids are equivalent."""
    grids = _full(grids)
    chunks = [_canonical(grids[i : i + GRIDS_AT_ONCE]) for i in range(0, len(grids), GRIDS_AT_ONCE)]
    return np.concatenate(chunks) if chunks else grids.copy()


def canonical_puzzles(boards: np.ndarray, solutions: np.ndarray) -> np.ndarray:
    """Return the canonical puzzles of boards with these solutions, equal exactly where boards are equivalent."""
    boards, grids = as_boards(boards), _full(solutions)
    if boards.shape != grids.shape or (boards != grids)[boards > 0].any():
        raise InputError(
            f"solutions must be one for each of {len(boards)} boards and repeat its givens; solve gives them"
        )
    size = boards.shape[1]
    chunks = [
        _canonical(grids[i : i + GRIDS_AT_ONCE], boards[i : i + GRIDS_AT_ONCE] > 0)
        for i in range(0, len(grids), GRIDS_AT_ONCE)
    ]
    both = np.concatenate(chunks) if chunks else np.zeros((0, 2 * size, size), dtype=np.int64)
    return both[:, :size] * both[:, size:]


def _full(grids: np.ndarray) -> np.ndarray:
    grids = as_boards(grids)
    wrong = np.flatnonzero(~is_solved(grids))
    if wrong.size:
        raise InputError(f"grids must be full and keep the rules, but grid {wrong[0]} is not; solve it first")
    return grids


def _canonical(grids: np.ndarray, given: np.ndarray | None = None) -> np.ndarray:
    """Return canonical grids, n x size x size. If `given` is set, the places of givens follow: n x 2 size x size."""
    n, size = len(grids), grids.shape[1]
    height, _ = BOXES[size]
    both = _with_transpose(grids).astype(np.uint8) - np.uint8(1)  # digits 0 .. size - 1
    places = None if given is None else _with_transpose(given).astype(np.uint8)
    pairs = [(band + r, band + s) for band in range(0, size, height) for r, s in permutations(range(height), 2)]
    frames = np.array([(transposed, r, s) for transposed in range(both.shape[1]) for r, s in pairs])
    upper, lower = both[:, frames[:, 0], frames[:, 1]], both[:, frames[:, 0], frames[:, 2]]
    moves = np.empty_like(upper)
    np.put_along_axis(moves, upper.astype(np.int64), lower, axis=-1)
    lengths, labels = _cycles(moves)
    types = _pack(np.sort(lengths - 1, axis=-1)[..., ::-1])

    least = np.full((n, size if places is None else 2 * size), np.iinfo(np.uint64).max, dtype=np.uint64)
    grid, frame = np.nonzero(types == _cheapest(types, size)[:, None])  # (1)
    for code in np.unique(types[grid, frame]):
        cases = np.flatnonzero(types[grid, frame] == code)
        centraliser = _centraliser(_cycle_lengths(code, size))
        for start in range(0, len(cases) * len(centraliser), TRIALS_AT_ONCE):
            stop = min(start + TRIALS_AT_ONCE, len(cases) * len(centraliser))
            case, element = np.divmod(np.arange(start, stop), len(centraliser))
            g, f = grid[cases[case]], frame[cases[case]]
            relabelling = np.take_along_axis(centraliser[element], labels[g, f], axis=1)  # (2)
            transposed, r, _ = frames[f].T
            digits, rows, columns = _arrange(both[g, transposed], relabelling, r)
            forms = [_pack(digits)]
            if places is not None:
                forms.append(_pack(reordered(places[g, transposed], rows, columns)))
            _keep_least(least, g, np.concatenate(forms, axis=1))
    unpacked = _unpack(least, size).astype(np.int64)
    unpacked[:, :size] += 1
    return unpacked


def _with_transpose(grids: np.ndarray) -> np.ndarray:
    """Return grids as n x 1 x size x size, or, if boxes are square, with their transposes: n x 2 x size x size."""
    height, width = BOXES[grids.shape[1]]
    return np.stack([grids, grids.swapaxes(1, 2)] if height == width else [grids], axis=1)


def _cycles(moves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the length of each element's cycle, and a label for each element, of permutations along the last axis.

    Labels follow one cycle after the other, long cycles first. They make all permutations of a type equal.
    """
    size = moves.shape[-1]
    steps = moves.astype(np.int64)
    elements = np.broadcast_to(np.arange(size), steps.shape)
    walk = [elements]
    for _ in range(size):
        walk.append(np.take_along_axis(steps, walk[-1], axis=-1))
    least = np.minimum.reduce(walk)
    lengths, to_least = np.zeros_like(steps), np.zeros_like(steps)
    for k in range(size, 0, -1):  # downwards, so that the first return overwrites later ones
        lengths[walk[k] == elements] = k
        to_least[walk[k] == least] = k
    order = np.argsort(((size - lengths) * size + least) * size + (lengths - to_least), axis=-1)
    labels = np.empty_like(steps)
    np.put_along_axis(labels, order, elements, axis=-1)
    return lengths, labels


def _cheapest(types: np.ndarray, size: int) -> np.ndarray:
    """Return for each grid the type, among those of its pairs, with the fewest relabellings to try."""
    known, which = np.unique(types, return_inverse=True)
    n_symmetries = np.array([_centraliser_order(_cycle_lengths(code, size)) for code in known], dtype=float)
    n_pairs = np.stack([(which.reshape(types.shape) == i).sum(axis=1) for i in range(len(known))], axis=1)
    n_trials = np.where(n_pairs > 0, n_pairs * n_symmetries, np.inf)
    if n_trials.min(axis=1).max() > MOST_TRIALS:
        raise InputError(
            f"grids must need at most {MOST_TRIALS:,} trials each for their canonical form, but one needs "
            f"{n_trials.min(axis=1).max():,.0f} because of its symmetries; leave it out"
        )
    return np.asarray(known[n_trials.argmin(axis=1)])


def _cycle_lengths(code: np.uint64, size: int) -> tuple[int, ...]:
    """Return the lengths of a type's cycles, longest first. The packed type has each length once per element."""
    of_elements = (_unpack(np.array([[code]]), size).ravel() + 1).tolist()
    return tuple(length for length, group in groupby(of_elements) for _ in range(len(list(group)) // length))


def _centraliser_order(lengths: tuple[int, ...]) -> int:
    order = 1
    for length in set(lengths):
        n_cycles = lengths.count(length)
        order *= length**n_cycles * factorial(n_cycles)
    return order


@cache
def _centraliser(lengths: tuple[int, ...]) -> np.ndarray:
    """Return all permutations that commute with sigma: they turn its cycles and exchange cycles of equal length."""
    elements: list[list[int]] = [[]]
    first = 0
    for length, group in groupby(lengths):
        n_cycles = len(list(group))
        starts = range(first, first + n_cycles * length, length)
        of_length = [
            [
                start + (place + turn) % length
                for start, turn in zip(order, turns, strict=True)
                for place in range(length)
            ]
            for order in permutations(starts)
            for turns in product(range(length), repeat=n_cycles)
        ]
        elements = [before + after for before in elements for after in of_length]
        first += n_cycles * length
    return np.array(elements, dtype=np.uint8)


def _arrange(grids: np.ndarray, relabelling: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the relabelled grids in the order of (3), and that order of rows and columns."""
    height, width = BOXES[grids.shape[1]]
    n = len(grids)
    grid = np.arange(n)
    digits = np.take_along_axis(relabelling, grids.reshape(n, -1).astype(np.int64), axis=1).reshape(grids.shape)
    columns = _order(digits[grid, r], width)
    first_column = digits[grid, :, columns[:, 0]].astype(np.int64)
    first_column[grid, r] = -1
    rows = _order(first_column, height)
    return reordered(digits, rows, columns), rows, columns


def reordered(grids: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return np.take_along_axis(np.take_along_axis(grids, columns[:, None, :], axis=2), rows[:, :, None], axis=1)


def _order(keys: np.ndarray, n_in_band: int) -> np.ndarray:
    """Return the order of lines, sorted by key within their bands, and of bands, sorted by their least key."""
    banded = keys.reshape(len(keys), -1, n_in_band)
    within = np.argsort(banded, axis=2) + np.arange(0, keys.shape[1], n_in_band)[:, None]
    bands = np.argsort(banded.min(axis=2), axis=1)
    return np.take_along_axis(within, bands[:, :, None], axis=1).reshape(keys.shape)


def _keep_least(least: np.ndarray, owners: np.ndarray, forms: np.ndarray) -> None:
    """Lower least[g] to the lexicographic minimum of itself and of the forms whose owner is g."""
    affected = np.unique(owners)
    owners = np.concatenate([owners, affected])
    forms = np.concatenate([forms, least[affected]])
    for row in range(forms.shape[1]):
        least[affected, row] = np.iinfo(np.uint64).max
        np.minimum.at(least[:, row], owners, forms[:, row])
        leading = forms[:, row] == least[owners, row]
        owners, forms = owners[leading], forms[leading]


def _pack(lines: np.ndarray) -> np.ndarray:
    """Pack the last axis, up to 16 digits of four bits, into a number that sorts like the digits."""
    packed = np.zeros(lines.shape[:-1], dtype=np.uint64)
    for place in range(lines.shape[-1]):
        packed = packed << np.uint64(4) | lines[..., place].astype(np.uint64)
    return packed


def _unpack(packed: np.ndarray, size: int) -> np.ndarray:
    shifts = np.arange(4 * (size - 1), -1, -4, dtype=np.uint64)
    return packed[..., None] >> shifts & np.uint64(15)
