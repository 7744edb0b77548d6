"""The commands about studies lead from a file to a report, a stored record and verdicts."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from attractor.cli.evidence import folder_around
from attractor.errors import InputError
from attractor.files import prepare_place, write_text
from attractor.runs.published import without_private_folders
from invented_records import record

FILE = """
from attractor.study import Scale, Study, axis
from attractor.train.config import TrainConfig

BASE = TrainConfig().replace(corpus="squares.txt", d_model=16, n_heads=2, n_layers=1, d_ff=16, n_steps=6,
    warmup_steps=1, batch_size=2, seq_len=16, eval_every=3, eval_batches=4)
STUDY = Study(
    title="A <blink> study", question="Does it run?", source="no table", rows=axis("attention", "standard", "gated"),
    baseline="standard", scales={"smoke": Scale(BASE, seeds=(0, 1))},
)
"""


@pytest.fixture
def attractor(attractor, tmp_path):
    (tmp_path / "squares.txt").write_text("".join(f"{n} squared is {n * n}.\n" for n in range(3000)))
    (tmp_path / "tried.py").write_text(FILE)
    return attractor


def test_a_study_file_leads_to_a_report_a_record_and_verdicts(attractor):
    code, out, err = attractor("study", "run", "tried.py", "--device", "cpu", "--workers", "2", "--threads", "1")
    assert (code, err) == (0, "")
    page = Path(out.splitlines()[-1])
    assert page == Path("runs/tried-smoke/report.html")
    text = page.read_text()
    assert "A &lt;blink&gt; study" in text
    assert "<blink>" not in text
    assert "attractor study run tried.py --device cpu" in text
    for name in ("table.md", "table.tex", "numbers.tex", "record.json", "study.json"):
        assert (page.parent / name).stat().st_size > 0

    code, *_ = attractor("study", "run", str(Path("tried.py").absolute()), "--device", "cpu", "--threads", "1")
    assert code == 0
    assert f"attractor study run {Path.cwd().name}/tried.py" in page.read_text()
    assert str(Path.cwd()) not in page.read_text()

    code, out, _ = attractor("study", "plan", "tried.py")
    assert code == 0
    assert "6 runs, 0 to do; budget" in out

    code, _, _ = attractor("report", "runs/tried-smoke", "--store", "study-tried-smoke.json", "--formats", "svg")
    assert code == 0
    record = Path("study-tried-smoke.json").read_text()
    assert str(Path.cwd()) not in record
    assert json.loads(record)["design"]["name"] == "tried"
    code, out, _ = attractor("report", "study-tried-smoke.json", "--out", "again", "--formats", "svg")
    assert code == 0
    assert Path("again/table.md").read_text() == (page.parent / "table.md").read_text()

    code, out, _ = attractor("claims", "C1", "L9", "--root", "runs")
    assert code == 0
    assert "C1: coupled beats every uncoupled variant" in out


def test_studies_are_listed_with_their_questions(attractor):
    code, out, _ = attractor("study", "list", ".")
    assert code == 0
    assert "Does it run?" in out


def test_files_above_the_studies_of_papers_are_no_studies(attractor):
    _, out, err = attractor("study", "list", str(Path(__file__).parents[1] / "papers"))
    assert "coupling-ablation.py" in out
    assert "language.py" not in out + err


def test_a_report_accepts_every_path_that_a_command_prints(tmp_path):
    """Criterion: the folder, its page, its record, its pool of runs, and a parent with no other study all name the
    study. A run inside names itself, and a parent of several studies names none."""
    study = tmp_path / "runs" / "compare-1"
    (study / "runs" / "key").mkdir(parents=True)
    for file in ("study.json", "report.html", "record.json", "runs/key/config.json", "runs/key/report.html"):
        (study / file).write_text("{}")
    for source in (study, study / "report.html", study / "record.json", study / "runs", tmp_path / "runs"):
        assert folder_around(source) == study
    for source in (study / "runs" / "key", study / "runs" / "key" / "report.html"):
        assert folder_around(source) == study / "runs" / "key"
    shutil.copytree(study, study.with_name("compare-2"))
    with pytest.raises(InputError, match=r"source must be one study, and '.*runs' holds 2: .*compare-1, .*compare-2"):
        folder_around(tmp_path / "runs")


def test_an_error_of_writing_names_the_requested_file(tmp_path):
    """Criterion: it does not name the temporary file, and a folder is refused before anything is written."""
    absent = tmp_path / "absent" / "file.json"
    with pytest.raises(FileNotFoundError) as error:
        write_text(absent, "")
    assert error.value.filename == str(absent)
    for refuse in (prepare_place, lambda path: write_text(path, "")):
        with pytest.raises(IsADirectoryError) as error:
            refuse(tmp_path)
        assert error.value.filename == str(tmp_path)
    prepare_place(absent)
    write_text(absent, "now")
    assert [path.name for path in absent.parent.iterdir()] == ["file.json"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("attractor study run a.py --root /mine/runs --workers 1", "attractor study run a.py --workers 1"),
        ("attractor study run a.py --cuda-graphs --root=/mine/runs", "attractor study run a.py --cuda-graphs"),
        ("attractor study run a.py --root runs", "attractor study run a.py --root runs"),
        ("attractor compare --tensorboard /mine/a /mine/b", "attractor compare --tensorboard"),
        ("attractor train --puzzles a.csv,/mine/b.csv --lr 1", "attractor train --lr 1"),
    ],
)
def test_a_stored_command_names_no_private_folder(command: str, expected: str) -> None:
    invented = record({"standard": [1.7]})
    of_here = replace(invented, design=replace(invented.design, command=command))
    assert without_private_folders(of_here, {"--tensorboard"}).design.command == expected


def test_a_stored_configuration_names_no_private_folder() -> None:
    invented = record(
        {"standard": [{"valid_loss": 1.7, "data": "/home/me/secret/notes.txt: 3 documents"}]}, control=None
    )
    task = {"corpus": "/home/me/secret/notes.txt", "puzzles": "/home/me/a.csv, /home/me/b.csv", "ood": "shared/c.csv"}
    (cell,) = without_private_folders(
        replace(invented, cells=(replace(invented.cells[0], config={"task": task}),)), set()
    ).cells
    assert cell.config == {"task": {"corpus": "notes.txt", "puzzles": "a.csv, b.csv", "ood": "shared/c.csv"}}
    assert cell.outcomes[0].summary["data"] == "notes.txt: 3 documents"
