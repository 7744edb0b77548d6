"""A study's file may define a mechanism: the processes of its runs know it, and its code belongs to their identity."""

import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from attractor.errors import InputError
from attractor.files.code import module_of
from attractor.runs.run_folder import RunFolder
from attractor.study import load_study
from attractor.study.launch import Job, attempt, train_one
from attractor.study.plan import key_of
from attractor.train.config import RECIPES, Runtime
from attractor.train.finished import finished_run
from attractor.train.formulas import checksum_of_code
from attractor.train.loop import train

PAGE = Path(__file__).parents[2] / "docs" / "own-attention.md"
CODE = re.search(r"## A stage of your own.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
assert CODE is not None
CODE = re.sub(r"\bTurn\b", "Turning", CODE.group(1))  # the test of the page defines Turn, perhaps in this process


def attractor(folder: Path, *words: str) -> tuple[int, str]:
    """Run the command in a process of its own, since a class of a file would stay in this one."""
    command = [sys.executable, "-c", "from attractor.cli import main; main()", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def file(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / f"turned_{tmp_path.parent.name.replace('-', '_')}.py"
    file.write_text(CODE)
    return file


def turned(file: Path):
    return dict(load_study(file).configs("smoke", 0))["turn", ""]


def checksum(file: Path) -> str:
    return checksum_of_code(type(turned(file).model.attention_config.couple))


def test_another_process_makes_the_mechanism_and_trains_the_same_run(file: Path) -> None:
    config = turned(file)
    (file.parent / "config").write_bytes(pickle.dumps(config))
    code = (
        "import pickle, sys; config = pickle.loads(open('config', 'rb').read()); "
        "from attractor.study.plan import key_of; print(type(config.model.attention_config.couple), key_of(config))"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=file.parent, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["<class", f"'{module_of(file)}.Turning'>", key_of(config)]


def test_comments_and_the_study_are_not_part_of_the_code_and_all_else_is(file: Path) -> None:
    first = checksum(file)
    file.write_text('"""Another title."""\n# a comment\n' + CODE.replace("no table", "no table at all"))
    assert checksum(file) == first
    file.write_text(CODE.replace("q * cos + k * sin", "q * cos - k * sin"))
    assert checksum(file) != first


def test_a_changed_mechanism_has_other_runs_and_those_of_attractor_keep_their_names(file: Path, tmp_path) -> None:
    keys = {label: key_of(config) for (label, _), config in load_study(file).configs("smoke", 0)}
    config = turned(file)
    RunFolder.create(tmp_path / "run", config.identity(config.build_task()))
    file.write_text(CODE.replace("k * cos - q * sin", "k * cos"))
    changed = {label: key_of(config) for (label, _), config in load_study(file).configs("smoke", 0)}
    assert {label for label in keys if keys[label] != changed[label]} == {"turn"}
    with pytest.raises(InputError, match=r"formulas\.Turning"):
        RunFolder.create(tmp_path / "run", turned(file).identity(config.build_task()))


def test_a_run_is_not_opened_with_another_mechanism_in_silence(file: Path, tmp_path) -> None:
    (tmp_path / "text.txt").write_text("<|endoftext|>\n".join(f"{n} squared is {n * n}. " * 20 for n in range(40)))
    size = {"d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 16, "corpus": str(tmp_path / "text.txt")}
    config = turned(file).replace(n_steps=1, warmup_steps=0, batch_size=2, eval_batches=1, **size)
    train(config, tmp_path / "run", Runtime(device="cpu"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        finished_run(tmp_path / "run", torch.device("cpu"))
    file.write_text(CODE.replace("k * cos - q * sin", "k * cos"))
    load_study(file)
    with pytest.warns(UserWarning, match="was trained with another Turning"):
        finished_run(tmp_path / "run", torch.device("cpu"))


def test_a_file_that_was_changed_after_its_study_began_stops_the_run(file: Path) -> None:
    sent = pickle.dumps(turned(file))
    file.write_text(CODE.replace("0.1", "0.2"))
    sys.modules.pop(module_of(file))  # as in the fresh process of a run
    with pytest.raises(InputError, match=r"must stay as it was when the command began; repeat the command"):
        pickle.loads(sent)


def test_a_name_of_attractor_and_an_error_are_one_line_with_the_place(file: Path) -> None:
    file.write_text(CODE.replace("Turning(", "Phase(").replace("config: Turning", "config: Phase"))
    code, said = attractor(file.parent, "study", "plan", file.name)
    assert code == 2
    assert "must be one that no other stage has, since runs are stored with it, got 'Phase'; rename the class" in said
    file.write_text(CODE.replace("layout.n_queries", "layout.n_query"))
    line = 1 + CODE[: CODE.index("layout.n_queries")].count("\n")
    code, said = attractor(file.parent, "study", "plan", file.name)
    place = f"file '{file}' line {line} fails: AttributeError: 'HeadLayout' object has no attribute 'n_query'"
    assert (code, f"error: {place}; mend that line\n" in said, "Traceback" in said) == (2, True, False)


def test_a_run_that_fails_in_the_mechanism_names_the_line(file: Path, tmp_path: Path) -> None:
    """Of a file beside the study, too."""
    beside = file.with_name(f"shared_{file.stem}.py")
    beside.write_text(CODE.replace("return q * cos + k * sin, k", "return q * cosine, k"))
    file.write_text(f"from {beside.stem} import STUDY\n")
    job = Job(turned(file), tmp_path / "run", "turn")
    code, reason = attempt([job], lambda: train_one([job], Runtime(device="cpu")))
    line = 1 + CODE[: CODE.index("return q * cos + k")].count("\n")
    why = f"file '{beside}' line {line} fails: NameError: name 'cosine' is not defined; mend that line"
    assert (code, reason) == (1, why)
    sys.modules.pop(beside.stem)


def test_a_module_beside_the_study_is_found(file: Path) -> None:
    beside = file.with_name(f"shared_{file.stem}.py")
    beside.write_text(CODE.replace("STUDY", "OTHER"))
    file.write_text(f"from {beside.stem} import OTHER as STUDY\n")
    stage = type(turned(file).model.attention_config.couple)
    assert stage.__module__ == beside.stem
    assert pickle.loads(pickle.dumps(turned(file))) == turned(file)
    sys.modules.pop(beside.stem)


def test_the_mechanisms_of_attractor_have_no_checksum() -> None:
    assert "formulas" not in RECIPES["laptop"].identity(RECIPES["laptop"].build_task())


@pytest.mark.slow
def test_the_study_of_the_page_runs(file: Path) -> None:
    short = CODE.replace("n_steps=240", "n_steps=4, warmup_steps=1, eval_every=2")
    file.write_text(short.replace("seeds=(0, 1)", "seeds=(0,)"))
    code, said = attractor(file.parent, "study", "run", file.name, "--workers", "1", "--root", "runs")
    assert code == 0
    assert "[3/3]" in said
    (run,) = (path.parent for path in file.parent.glob("runs/runs/*/config.json") if '"Turning"' in path.read_text())
    words = ("generate", str(run), "--max-new-tokens=4", "--prompt=def")
    code, said = attractor(file.parent, *words)
    assert code == 2
    assert "--code FILE" in said
    code, said = attractor(file.parent, *words, f"--code={file.name}")
    assert code == 0
    assert f"'{file.name}' is Python code from outside" in said
    assert "def" in said
