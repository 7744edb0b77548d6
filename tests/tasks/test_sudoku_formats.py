"""Every public format gives the same boards, and errors name the line of a file."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from attractor.errors import InputError
from attractor.tasks.sudoku import generate, read
from attractor.tasks.sudoku.formats import files_at

BOARDS, SOLUTIONS = generate(12, (30, 40), seed=0)


def text_of(board: np.ndarray, blank: str = "0") -> str:
    return "".join(map(str, board.ravel())).replace("0", blank)


ROWS = [(text_of(board), text_of(solution)) for board, solution in zip(BOARDS, SOLUTIONS, strict=True)]
CONTENTS = {
    "header.csv": ["puzzle,solution,givens", *(f"{p},{s},30" for p, s in ROWS)],
    "other-order.csv": ["id,Solutions,QUIZZES", *(f'{i},"{s}","{p}"' for i, (p, s) in enumerate(ROWS))],
    "sudoku-extreme.csv": ["source,question,answer,rating", *(f"web,{p.replace('0', '.')},{s},7" for p, s in ROWS)],
    "puzzles-only.csv": ["puzzle,rating", *(f"{p},1.5" for p, _ in ROWS)],
    "one-column.csv": ["puzzle", *(p for p, _ in ROWS)],
    "no-header.csv": [f"{p.replace('0', '.')},{s}" for p, s in ROWS],
    "plain.txt": ["", *(p.replace("0", ".") for p, _ in ROWS), ""],
    "comment.txt": ["# drawn, by hand", *(p for p, _ in ROWS)],
    "name-of-the-column.txt": ["quizzes", *(p for p, _ in ROWS)],
    "capital.txt": ["Puzzle", *(p for p, _ in ROWS)],
    # A field of a table may begin with the sign of a comment.
    "numbered.csv": ["id,puzzle,solution", "# drawn, by hand", *(f"#{i},{p},{s}" for i, (p, s) in enumerate(ROWS))],
    "number.csv": ["#,puzzle,solution", "# drawn, by hand", *(f"{i},{p},{s}" for i, (p, s) in enumerate(ROWS))],
}


def write(folder: Path, name: str) -> Path:
    """Write the boards in one of the formats."""
    path = folder / name
    if name == "integers.npz":
        np.savez(path, puzzles=BOARDS.astype(np.uint8), solutions=SOLUTIONS.astype(np.uint8))
    else:
        path.write_text("\r\n".join(CONTENTS[name]))
    return path


@pytest.mark.parametrize("unique", [True, False])
@pytest.mark.parametrize("name", [*CONTENTS, "integers.npz"])
def test_every_format_gives_the_same_boards(name: str, unique: bool, tmp_path: Path) -> None:
    puzzles = read(write(tmp_path, name), unique=unique)
    assert len(puzzles) == 12
    assert puzzles.n_malformed == 0
    assert np.array_equal(puzzles.boards, BOARDS)
    assert np.array_equal(puzzles.solutions, SOLUTIONS)


@pytest.mark.parametrize(("size", "n_givens"), [(4, 8), (6, 14), (16, 160)])
def test_boards_of_other_sizes_are_read(size: int, n_givens: int, tmp_path: Path) -> None:
    boards, solutions = generate(2, n_givens, seed=1, size=size)
    path = tmp_path / "large.txt"
    path.write_text("\n".join("".join(".123456789abcdefg"[d] for d in board.ravel()) for board in boards))
    assert np.array_equal(read(path).solutions, solutions)


def test_malformed_lines_are_counted_and_the_first_are_named(tmp_path: Path) -> None:
    lines = [f"{p},{s}" for p, s in ROWS]
    lines[2] = lines[2][1:]
    lines[5] = "x" + lines[5][1:]
    lines[7] = ROWS[7][0]
    lines[9] = lines[9][:-1] + "0"
    path = tmp_path / "broken.csv"
    path.write_bytes("\n".join(lines).encode() + b"\n\xff\xfe\0\n" + b"1" * 200_000 + b"\n")
    puzzles = read(path, max_malformed=0.5)
    assert puzzles.n_malformed == 6
    assert puzzles.malformed == (
        "line 3: the board has 80 characters, not 81",
        "line 6: the board holds something else than digits and blanks",
        "line 8: no solution",
        "line 10: the solution holds something else than digits",
        "line 13: the board has 3 characters, not 81",
    )
    assert np.array_equal(puzzles.boards, BOARDS[[0, 1, 3, 4, 6, 8, 10, 11]])
    with pytest.raises(InputError, match=r"malformed lines must be at most 1%, but 'broken.csv' has 6 .* \(line 3: "):
        read(path)


def test_a_solution_that_is_given_and_not_the_only_one_may_be_taken_on_trust(tmp_path: Path) -> None:
    path = tmp_path / "boards.txt"
    path.write_text("0" * 81 + "," + ROWS[0][1])
    assert np.array_equal(read(path, unique=False).solutions, SOLUTIONS[:1])


def among_others(board: str, solution: str) -> str:
    """Return a file in which line 3 is this row."""
    return "\n".join(["puzzle,solution", ",".join(ROWS[2]), f"{board},{solution}", ",".join(ROWS[3])])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", among_others("0" * 81, ROWS[0][1]), "exactly one solution each, but a.csv, line 3 has several"),
        ("a.txt", f"{ROWS[0][0]}\n11{'0' * 79}\n", "exactly one solution each, but a.txt, line 2 has none"),
        ("a.csv", among_others(ROWS[0][0], "1" * 81), "must keep the rules, but that of a.csv, line 3 does not"),
        ("a.csv", among_others(ROWS[0][0], ROWS[1][1]), "must repeat the givens, but that of a.csv, line 3 does not"),
        ("a.csv", among_others("11" + "0" * 79, ROWS[0][1]), "must repeat the givens, but that of a.csv, line 3 does"),
        ("a.npz", {"boards": BOARDS}, "must be an array 'puzzle', but 'a.npz' has boards"),
        ("a.npz", {"puzzle": BOARDS, "solution": SOLUTIONS[:3]}, "must have one shape"),
        ("a.npz", {"puzzle": BOARDS.reshape(12, 81)}, "boards must have a shape"),
        ("a.npz", {"puzzle": np.array([{}])}, "cannot be read"),
        ("no-column.csv", "board,answer\n" + ",".join(ROWS[0]), "must have a column 'puzzle', but .* has board, ans"),
        ("empty.txt", "\n\n", "must hold boards, but 'empty.txt' has none"),
        ("header-only.csv", "puzzle,solution\n", "must hold boards"),
        ("boards.pt", "", "is neither; convert it: numpy.savez"),
        ("boards.npy", "", "is neither; convert it: numpy.savez"),
        ("text.npz", "not an archive", "cannot be read"),
        ("none.npz", "", "cannot be read"),
        ("nowhere.csv", "", "but '.*nowhere.csv' is none"),
    ],
)
def test_unusable_files_are_refused(name: str, content: str | dict, message: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if isinstance(content, dict):
        np.savez(path, **content)
    elif name != "nowhere.csv":
        path.write_text(content)
    with pytest.raises(InputError, match=message):
        read(path)


def test_damaged_arrays_raise_no_other_error(tmp_path: Path) -> None:
    path = tmp_path / "boards.npz"
    np.savez_compressed(path, puzzles=BOARDS)
    whole = path.read_bytes()
    for place in range(0, min(len(whole), 200), 3):
        for bit in (0, 3, 6):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            with suppress(InputError):
                read(path)


def test_sources_are_paths_and_globs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["plain.txt", "header.csv", "no-header.csv"]
    plain, header, no_header = (write(tmp_path, name) for name in names)
    assert files_at(f"{plain}, {tmp_path}/*.csv,{plain}") == [plain, header, no_header]
    monkeypatch.chdir(tmp_path)
    assert files_at("*header.csv") == [Path("header.csv"), Path("no-header.csv")]
    monkeypatch.setenv("ATTRACTOR_DATA", str(tmp_path.parent))
    assert files_at("*header.csv") == [Path("header.csv"), Path("no-header.csv")]
    for sources in ("*.parquet", f"{plain},nowhere.txt", " , ", ".", "/"):
        with pytest.raises(InputError, match="puzzles must name files"):
            files_at(sources)
