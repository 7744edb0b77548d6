"""`attractor solve` and `evaluate` solve, show and draw Sudoku boards, and refuse wrong input in one line."""

import json
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from attractor.evaluate import boards as solving
from attractor.evaluate.boards.board_display import show_trajectory, verdict
from attractor.tasks.sudoku import generate, show, solve
from attractor.tasks.sudoku.formats import parse
from in_process import Command, assert_refused

Trained = Callable[[str], Path]
PUZZLE = "1.....2..3.....4"
NINE = "..38.2..664..731....5..4...5.........7....2..234...9.78..4......21..97.........5."


def test_search_solves_a_board_given_as_text_or_as_a_file(attractor: Command, tmp_path: Path) -> None:
    board = parse(PUZZLE)
    solution = show(solve(board), board)
    assert attractor("solve", PUZZLE, "--exact") == (0, solution + "\n", "")
    long_path = tmp_path / ("a" * 130) / ("b" * 130) / "mine.txt"
    long_path.parent.mkdir(parents=True)
    for path in ("mine.txt", str(long_path)):
        Path(path).write_text(f"{PUZZLE}\n")
        assert attractor("solve", path, "--exact") == (0, solution + "\n", "")


def test_a_model_solves_a_board_and_its_solution_is_judged(attractor: Command, trained: Trained) -> None:
    run = str(trained("itrsa"))
    asked = ("solve", PUZZLE, "--run", run, "--n-iterations=6", "--votes=3", "--device=cpu")
    code, out, err = attractor(*asked)
    assert (code, err) == (0, "")
    assert "iteration 0: energy" in out
    assert "iteration 6: energy" in out
    *_, vote, judged = out.splitlines()
    assert "of 3 has the lowest energy" in vote
    assert judged.startswith(("right: ", "wrong: "))
    assert attractor(*asked)[1] == out


def test_an_evaluation_prints_its_table_and_is_stored(attractor: Command, trained: Trained, tmp_path: Path) -> None:
    asked = ("--n-iterations", "1", "4", "--votes=2", "--device=cpu", "--out=kept")
    code, out, _ = attractor("evaluate", str(trained("akorn")), *asked)
    assert code == 0
    assert "board accuracy" in out
    kept = json.loads((tmp_path / out.splitlines()[-1]).read_text())
    expected = [(part, n_iterations) for part in ("valid", "ood") for n_iterations in (1, 4)]
    assert [(row["set"], row["n_iterations"]) for row in kept["rows"]] == expected


WRONG = {
    "too long for the name of a file": (["solve", "." * 256, "--exact"], "board must have exactly one solution"),
    "several boards": (["solve", "two.txt", "--exact"], "puzzle must be one board, of which 'two.txt' has more, got 2"),
    "seed": (["solve", PUZZLE, "--run=RUN", "--votes=2", "--seed=-1"], "seed must be at least 0, got -1"),
    "size": (["solve", NINE, "--run=RUN"], "puzzle must be 4 x 4 for this run, got 9 x 9; give a run trained with"),
    "family": (["solve", PUZZLE, "--run=TRANSFORMER"], "model must be recurrent"),
    "evaluated at no time": (["evaluate", "RUN", "--n-iterations", "4", "0"], "n_iterations must be at least 1, got 0"),
    "evaluated file": (["evaluate", "RUN", "--puzzles=none.txt"], "puzzles must be a file, but 'none.txt' is none"),
}


@pytest.mark.parametrize(("arguments", "part"), WRONG.values(), ids=WRONG)
def test_bad_input_is_refused_in_a_line(attractor: Command, trained: Trained, arguments: list[str], part: str) -> None:
    Path("two.txt").write_text(f"{PUZZLE}\n{PUZZLE}\n")
    places = {"RUN": trained("itrsa"), "TRANSFORMER": trained("transformer")}
    for name, path in places.items():
        arguments = [argument.replace(f"run={name}", f"run={path}") for argument in arguments]
        arguments = [str(path) if argument == name else argument for argument in arguments]
    assert_refused(attractor(*arguments), part)


def test_an_impossible_place_of_results_is_refused_before_the_work(
    attractor: Command, trained: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worked(*arguments: object) -> None:
        raise AssertionError("the work began")

    monkeypatch.setattr("attractor.evaluate.boards.evaluation.evaluate_run", worked)
    (tmp_path / "file").write_text("")
    code, _, err = attractor("evaluate", str(trained("itrsa")), "--out=file/results")
    assert code != 0
    assert re.search("^error: .*'file", err, re.MULTILINE)


def test_the_verdict_is_that_of_the_search() -> None:
    board = parse(PUZZLE)
    solution = solve(board)
    assert verdict(solution, board, solution) == "right: the only solution"
    wrong = solution.copy()
    wrong[0, 1:3] = wrong[0, 2:0:-1]
    assert verdict(wrong, board, solution) == "wrong: 2 of 12 blanks differ from the solution, 4 units violated"
    left = solution.copy()
    left[0, 1] = 0
    said = "wrong: 1 of 12 blanks differ from the solution, 0 units violated, 1 blank left"
    assert verdict(left, board, solution) == said


@pytest.mark.parametrize("size", [4, 9])
def test_a_terminal_shows_every_iteration(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    boards, solutions = generate(1, 6 if size == 4 else 40, seed=0, size=size)
    monkeypatch.setattr("attractor.evaluate.boards.board_display.SECONDS", 0.0)
    trajectory = solving.Trajectory(np.stack([boards, boards, solutions]), np.array([[0.0], [-1.0], [-2.0]]))
    terminal = StringIO()
    show_trajectory(Console(file=terminal, force_terminal=True, width=80, color_system=None), trajectory, boards[0])
    seen = terminal.getvalue()
    n_blanks = (boards == 0).sum()
    for numbers in ("0: energy 0.0, 0 units", "1: energy -1.0, 0 cells", f"2: energy -2.0, {n_blanks} cells changing"):
        assert f"iteration {numbers}" in seen
    assert "1 " in seen
