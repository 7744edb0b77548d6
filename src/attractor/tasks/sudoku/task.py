"""Sudoku as a sequence of cells: the model reads the givens and writes the whole grid.

Tokens are digits, with 0 for a blank. Training scores every cell of the solution. Validation scores blanks alone: a
board is right when all its blanks are right. The model must see all cells, so it may not be causal.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from attractor.errors import InputError, require
from attractor.fields import later
from attractor.tasks.epochs import Epochs
from attractor.tasks.sudoku.augment import symmetric_copies
from attractor.tasks.sudoku.board import FEWEST_KNOWN, check_size
from attractor.tasks.sudoku.data import GENERATED, load_sets
from attractor.tasks.sudoku.digging import FEWEST_GIVENS
from attractor.tasks.task import NOT_SCORED, Batch, TaskConfig, numbered_batches


@dataclass(frozen=True)
class Sudoku(TaskConfig):
    """Fill in boards; measured by the share of boards solved."""

    kind = "sudoku"
    suited_positions = ("grid", "grid-rope")

    puzzles: str = GENERATED
    """'generated', or files of boards and patterns of files, separated by commas"""
    ood_puzzles: str = GENERATED
    """boards of another difficulty to validate on, likewise; empty: none"""
    n_boards: int = 9000
    """training boards at most"""
    n_valid_boards: int = 1000
    """boards of each validation set at most"""
    givens: tuple[int, int] | None = None
    """fewest and most given cells; by default a usual range, or any in files"""
    ood_givens: tuple[int, int] | None = None
    """the same for the other difficulty; by default a usual range, or any in files"""
    board_size: int = later(9)
    """rows of a board: 4, 6, 9 or 16"""
    augment: bool = later(False)
    """train on random symmetric copies of the boards"""

    def __post_init__(self) -> None:
        check_size(self.board_size, "board_size")
        for name in ("n_boards", "n_valid_boards"):
            require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name), "give a number of boards")
        for name, source in (("givens", self.puzzles), ("ood_givens", self.ood_puzzles)):
            pair = getattr(self, name)
            fewest, elsewhere = FEWEST_KNOWN[self.board_size], ""
            if source == GENERATED:
                fewest, elsewhere = FEWEST_GIVENS[self.board_size], "sparser boards come from files"
            fits = pair is None or (len(pair) == 2 and fewest <= pair[0] <= pair[1] <= self.seq_len)
            require(fits, name, f"two numbers from {fewest} to {self.seq_len}, the fewest first", pair, elsewhere)
        if not self.puzzles:
            raise InputError(f"puzzles must be '{GENERATED}' or name files, got nothing; give one of them")

    @property
    def seq_len(self) -> int:
        return self.board_size**2

    def build(self, seq_len: int, seed: int) -> "SudokuTask":
        rule = f"{self.seq_len}, the cells of a board"
        require(seq_len == self.seq_len, "seq_len", rule, seq_len, "leave it out")
        return SudokuTask(self, seed)


class SudokuTask:
    """Boards in an order that the seed decides. The boards themselves do not depend on the seed."""

    metric = "board_accuracy"

    def __init__(self, config: Sudoku, seed: int) -> None:
        size, self.n_cells = config.board_size, config.seq_len
        self.name = f"sudoku:{config.puzzles}" if size == 9 else f"sudoku {size} x {size}: {config.puzzles}"
        values = {field.name: getattr(config, field.name) for field in fields(config)}
        self.seed, self.augment = seed, values.pop("augment")
        self.sets = load_sets(**values)
        self.demands = {"vocab_size": size + 1, "causal": False, "n_classes": None}
        self.n_tokens = len(self.sets.train) * self.n_cells
        self.fingerprint = self.sets.fingerprint
        self.valid_sets = tuple(self.sets.valid)
        self._epochs = Epochs(len(self.sets.train), seed)

    def train_batch(self, step: int, batch_size: int) -> Batch:
        first = step * batch_size
        boards = self.sets.train.take(self._epochs.examples(first, batch_size))
        grids: tuple[np.ndarray, ...] = (boards.boards, boards.solutions)
        if self.augment:
            grids = symmetric_copies(grids, self.seed, np.arange(first, first + batch_size))
        return Batch(*(cells.reshape(-1, self.n_cells) for cells in grids))

    def valid_batches(self, batch_size: int, max_batches: int | None = None, part: str = "valid") -> Iterator[Batch]:
        boards = self.sets.valid[part]
        for chosen in numbered_batches(len(boards), batch_size, max_batches):
            some = boards.take(chosen)
            blanks_only = np.where(some.boards > 0, NOT_SCORED, some.solutions)
            yield Batch(some.boards.reshape(-1, self.n_cells), blanks_only.reshape(-1, self.n_cells))

    def measure(self, targets: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
        """Return `board_accuracy`, the share of boards with all blanks right, and `cell_accuracy`, of right blanks."""
        return {
            "board_accuracy": float(boards_right(targets, predictions).mean()),
            "cell_accuracy": float((predictions == targets)[targets != NOT_SCORED].mean()),
        }

    def describe(self) -> str:
        sets = self.sets
        parts = ", ".join(
            f"{len(boards):,} {name} ({_givens_of(boards.boards)})"
            for name, boards in [("training", sets.train), *sets.valid.items()]
        )
        left_out = f"; {sets.n_left_out:,} left out of training as symmetric to one held out" if sets.n_left_out else ""
        malformed = f"; {sets.n_malformed:,} malformed lines left out" if sets.n_malformed else ""
        return f"{self.name}: {parts}{left_out}{malformed}"


def boards_right(targets: np.ndarray, predictions: np.ndarray) -> np.ndarray:
    """Return which boards have all scored cells right. Arrays are n x cells, or any shape with boards first."""
    right = (predictions == targets) | (targets == NOT_SCORED)
    return np.asarray(right.reshape(len(right), -1).all(axis=1))


def _givens_of(boards: np.ndarray) -> str:
    n_givens = np.count_nonzero(boards, axis=(1, 2))
    return f"{n_givens.min()} to {n_givens.max()} givens"
