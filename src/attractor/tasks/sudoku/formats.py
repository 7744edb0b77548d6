"""Read boards in public formats, as text or as arrays.

Text has one board per line, with 0 or . for a blank and A to G for 10 to 16; # begins a comment. It may be CSV with a
header that names the columns, CSV without a header (board, then solution), or boards alone. Named arrays (.npz) are
n x size x size integers. Missing solutions are computed.
"""

import csv
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import isqrt
from os import PathLike
from pathlib import Path
from tokenize import TokenError
from zipfile import BadZipFile

import numpy as np

from attractor.corpus.data_paths import expanded, locate, matching_files, searched_places
from attractor.errors import InputError
from attractor.tasks.sudoku.board import SIZES, SYMBOLS, as_boards, candidates, digits, is_solved
from attractor.tasks.sudoku.solver import unique_search

PUZZLE_NAMES = ("puzzle", "puzzles", "quizzes", "question")
SOLUTION_NAMES = ("solution", "solutions", "answer")
N_SHOWN = 5


@dataclass(frozen=True)
class Puzzles:
    """Boards of a file and their solutions, n x size x size each, with their places in the file."""

    path: Path
    boards: np.ndarray
    solutions: np.ndarray
    places: np.ndarray  # lines, or indices in an array, counted from 1
    unit: str  # 'line' or 'board'
    n_malformed: int = 0
    malformed: tuple[str, ...] = ()  # descriptions of the first malformed lines

    def __len__(self) -> int:
        return len(self.boards)

    def where(self, index: int) -> str:
        return f"{self.path.name}, {self.unit} {self.places[index]}"


def read(path: str | PathLike[str], unique: bool = True, max_malformed: float = 0.01) -> Puzzles:
    """Read the boards of a file with their solutions. A board with no solution or several is refused.

    Malformed lines are left out and counted, up to a share of max_malformed. unique=False trusts that the solutions of
    a file are unique: they are checked against the rules and their boards, but no others are searched.
    """
    file = expanded(path)
    if not file.is_file():
        raise InputError(f"puzzles must be a file, but '{path}' is none; give its path")
    if file.suffix in (".pt", ".pth", ".npy"):
        raise InputError(
            f"puzzles must be text or .npz, but '{file.name}' is neither; convert it: numpy.savez('boards.npz', "
            "puzzles=..., solutions=...)"
        )
    puzzles = _read_arrays(file) if file.suffix == ".npz" else _read_text(file, max_malformed)
    if not len(puzzles):
        raise InputError(f"puzzles must hold boards, but '{file.name}' has none; give one board a line")
    if not (puzzles.solutions > 0).any():
        return _solved(puzzles)
    _check_solutions(puzzles)
    return _solved(puzzles) if unique else puzzles


def parse(cells: str) -> np.ndarray:
    """Return the board (size x size) of cells in a row, with the symbols of a file."""
    if not _is_board(cells):
        lengths = ", ".join(str(size * size) for size in SIZES)
        raise InputError(
            f"puzzle must be its cells in a row ({lengths} digits, 0 or . for a blank) or a file that is there, got "
            f"'{cells[:100]}'; check the {'path' if '/' in cells else 'cells'}"
        )
    return as_boards(_digits_of([cells.upper()], isqrt(len(cells))))[0]


def files_at(sources: str) -> list[Path]:
    """Return the files of comma-separated paths and globs, in order and without repetition."""
    files: dict[Path, None] = {}
    for source in filter(None, (part.strip() for part in sources.split(","))):
        path = locate(source)
        matches = [path] if path.is_file() else matching_files(expanded(source)) or matching_files(path)
        if not matches:
            raise InputError(
                f"puzzles must name files, but '{source}' matches none; give paths or globs; {searched_places(source)}"
            )
        files |= dict.fromkeys(matches)
    if not files:
        raise InputError("puzzles must name files, got none; give paths or globs, separated by commas")
    return list(files)


def _check_solutions(puzzles: Puzzles) -> None:
    """Refuse solutions that break the rules or disagree with their boards."""
    wrong = np.flatnonzero(~is_solved(puzzles.solutions))
    if wrong.size:
        raise InputError(
            f"solutions must keep the rules, but that of {puzzles.where(wrong[0])} does not; correct it or leave it out"
        )
    agrees = (puzzles.boards == 0) | (puzzles.boards == puzzles.solutions)
    wrong = np.flatnonzero(~agrees.all(axis=(1, 2)))
    if wrong.size:
        raise InputError(
            f"solutions must repeat the givens, but that of {puzzles.where(wrong[0])} does not; "
            "correct it or leave it out"
        )


def _solved(puzzles: Puzzles) -> Puzzles:
    """Solve the puzzles. Each must have exactly one solution."""
    rule = "puzzles must have exactly one solution each"
    result = unique_search(candidates(puzzles.boards), rule, lambda index: f"{puzzles.where(index)} ", "leave it out")
    return replace(puzzles, solutions=digits(result.solutions))


