"""Sudoku: boards with one solution, made, read, solved, graded and told apart, and the task of solving them."""

from attractor.tasks.sudoku.difficulty import LEVELS, Grades, grade
from attractor.tasks.sudoku.digging import add_givens, generate
from attractor.tasks.sudoku.formats import Puzzles, read
from attractor.tasks.sudoku.solver import count_solutions, solve
from attractor.tasks.sudoku.symmetry import canonical, count_distinct
from attractor.tasks.sudoku.task import Sudoku, SudokuTask, boards_right
from attractor.tasks.sudoku.voting import lowest_energy, repeat_starts

__all__ = [
    "LEVELS",
    "Grades",
    "Puzzles",
    "Sudoku",
    "SudokuTask",
    "add_givens",
    "boards_right",
    "canonical",
    "count_distinct",
    "count_solutions",
    "generate",
    "grade",
    "lowest_energy",
    "read",
    "repeat_starts",
    "solve",
]
