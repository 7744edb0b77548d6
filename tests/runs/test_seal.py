"""Reports use only results that are unchanged since they were stored, and one damaged file stops nothing else."""

import json
import shutil
import warnings

import pytest

from attractor.errors import DamageWarning, InputError
from attractor.files import seal_holds, sealed, write_json
from attractor.runs.quantity import LOSS_OF_VALIDATION
from attractor.runs.run_folder import SEAL, RunFolder
from attractor.runs.study_record import PROBES_FILE, STUDY_FILE, Design, StudyRecord, study_as_dict

ROWS = ("standard", "gated")


@pytest.fixture
def study(tmp_path):
    """Make the folder of a study of two rows with two seeds each."""
    keys = {}
    for row in ROWS:
        for seed in (0, 1):
            key = f"{row}-{seed}"
            run = RunFolder.create(tmp_path / "runs" / key, {"label": row, "seed": seed})
            run.append({"step": 5, "tokens": 50, "loss": 2.0, "valid_loss": 2.0 + seed})
            run.write_summary({"tokens": 50, "valid_loss": 2.0 + seed})
            write_json(run.path / PROBES_FILE, {"done": []})
            keys.setdefault((row, ""), {})[seed] = key
    design = Design(
        "tried", "A", "B?", "none", "smoke", "row", ROWS, "", ("",), (0, 1), "standard", None, "tokens",
        (LOSS_OF_VALIDATION,),
    )  # fmt: skip
    folder = tmp_path / "tried-smoke"
    folder.mkdir()
    write_json(folder / STUDY_FILE, study_as_dict(design, keys))
    return folder


def change_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "summary.json", SEAL])
def test_a_run_with_a_changed_byte_is_left_out_and_named(study, name):
    assert StudyRecord.read(study).finished == 4
    change_a_byte(study.parent / "runs" / "gated-1" / name)
    with pytest.warns(DamageWarning, match="left out a damaged run: .*gated-1"):
        record = StudyRecord.read(study)
    assert record.finished == 3
    assert record.cell("gated").missing == (1,)


@pytest.mark.parametrize(
    "name", ["config.json", "metrics.jsonl", "summary.json", SEAL, PROBES_FILE, "environment.json"]
)
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b'{"a": 1}', b"null"])
def test_no_damage_of_one_file_stops_a_report(study, name, content):
    path = study.parent / "runs" / "standard-0" / name
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamageWarning)
        n_sealed = StudyRecord.read(study).finished
        (path.parent / SEAL).unlink(missing_ok=True)  # older runs have no seal
        n_older = StudyRecord.read(study).finished
    assert {n_sealed, n_older} <= {3, 4}


def test_an_older_run_without_a_seal_is_read(study):
    for path in study.parent.rglob(SEAL):
        path.unlink()
    assert StudyRecord.read(study).finished == 4


def test_a_copied_run_keeps_its_seal(study):
    shutil.copytree(study.parent, study.parent.with_name("copied"))
    assert StudyRecord.read(study.parent.with_name("copied") / "tried-smoke").finished == 4


def test_a_record_with_a_changed_number_is_refused(study):
    record = StudyRecord.read(study)
    stored = json.loads(record.to_text())
    assert StudyRecord.from_dict(stored) == record
    stored["cells"][0]["outcomes"][0]["summary"]["valid_loss"] = 1.0
    with pytest.raises(InputError, match="the record does not have the content that was stored"):
        StudyRecord.from_dict(stored)


@pytest.mark.parametrize("content", [{}, {"a": [1, 2.5, "é", None]}, {"checksum": "x"}])
def test_a_seal_holds_until_anything_changes(content):
    whole = sealed({name: value for name, value in content.items() if name != "checksum"})
    assert seal_holds(whole)
    assert seal_holds(json.loads(json.dumps(whole)))
    assert not seal_holds(whole | {"b": 1})
    assert not seal_holds({name: value for name, value in whole.items() if name != "checksum"})
