"""The outline of a study is read from its file without executing it."""

import subprocess
from pathlib import Path

import pytest

import five_papers
from attractor.errors import InputError
from attractor.runs.machine import is_tracked
from attractor.study import load_study
from attractor.study.outline import outline_of
from in_process import Command, assert_refused

STUDIES = list(five_papers.STUDIES.values())
TRAP = """
from pathlib import Path
Path("executed").touch()
from attractor.study import Study
STUDY = Study(title="A trap", question="Is this executed?", source="nobody", claims=("C1", "C2"), scales={"smoke": 1})
"""


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_an_outline_agrees_with_the_study(file: Path) -> None:
    """Criterion: title, question, source and claims of every study agree, and the outline names no scale that the study
    lacks."""
    outline, study = outline_of(file), load_study(file)
    assert (outline.title, outline.question, outline.source) == (study.title, study.question, study.source)
    assert outline.claims == study.claims
    assert set(outline.scales) <= set(study.scales)


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("STUDY: Study = Study(title='Mine')", "Mine"),
        ("STUDY = Study('Mine', 'Why?')", "Mine"),
        ("STUDY = made()", "(its title is computed, and 'attractor study plan' shows it)"),
    ],
)
def test_every_form_of_a_study_is_listed(line: str, title: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(line)
    assert outline_of(tmp_path / "own.py").title == title
    for text in ("STUDY = 3", "", "\0"):
        (tmp_path / "own.py").write_text(text)
        with pytest.raises(InputError, match="mend or remove it"):
            outline_of(tmp_path / "own.py")


def test_a_list_executes_nothing_and_one_damaged_file_hides_no_other(attractor: Command, tmp_path: Path) -> None:
    folder = tmp_path / "others"
    folder.mkdir()
    (folder / "trap.py").write_text(TRAP)
    (folder / "a-damaged.py").write_text("STUDY = (\n")
    (folder / "b-empty.py").write_text("x = 1\n")
    code, said, _ = attractor("study", "list", "others")
    assert code == 0
    assert not (tmp_path / "executed").exists()
    assert "others/trap.py: A trap" in said
    assert "nobody; scales smoke; claims C1, C2" in said
    assert "'others/a-damaged.py' line 1 cannot be read as Python" in said
    assert "'others/b-empty.py' must define STUDY" in said


def test_code_outside_of_a_repository_is_announced_before_it_is_executed(attractor: Command, tmp_path: Path) -> None:
    (tmp_path / "trap.py").write_text(TRAP)
    for words in (["init", "--quiet"], ["add", "trap.py"]):  # what a stranger's repository tracks is no better
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    code, said, error = attractor("study", "plan", "trap.py")
    assert code == 2
    assert "'trap.py' is Python code from outside of attractor's repository, and is executed now" in said
    assert (tmp_path / "executed").exists()
    assert error.count("\n") == 1
    (tmp_path / "notes.txt").write_text("")
    assert_refused(attractor("study", "plan", "notes.txt"), "study must be a Python file")


@pytest.mark.skipif(not is_tracked(Path(__file__)), reason="needs a checkout by git")
def test_a_study_of_this_repository_is_not_announced() -> None:
    assert [is_tracked(file) for file in (STUDIES[0], Path("/nowhere/study.py"))] == [True, False]
