"""Generate boards with exactly one solution: fill a grid at random, then dig out its cells one by one.

Filling gives a random candidate to the first cell with the fewest candidates, propagates, and repeats. Digging visits
the cells in random order and blanks each cell whose digit the other cells still force. A grid with a contradiction, or
one that cannot be dug down to the wanted number of givens, is dropped for the next attempt. All randomness is Philox,
keyed by (seed, board) and counted by attempt. So a board depends on (seed, its index, the wanted givens, size) alone,
and not on the number of boards. Grids are varied, but not drawn uniformly.
"""

from collections.abc import Sequence

import numpy as np

from attractor.errors import require
from attractor.tasks.epochs import philox_key
from attractor.tasks.sudoku.board import as_boards, candidates, check_size, digits
from attractor.tasks.sudoku.propagate import propagate
from attractor.tasks.sudoku.solver import search

# The fewest givens that digging reaches within a moderate number of attempts. Sparser boards exist.
FEWEST_GIVENS = {4: 4, 6: 8, 9: 22, 16: 100}
GRIDS_AT_ONCE = 1024
ATTEMPTS_AT_ONCE = 16


def generate(n: int, n_givens: int | tuple[int, int], seed: int, size: int = 9) -> tuple[np.ndarray, np.ndarray]:
    """Return n boards (0 is blank) with exactly one solution each, and the solutions: integers n x size x size.

    n_givens is the number of givens of every board, or a range (fewest, most) from which each board draws a number.
    """
    check_size(size)
    fewest, most = _range(n_givens)
    lowest, cells = FEWEST_GIVENS[size], size**2
    rule = f"between {lowest} and {cells} for size {size}"
    elsewhere = "sparser boards come from a list of known ones (read, then add_givens)"
    require(lowest <= fewest <= most <= cells, "n_givens", rule, n_givens, elsewhere)
    require(n >= 0, "n", "at least 0", n, "give a number of boards")
    wanted = np.array([_wanted(_draws(seed, board, 0, 2 * cells + 1), fewest, most) for board in range(n)], dtype=int)
    boards = np.zeros((n, size, size), dtype=np.int64)
    solutions = np.zeros_like(boards)
    n_tried = np.zeros(n, dtype=np.int64)
    missing = np.arange(n)
    while missing.size:
        now, later = missing[:GRIDS_AT_ONCE], missing[GRIDS_AT_ONCE:]
        side_by_side = min(ATTEMPTS_AT_ONCE, max(1, GRIDS_AT_ONCE // len(now)))  # few boards make more attempts at once
        attempts = [(int(board), int(n_tried[board]) + i) for board in now for i in range(side_by_side)]
        draws = np.stack([_draws(seed, board, attempt, 2 * cells) for board, attempt in attempts], axis=1)
        grids, alive = _fill(draws[:cells], size)
        order = np.argsort(draws[cells:], axis=0)
        dug, reached = _dig(grids, alive, order, np.repeat(wanted[now], side_by_side))
        reached_by_board = reached.reshape(-1, side_by_side)
        made = reached_by_board.any(axis=1)
        first = np.flatnonzero(made) * side_by_side + reached_by_board.argmax(axis=1)[made]
        boards[now[made]], solutions[now[made]] = dug[first], grids[first]
        n_tried[now] += side_by_side
        missing = np.concatenate([now[~made], later])
    return boards, solutions


def add_givens(boards: np.ndarray, solutions: np.ndarray, n_givens: int | tuple[int, int], seed: int) -> np.ndarray:
    """Fill in random cells of the boards' solutions, up to the wanted number of givens.

    A board with more givens stays as it is. So known boards with 17 givens become boards with any larger number.
    """
    boards = as_boards(boards)
    fewest, most = _range(n_givens)
    cells = boards.shape[1] ** 2
    filled = boards.reshape(-1, cells).copy()
    answers = as_boards(solutions).reshape(-1, cells)
    require(filled.shape == answers.shape, "solutions", f"one for each of {len(filled)} boards", len(answers))
    rule = f"between 0 and {cells}, the fewest first"
    require(0 <= fewest <= most <= cells, "n_givens", rule, n_givens, "give a number, or a range (fewest, most)")
    agree = bool((filled == answers)[filled > 0].all())
    require(agree, "solutions", "those of the boards", "another digit for a given", "give each board its own")
    for index, (board, answer) in enumerate(zip(filled, answers, strict=True)):
        draws = _draws(seed, index, 0, cells + 1)
        missing = max(0, _wanted(draws, fewest, most) - np.count_nonzero(board))
        blanks = np.flatnonzero(board == 0)
        chosen = blanks[np.argsort(draws[blanks], kind="stable")][:missing]
        board[chosen] = answer[chosen]
    return filled.reshape(boards.shape)


def _range(n_givens: int | tuple[int, int]) -> tuple[int, int]:
    if isinstance(n_givens, Sequence):
        fewest, most = n_givens
        return fewest, most
    return n_givens, n_givens


def _draws(seed: int, board: int, attempt: int, count: int) -> np.ndarray:
    """Draw raw Philox output, the one stream that NumPy promises never to change."""
    # The upper words of the counter hold the attempt, so no two attempts share a draw.
    return np.random.Philox(key=philox_key(seed, board), counter=attempt << 64).random_raw(count)


def _wanted(draws: np.ndarray, fewest: int, most: int) -> int:
    return fewest + int(draws[-1]) % (most - fewest + 1)


def _fill(draws: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return random grids, and which of them are full: there is no backtracking, so a contradiction ends a grid."""
    n = draws.shape[1]
    masks = candidates(np.zeros((n, size, size), dtype=np.int64))
    alive = np.ones(n, dtype=bool)
    unfilled = np.arange(n)
    while unfilled.size:
        states, dead, changed = propagate(masks.take(unfilled, axis=1))
        n_candidates = np.bitwise_count(states)
        undecided = np.where(n_candidates > 1, n_candidates, 255)
        stuck = np.flatnonzero(~changed & ~dead & (undecided < 255).any(axis=0))
        cells = undecided[:, stuck].argmin(axis=0)
        rank = draws[cells, unfilled[stuck]] % n_candidates[cells, stuck]
        states[cells, stuck] = _nth_bit(states[cells, stuck], rank)
        masks[:, unfilled] = states
        alive[unfilled[dead]] = False
        going = changed & ~dead
        going[stuck] = True
        unfilled = unfilled[going]
    return digits(masks), alive


def _nth_bit(masks: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Return the bit of each mask that has `rank` set bits below it."""
    for step in range(int(rank.max(initial=0))):
        masks = np.where(rank > step, masks & (masks - np.uint16(1)), masks)
    return masks & -masks


def _dig(grids: np.ndarray, alive: np.ndarray, order: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Blank cells in this order while the solution stays unique. Return boards, and which have the wanted givens."""
    n, cells = len(grids), grids[0].size
    boards = grids.reshape(n, cells).copy()
    n_givens = np.full(n, cells)
    for step in range(cells):
        # A cell that was kept can never be blanked later, since more blanks only add solutions.
        n_kept = step - (cells - n_givens)
        active = np.flatnonzero(alive & (n_givens > wanted) & (n_kept <= wanted))
        cell = order[step, active]
        digit = boards[active, cell]
        boards[active, cell] = 0
        masks = candidates(boards[active].reshape(-1, *grids.shape[1:]))
        masks[cell, np.arange(len(active))] ^= (1 << (digit - 1)).astype(np.uint16)  # excludes the digit
        needed = search(masks, limit=1).n_solutions > 0
        boards[active[needed], cell[needed]] = digit[needed]
        n_givens[active[~needed]] -= 1
    return boards.reshape(grids.shape), alive & (n_givens == wanted)
