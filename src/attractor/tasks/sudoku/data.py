"""Boards for training, for validation, and out of distribution, which share no solution up to symmetry.

Boards with symmetric solutions are the same sudoku in disguise (`symmetry`), so no solution of a validation set occurs
in training up to symmetry. Sizes 4 and 6 have only 2 and 49 such grids. At these sizes no puzzle of a validation set
occurs in training; the solution of a held-out board may occur, but from other givens. Distinct boards of files are
taken in the order of a hash of their cells, those for validation first. So the held-out boards depend neither on the
order in the files nor on the number of training boards.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from attractor.errors import InputError
from attractor.tasks.sudoku.digging import add_givens, generate
from attractor.tasks.sudoku.formats import files_at, read
from attractor.tasks.sudoku.solver import count_solutions
from attractor.tasks.sudoku.symmetry import hashes

GENERATED = "generated"
IN_DISTRIBUTION = {4: (6, 9), 6: (14, 20), 9: (31, 42), 16: (130, 150)}  # givens, for size 9 as in the literature
OUT_OF_DISTRIBUTION = {4: (4, 5), 6: (9, 12), 9: (24, 30), 16: (115, 125)}
HELD_OUT_BY_PUZZLE = (4, 6)
TRAIN, VALID, OOD = range(3)  # seeds of the boards; a run's seed only orders the training boards


@dataclass(frozen=True)
class Boards:
    """Boards and their solutions, n x size x size each."""

    boards: np.ndarray
    solutions: np.ndarray

    def __len__(self) -> int:
        return len(self.boards)

    def take(self, chosen: np.ndarray) -> "Boards":
        """Return copies of the chosen boards."""
        return Boards(self.boards[chosen], self.solutions[chosen])


@dataclass(frozen=True)
class Sets:
    """The training set of a task, and its validation sets by name. Arrays are read-only, since runs share them."""

    train: Boards
    valid: dict[str, Boards]
    n_left_out: int  # training boards that are symmetric to one in a validation set
    n_malformed: int  # malformed lines of files, which were left out
    fingerprint: str

    def __post_init__(self) -> None:
        for part in (self.train, *self.valid.values()):
            part.boards.flags.writeable = part.solutions.flags.writeable = False


@lru_cache(maxsize=4)
def load_sets(
    board_size: int,
    puzzles: str,
    ood_puzzles: str,
    n_boards: int,
    n_valid_boards: int,
    givens: tuple[int, int] | None,
    ood_givens: tuple[int, int] | None,
) -> Sets:
    """Load the sets for these fields of the task's config."""
    size, n_malformed = board_size, 0
    if puzzles == GENERATED:
        train = _generated(size, n_boards, givens or IN_DISTRIBUTION[size], TRAIN)
        valid = {"valid": _generated(size, n_valid_boards, givens or IN_DISTRIBUTION[size], VALID)}
    else:
        boards, n_malformed = _from_files(size, puzzles, givens, n_valid_boards + n_boards, TRAIN)
        if len(boards) <= n_valid_boards:
            raise InputError(
                f"puzzles must give more boards than n_valid_boards={n_valid_boards}, "
                f"but '{puzzles}' gives {len(boards)}; add files or lower n_valid_boards"
            )
        places = np.arange(len(boards))
        train, valid = boards.take(places[n_valid_boards:]), {"valid": boards.take(places[:n_valid_boards])}
    if ood_puzzles == GENERATED:
        valid["ood"] = _generated(size, n_valid_boards, ood_givens or OUT_OF_DISTRIBUTION[size], OOD)
    elif ood_puzzles:
        valid["ood"], n_more = _from_files(size, ood_puzzles, ood_givens, n_valid_boards, OOD)
        n_malformed += n_more

    held_out = np.concatenate([_hashes(part) for part in valid.values()])
    kept = train.take(~np.isin(_hashes(train), held_out))
    if not len(kept):
        raise InputError(
            f"puzzles must give other sudokus than those held out, but all {len(train)} boards for training are "
            "symmetric to boards for validation; add files or raise n_boards"
        )
    return Sets(kept, valid, len(train) - len(kept), n_malformed, _fingerprint([kept, *valid.values()]))


def _generated(size: int, n: int, givens: tuple[int, int], seed: int) -> Boards:
    return Boards(*generate(n, givens, seed, size))


def _from_files(size: int, sources: str, givens: tuple[int, int] | None, n: int, seed: int) -> tuple[Boards, int]:
    """Return at most n different boards, and the number of malformed lines.

    With a range of givens, boards with more givens are left out, and cells of their solutions are added to the others.
    """
    files = [read(file, unique=False) for file in files_at(sources)]
    for part in files:
        if (file_size := part.boards.shape[1]) != size:
            raise InputError(
                f"puzzles must be {size} x {size} for this task, but '{part.path.name}' has {file_size} x "
                f"{file_size}; name other files or give board_size={file_size}"
            )
    boards, solutions = (np.concatenate([getattr(part, name) for part in files]) for name in ("boards", "solutions"))
    if givens:
        sparse = np.count_nonzero(boards, axis=(1, 2)) <= givens[1]
        if not sparse.any():
            raise InputError(
                f"puzzles must have boards with at most {givens[1]} givens, but '{sources}' has none; name other files "
                "or raise the range of givens"
            )
        boards, solutions = boards[sparse], solutions[sparse]
    chosen = _in_order_of_hash(boards)[:n]
    boards, solutions = boards[chosen], solutions[chosen]
    if givens:
        boards = add_givens(boards, solutions, givens, seed)
    several = np.flatnonzero(count_solutions(boards) != 1)
    if several.size:
        text = "".join(map(str, boards[several[0]].ravel()))
        raise InputError(f"puzzles must have exactly one solution each, but {text} has several; leave it out")
    return Boards(boards, solutions), sum(part.n_malformed for part in files)


def _in_order_of_hash(boards: np.ndarray) -> np.ndarray:
    """Return the indices of the distinct boards, in the order of a hash of their cells."""
    hashes = np.array([hashlib.sha256(board.tobytes()).digest()[:8] for board in boards.astype(np.uint8)])
    return np.unique(hashes, return_index=True)[1]


def _hashes(boards: Boards) -> np.ndarray:
    by_puzzle = boards.boards.shape[1] in HELD_OUT_BY_PUZZLE
    return hashes(boards.boards if by_puzzle else boards.solutions, boards.solutions)


def _fingerprint(parts: Sequence[Boards]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8))
        digest.update(part.boards.astype(np.uint8).tobytes())
        digest.update(part.solutions.astype(np.uint8).tobytes())
    return digest.hexdigest()
