"""Sudoku: generate, read and solve boards with one solution, and train models to solve them."""

from attractor.tasks.sudoku.board import show
from attractor.tasks.sudoku.conflicts import conflicts, n_broken_units
from attractor.tasks.sudoku.digging import add_givens, generate
from attractor.tasks.sudoku.formats import Puzzles, read
from attractor.tasks.sudoku.solver import count_solutions, solve
from attractor.tasks.sudoku.task import Sudoku, SudokuTask, boards_right

__all__ = [
    "Puzzles",
    "Sudoku",
    "SudokuTask",
    "add_givens",
    "boards_right",
    "conflicts",
    "count_solutions",
    "generate",
    "n_broken_units",
    "read",
    "show",
    "solve",
]