def _read_text(file: Path, max_malformed: float) -> Puzzles:
    lines = [(number, fields) for number, fields in _rows(file) if any(fields) and not _is_comment(fields)]
    first = lines[0][1] if lines else []
    puzzle, solution = 0, 1 if len(first) > 1 else None
    if (first and first[0].lower() in PUZZLE_NAMES) or (len(first) > 1 and not any(map(_is_board, first))):
        puzzle, solution = _columns(file, lines.pop(0)[1])
    size = next((isqrt(len(row[puzzle])) for _, row in lines if puzzle < len(row) and _is_board(row[puzzle])), 9)
    board = re.compile(f"[0.{SYMBOLS[1 : size + 1]}]{{{size * size}}}")
    full = re.compile(f"[{SYMBOLS[1 : size + 1]}]{{{size * size}}}")

    good: list[tuple[int, str, str]] = []
    malformed: list[str] = []
    for number, row in lines:
        givens = row[puzzle].upper() if puzzle < len(row) else ""
        answer = "" if solution is None else row[solution].upper() if solution < len(row) else ""
        if not board.fullmatch(givens):
            malformed.append(f"line {number}: {_complaint('board', givens, size)}")
        elif solution is not None and not full.fullmatch(answer):
            malformed.append(f"line {number}: {_complaint('solution', answer, size)}")
        else:
            good.append((number, givens, answer))
    if len(malformed) > max_malformed * len(lines):
        raise InputError(
            f"malformed lines must be at most {max_malformed:.0%}, but '{file.name}' has {len(malformed)} of "
            f"{len(lines)} ({'; '.join(malformed[:N_SHOWN])}); correct or remove them "
            "(from Python, sudoku.read takes max_malformed)"
        )
    boards = _digits_of((givens for _, givens, _ in good), size)
    solutions = np.zeros_like(boards) if solution is None else _digits_of((answer for *_, answer in good), size)
    places = np.array([number for number, *_ in good], dtype=np.int64)
    return Puzzles(file, boards, solutions, places, "line", len(malformed), tuple(malformed[:N_SHOWN]))


def _is_comment(fields: Sequence[str]) -> bool:
    """Whether a line is a comment. The first field of a table may begin with #, too: a number, or the name of one."""
    says_board = any(_is_board(field) or field.lower() in PUZZLE_NAMES for field in fields)
    return fields[0].startswith("#") and not says_board


def _rows(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield line numbers and fields. Bytes that are not UTF-8 make a line malformed, and are no error here."""
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as text:
        for number, line in enumerate(text, start=1):
            try:
                yield number, [field.strip() for field in next(csv.reader([line]), [])]
            except csv.Error:  # the line is longer than csv accepts, and so than any board
                yield number, [line.strip()]


def _columns(file: Path, header: list[str]) -> tuple[int, int | None]:
    names = [name.lower() for name in header]
    puzzle = next((names.index(name) for name in PUZZLE_NAMES if name in names), None)
    if puzzle is None:
        raise InputError(
            f"puzzles must have a column 'puzzle', but '{file.name}' has {', '.join(header)[:200]}; rename its column"
        )
    return puzzle, next((names.index(name) for name in SOLUTION_NAMES if name in names), None)


def _is_board(text: str) -> bool:
    return len(text) in {size * size for size in SIZES} and not re.search("[^0.1-9A-Ga-g]", text)


def _complaint(what: str, text: str, size: int) -> str:
    if not text:
        return f"no {what}"
    if len(text) != size * size:
        return f"the {what} has {len(text)} characters, not {size * size}"
    return f"the {what} holds something else than {'digits and blanks' if what == 'board' else 'digits'}"


def _digits_of(texts: Iterable[str], size: int) -> np.ndarray:
    table = np.zeros(128, dtype=np.int64)
    for digit, symbol in enumerate(SYMBOLS):
        table[ord(symbol)] = digit
    codes = np.frombuffer("".join(texts).encode("ascii"), dtype=np.uint8)
    return table[codes].reshape(-1, size, size)


def _read_arrays(file: Path) -> Puzzles:
    try:
        arrays = dict(np.load(file, allow_pickle=False))
    except (ValueError, EOFError, OSError, NotImplementedError, BadZipFile, zlib.error, TokenError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"puzzles must be arrays of numbers, but '{file.name}' cannot be read ({reason}); write it again with "
            "numpy.savez"
        ) from error
    boards = next((arrays[name] for name in PUZZLE_NAMES if name in arrays), None)
    solutions = next((arrays[name] for name in SOLUTION_NAMES if name in arrays), None)
    if boards is None:
        raise InputError(
            f"puzzles must be an array 'puzzle', but '{file.name}' has {', '.join(arrays) or 'none'}; rename its array"
        )
    boards = as_boards(boards)
    solutions = np.zeros_like(boards) if solutions is None else as_boards(solutions)
    if boards.shape != solutions.shape:
        raise InputError(
            f"puzzles and solutions must have one shape, but '{file.name}' has {boards.shape} and {solutions.shape}; "
            "give a solution for each board"
        )
    return Puzzles(file, boards, solutions, np.arange(1, len(boards) + 1), "board")
