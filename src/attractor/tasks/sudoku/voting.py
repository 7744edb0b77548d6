"""Vote by energy: start a model n_starts times on each board, and keep the answer with the lowest energy.

A model that starts from noise may answer a board differently each time. Its energy ranks the answers.
"""

import numpy as np

from attractor.errors import InputError


def lowest_energy(answers: np.ndarray, energies: np.ndarray, n_starts: int) -> np.ndarray:
    """Return the answer with the lowest energy of each board's n_starts in a row, the first among equals.

    An answer whose energy is NaN is chosen only where a board has no other.
    """
    if len(answers) != len(energies) or energies.ndim != 1 or n_starts < 1 or len(answers) % n_starts:
        raise InputError(
            f"answers and energies must be n_starts={n_starts} for each board, got {answers.shape} and "
            f"{energies.shape}; repeat each board n_starts times in a row"
        )
    by_board = np.where(np.isnan(energies), np.inf, energies).reshape(-1, n_starts)
    return answers[np.arange(len(by_board)) * n_starts + by_board.argmin(axis=1)]
