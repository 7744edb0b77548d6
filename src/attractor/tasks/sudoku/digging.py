"""Boards with exactly one solution: a random full grid, dug out cell by cell.

A grid is filled by giving a random candidate to the first cell with the fewest, and propagating. Digging goes through
the cells in random order and blanks each one whose digit the others still force. A grid that dies, or cannot be dug to
the wanted number of givens, is given up for the next attempt. All randomness is Philox, keyed by (seed, board) and
counted by attempt: a board is a function of (seed, its index, the wanted givens, size) alone, however many are made.
Grids are varied, but not drawn uniformly.
"""

import numpy as np

from attractor.errors import InputError
from attractor.tasks.epochs import philox_key
from attractor.tasks.sudoku.board import as_boards, candidates, check_size, digits
from attractor.tasks.sudoku.propagate import propagate
from attractor.tasks.sudoku.solver import search

# What digging reaches within a moderate number of attempts; sparser boards exist, but are not found in this way.
FEWEST_GIVENS = {4: 4, 6: 8, 9: 22, 16: 100}
GRIDS_AT_ONCE = 1024
ATTEMPTS_AT_ONCE = 16


def generate(n: int, n_givens: int | tuple[int, int], seed: int, size: int = 9) -> tuple[np.ndarray, np.ndarray]:
    """Boards (0 is blank) with exactly one solution, and the solutions: integers n x size x size.

    n_givens is their number of givens; of a pair (fewest, most) each board draws its own.
    """
    check_size(size)
    fewest, most = _range(n_givens)
    lowest, cells = FEWEST_GIVENS[size], size**2
    if not lowest <= fewest <= most <= cells:
        raise InputError(
            f"n_givens must be between {lowest} and {cells} for size {size}, got {n_givens}; "
            "sparser boards come from a list of known ones (read, then add_givens)"
        )
    if n < 0:
        raise InputError(f"n must be at least 0, got {n}; give a number of boards")
    wanted = np.array([_wanted(_draws(seed, board, 0, 2 * cells + 1), fewest, most) for board in range(n)], dtype=int)
    boards = np.zeros((n, size, size), dtype=np.int64)
    solutions = np.zeros_like(boards)
    n_tried = np.zeros(n, dtype=np.int64)
    missing = np.arange(n)
    while missing.size:
        now, later = missing[:GRIDS_AT_ONCE], missing[GRIDS_AT_ONCE:]
        side_by_side = min(ATTEMPTS_AT_ONCE, max(1, GRIDS_AT_ONCE // len(now)))  # the last few boards try more at once
        attempts = [(int(board), int(n_tried[board]) + i) for board in now for i in range(side_by_side)]
        draws = np.stack([_draws(seed, board, attempt, 2 * cells) for board, attempt in attempts], axis=1)
        grids, alive = _fill(draws[:cells], size)
        order = np.argsort(draws[cells:], axis=0)
        dug, reached = _dig(grids, alive, order, np.repeat(wanted[now], side_by_side))
        of_board = reached.reshape(-1, side_by_side)
        found = of_board.any(axis=1)
        first = np.flatnonzero(found) * side_by_side + of_board.argmax(axis=1)[found]
        boards[now[found]], solutions[now[found]] = dug[first], grids[first]
        n_tried[now] += side_by_side
        missing = np.concatenate([now[~found], later])
    return boards, solutions


def add_givens(boards: np.ndarray, solutions: np.ndarray, n_givens: int | tuple[int, int], seed: int) -> np.ndarray:
    """Boards with random cells of their solutions filled in, up to the wanted number of givens.

    A board that has more stays as it is. So known boards with 17 givens become boards with any number above.
    """
    boards = as_boards(boards)
    fewest, most = _range(n_givens)
    cells = boards.shape[1] ** 2
    filled = boards.reshape(-1, cells).copy()
    answers = as_boards(solutions).reshape(-1, cells)
    if filled.shape != answers.shape:
        raise InputError(f"solutions must be one for each of {len(filled)} boards, got {len(answers)}")
    for index, (board, answer) in enumerate(zip(filled, answers, strict=True)):
        draws = _draws(seed, index, 0, cells + 1)
        missing = max(0, _wanted(draws, fewest, most) - np.count_nonzero(board))
        blanks = np.flatnonzero(board == 0)
        chosen = blanks[np.argsort(draws[blanks], kind="stable")][:missing]
        board[chosen] = answer[chosen]
    return filled.reshape(boards.shape)


def _range(n_givens: int | tuple[int, int]) -> tuple[int, int]:
    return n_givens if isinstance(n_givens, tuple) else (n_givens, n_givens)


def _draws(seed: int, board: int, attempt: int, count: int) -> np.ndarray:
    """Raw Philox output, the one stream that NumPy promises never to change."""
    # The attempt stands in the upper words of the counter, so no two attempts share a draw.
    return np.random.Philox(key=philox_key(seed, board), counter=attempt << 64).random_raw(count)


def _wanted(draws: np.ndarray, fewest: int, most: int) -> int:
    return fewest + int(draws[-1]) % (most - fewest + 1)


def _fill(draws: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Random full grids, and which of them are: a contradiction ends a grid instead of being taken back."""
    n = draws.shape[1]
    masks = candidates(np.zeros((n, size, size), dtype=np.int64))
    alive = np.ones(n, dtype=bool)
    open_ones = np.arange(n)
    while open_ones.size:
        states, dead, changed = propagate(masks.take(open_ones, axis=1))
        n_candidates = np.bitwise_count(states)
        undecided = np.where(n_candidates > 1, n_candidates, 255)
        stuck = np.flatnonzero(~changed & ~dead & (undecided < 255).any(axis=0))
        cells = undecided[:, stuck].argmin(axis=0)
        rank = draws[cells, open_ones[stuck]] % n_candidates[cells, stuck]
        states[cells, stuck] = _nth_bit(states[cells, stuck], rank)
        masks[:, open_ones] = states
        alive[open_ones[dead]] = False
        going = changed & ~dead
        going[stuck] = True
        open_ones = open_ones[going]
    return digits(masks), alive


def _nth_bit(masks: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """The bit of each mask that has `rank` set bits below it."""
    for step in range(int(rank.max(initial=0))):
        masks = np.where(rank > step, masks & (masks - np.uint16(1)), masks)
    return masks & -masks


def _dig(grids: np.ndarray, alive: np.ndarray, order: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The grids with cells blanked in that order while the solution stays unique; which reach the wanted givens."""
    n, cells = len(grids), grids[0].size
    boards = grids.reshape(n, cells).copy()
    n_givens = np.full(n, cells)
    for step in range(cells):
        # A cell seen and kept can never be blanked later, since further blanks only add solutions.
        n_kept = step - (cells - n_givens)
        active = np.flatnonzero(alive & (n_givens > wanted) & (n_kept <= wanted))
        cell = order[step, active]
        digit = boards[active, cell]
        boards[active, cell] = 0
        masks = candidates(boards[active].reshape(-1, *grids.shape[1:]))
        masks[cell, np.arange(len(active))] ^= (1 << (digit - 1)).astype(np.uint16)  # is there a solution without it?
        needed = search(masks, limit=1).n_solutions > 0
        boards[active[needed], cell[needed]] = digit[needed]
        n_givens[active[~needed]] -= 1
    return boards.reshape(grids.shape), alive & (n_givens == wanted)
