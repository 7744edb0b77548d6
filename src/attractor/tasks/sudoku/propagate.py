"""Propagate candidates on many boards at once, by bit operations. One round applies these rules:

m_c is the mask of the candidates of cell c, and U a row, column or box. `once` and `twice` are the digits that are
candidates of at least one, and of at least two, cells of U.

    (1)  once' = once | m_c,  twice' = twice | (once & m_c)                    applied cell by cell
    (2)  m_c <- m_c & ~once of the cells of U with one candidate               naked singles, for c not among them
    (3)  m_c <- m_c & (once & ~twice), where that is not empty                 hidden singles

A board is dead when a cell has no candidate left, two cells of a unit hold the same single digit, a digit has no place
in a unit, or one cell is the only place of two digits.
"""

from functools import cache
from itertools import product
from math import isqrt
from typing import Any

import numpy as np

from attractor.tasks.sudoku.board import in_boxes

EVERY_CELL = (0, 1, 2, 3)
Kind = tuple[list[Any], Any]


@cache
def _unit_kinds(n_bands: int, rows_in_band: int, n_stacks: int, columns_in_stack: int) -> list[Kind]:
    """Return the index arrays of rows, columns and boxes on the axes of `in_boxes`, followed by the board's.

    For each kind of unit: the cells at each place of all units, and the index that spreads units over their cells.
    """
    whole = slice(None)
    rows = [(whole, whole, *c) for c in product(range(n_stacks), range(columns_in_stack))], np.s_[:, :, None, None]
    columns = list(product(range(n_bands), range(rows_in_band))), np.s_[None, None]
    places = product(range(rows_in_band), range(columns_in_stack))
    boxes = [(whole, i, whole, j) for i, j in places], np.s_[:, None, :, None]
    return [rows, columns, boxes]


def propagate(masks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Apply one round of (2) and (3). Return new masks, and which boards are dead or have changed."""
    size = isqrt(len(masks))
    old = masks.reshape(*in_boxes(size), -1)
    kinds = _unit_kinds(*in_boxes(size))
    new, dead = _naked_singles(old, kinds)
    new, no_place = _hidden_singles(new, kinds, size)
    return new.reshape(masks.shape), dead | no_place, (new != old).any(axis=EVERY_CELL)


def _naked_singles(masks: np.ndarray, kinds: list[Kind]) -> tuple[np.ndarray, np.ndarray]:
    is_single = masks & (masks - np.uint16(1)) == 0
    singles = masks * is_single
    taken = np.zeros_like(masks)
    taken_twice = np.zeros_like(masks)
    for members, spread in kinds:
        once, twice = _once_twice(singles, members)
        taken |= once[spread]
        taken_twice |= twice[spread]
    masks = masks & ~(taken_twice | taken * ~is_single)  # (2); np.where would take three times as long, here and below
    return masks, (masks == 0).any(axis=EVERY_CELL)


def _hidden_singles(masks: np.ndarray, kinds: list[Kind], size: int) -> tuple[np.ndarray, np.ndarray]:
    everything = np.uint16((1 << size) - 1)
    dead = np.zeros(masks.shape[-1], dtype=bool)
    lonely = np.zeros_like(masks)
    for members, spread in kinds:
        once, twice = _once_twice(masks, members)
        dead |= (once != everything).any(axis=(0, 1))
        lonely |= (once & ~twice)[spread]
    only_here = masks & lonely
    dead |= (only_here & (only_here - np.uint16(1)) != 0).any(axis=EVERY_CELL)
    return only_here | masks * (only_here == 0), dead  # (3)


def _once_twice(masks: np.ndarray, members: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    once = masks[members[0]].copy()
    twice = np.zeros_like(once)
    for member in members[1:]:
        cell = masks[member]
        twice |= once & cell  # (1)
        once |= cell
    return once, twice
