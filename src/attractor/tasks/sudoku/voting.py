"""K starts for each board, and one answer out of K: the one with the lowest energy.

A model that starts from noise answers a board differently each time; its energy says which answer to trust.
"""

import numpy as np

from attractor.errors import InputError


def repeat_starts(boards: np.ndarray, n_starts: int) -> np.ndarray:
    """Each board n_starts times in a row: B ... becomes B * n_starts ..."""
    if n_starts < 1:
        raise InputError(f"n_starts must be at least 1, got {n_starts}; 1 is no vote")
    return np.repeat(boards, n_starts, axis=0)


def lowest_energy(answers: np.ndarray, energies: np.ndarray, n_starts: int) -> np.ndarray:
    """One answer for each board: of its n_starts in a row the one with the lowest energy, the first of equal ones.

    An energy that is no number never wins, except where a board has no other.
    """
    if len(answers) != len(energies) or energies.ndim != 1 or n_starts < 1 or len(answers) % n_starts:
        raise InputError(
            f"answers and energies must be n_starts={n_starts} for each board, got {answers.shape} and "
            f"{energies.shape}; use repeat_starts"
        )
    by_board = np.where(np.isnan(energies), np.inf, energies).reshape(-1, n_starts)
    return answers[np.arange(len(by_board)) * n_starts + by_board.argmin(axis=1)]
