"""Reports use only results that are unchanged since they were stored, and one damaged file stops nothing else."""

import json
import shutil
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest

from attractor.claims.ledger import find_records
from attractor.errors import DamageWarning, InputError, LeftOutWarning
from attractor.files import write_json
from attractor.files.seals import seal_holds, sealed
from attractor.runs.quantity import LOSS_OF_VALIDATION
from attractor.runs.run_folder import SEAL, RunFolder
from attractor.runs.study_record import PROBES_FILE, STUDY_FILE, Design, StudyRecord, study_as_dict
from attractor.train.damage import set_damage_aside

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


@pytest.fixture
def unfinished(tmp_path):
    """Make a run that was sealed at a checkpoint and then recorded another line."""
    run = RunFolder.create(tmp_path / "unfinished", {"label": "standard", "seed": 0})
    run.append({"step": 1, "tokens": 10, "loss": 2.5})
    run.append({"step": 2, "tokens": 20, "loss": 2.25})
    run.seal()
    run.append({"step": 3, "tokens": 30, "loss": 2.0})
    return run


def test_an_unfinished_run_may_grow_and_its_sealed_lines_may_not_change(unfinished):
    assert [record["step"] for record in unfinished.metrics()] == [1, 2, 3]
    path = unfinished.path / "metrics.jsonl"
    whole = path.read_text()
    path.write_text(whole.replace("2.25", "2.26"))
    with pytest.raises(InputError, match=r"sealed with: metrics.jsonl changed; .* or 'attractor train --resume"):
        unfinished.metrics()
    path.write_text(whole.splitlines(keepends=True)[0])  # lines are gone
    with pytest.raises(InputError, match=r"metrics.jsonl changed"):
        unfinished.metrics()
    path.write_text(whole)
    unfinished.keep_until(1)  # as a run that continues from an older checkpoint
    unfinished.append({"step": 2, "tokens": 20, "loss": 2.0})
    assert [record["loss"] for record in unfinished.metrics()] == [2.5, 2.0]


@pytest.mark.parametrize(
    ("name", "key", "said"),
    [
        ("environment.json", '"torch"', r"sealed with: environment.json changed; restore"),
        ("config.json", '"seed"', r"config\.json' changed since the run was sealed"),
    ],
)
def test_a_small_file_of_an_unfinished_run_may_not_change(unfinished, name, key, said):
    """A flipped bit in a key leaves valid JSON. `make stress` found that reports showed such an environment without a
    warning. A run with another configuration cannot be opened, so no command continues it."""
    assert "versions" in unfinished.environment
    path = unfinished.path / name
    path.write_text(path.read_text().replace(key, key.upper()))
    with pytest.raises(InputError, match=said):
        _ = RunFolder.open(unfinished.path).environment


def change_a_digit(path):
    path.write_text(path.read_text().replace("3", "4", 1))


def cut_a_line(path):
    path.write_bytes(path.read_bytes().split(b"\n", 1)[1])


@pytest.mark.parametrize("name", ["config.json", "environment.json", "tokenizer.json", "metrics.jsonl"])
def test_no_seal_makes_a_file_valid_that_changed_since_the_run_wrote_it(tmp_path, name):
    """Criterion: whenever the file changes, each later seal still holds the checksum of what was written."""
    run = RunFolder.create(tmp_path / "run", {"label": "standard", "seed": 3})
    run.write("tokenizer.json", b'{"size": 3}')
    run.append({"step": 1, "tokens": 30})
    change_a_digit(run.path / name)  # before any seal
    run.seal()
    assert run.altered() == [name]
    with pytest.raises(InputError, match=r"metrics\.jsonl changed") if name == "metrics.jsonl" else nullcontext():
        run.keep_until(1)
    assert run.altered() == [name]
    run.write_summary({"steps": 1})
    assert run.altered() == [name]


@pytest.mark.parametrize("name", ["environment.json", "tokenizer.json"])
def test_resuming_makes_no_damaged_file_valid(tmp_path, name):
    """Criterion: the damage is named, the file is kept aside, and damaged lines of metrics beside it change nothing."""
    begun = RunFolder.create(tmp_path / "run", {"label": "standard", "seed": 3})
    begun.write("tokenizer.json", b'{"size": 3}')
    begun.append({"step": 1, "tokens": 10})
    begun.seal()
    change_a_digit(begun.path / name)
    with (begun.path / "metrics.jsonl").open("a") as file:
        file.write("no record\n")
    resumed = RunFolder.open(begun.path)
    assert set_damage_aside(resumed) == [
        "metrics.jsonl: 1 of 2 lines are damaged; the file is kept as metrics.jsonl.damaged",
        f"{name}: its content changed; it is kept as {name}.damaged",
    ]
    resumed.keep_until(1)
    assert resumed.altered() == []
    assert [record["step"] for record in resumed.metrics()] == [1]


@pytest.mark.parametrize(("harm", "said"), [(Path.unlink, "the file is gone"), (cut_a_line, "its content changed")])
@pytest.mark.parametrize("end", ["append", "seal", "write_summary"])
def test_a_run_whose_lines_are_lost_never_ends_as_finished_and_sealed(tmp_path, harm, said, end):
    """Criterion: the run stops with the file's name, and resuming says what is gone."""
    run = RunFolder.create(tmp_path / "run", {"label": "standard", "seed": 0})
    for step in (1, 2, 3):
        run.append({"step": step, "tokens": 10 * step})
    run.seal()
    harm(run.path / "metrics.jsonl")
    with pytest.raises(InputError, match=r"metrics.jsonl' must be written by its run alone"):
        getattr(run, end)(*([] if end == "seal" else [{"step": 4, "tokens": 40}]))
    assert not run.finished
    (line,) = set_damage_aside(RunFolder.open(run.path))
    assert line.startswith(f"metrics.jsonl: {said}")


def test_what_others_append_during_a_run_is_set_aside(tmp_path):
    run = RunFolder.create(tmp_path / "run", {"label": "standard", "seed": 0})
    run.append({"step": 1, "tokens": 10})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "tokens": 90}\n')
    with pytest.warns(DamageWarning, match=r"something else appended to .* all are in metrics.jsonl.damaged"):
        run.append({"step": 2, "tokens": 20})
    run.write_summary({"steps": 2})
    assert [record["step"] for record in run.metrics()] == [1, 2]
    assert '"step": 9' in (run.path / "metrics.jsonl.damaged").read_text()


@pytest.mark.parametrize("name", ["summary.json", "environment.json"])
def test_a_changed_file_is_set_aside_so_that_it_is_made_anew(study, unfinished, name):
    """Criterion: of a finished run, and the metrics of an unfinished one, whose content is kept."""
    run = RunFolder.open(study.parent / "runs" / "gated-1")
    change_a_byte(run.path / name)
    (line,) = set_damage_aside(run)
    assert f"it is kept as {name}.damaged" in line
    assert not run.altered()
    assert set_damage_aside(run) == []
    path = unfinished.path / "metrics.jsonl"
    changed = path.read_text().replace("2.25", "2.26")
    path.write_text(changed)
    assert set_damage_aside(unfinished) == ["metrics.jsonl: its content changed; it is kept as metrics.jsonl.damaged"]
    assert unfinished.metrics() == []
    assert (unfinished.path / "metrics.jsonl.damaged").read_text() == changed


def test_samples_and_probes_are_sealed_and_those_of_earlier_versions_are_read(study):
    run = RunFolder.open(study.parent / "runs" / "gated-1")
    run.write_samples([{"temperature": 0.0, "seed": 0, "text": "abc"}])
    assert run.samples[0]["text"] == "abc"
    path = run.path / "samples.json"
    path.write_text(path.read_text().replace("abc", "abd"))
    with pytest.raises(InputError, match=r"samples.json' is damaged: it does not have the content that was written"):
        _ = run.samples
    write_json(path, {"samples": []})
    assert run.samples == []
    write_json(run.path / PROBES_FILE, sealed({"done": ["x"]}) | {"done": ["y"]})
    with pytest.warns(DamageWarning, match="probes.json' is damaged: it does not have the content that was written"):
        assert StudyRecord.read(study).finished == 3


def test_a_changed_plan_of_a_study_is_refused_and_hides_no_other_study(study):
    before = (study / STUDY_FILE).read_text()
    assert len(find_records([study.parent / "none"], study.parent)) == 1
    (study / STUDY_FILE).write_text(before.replace("gated-1", "gated-0"))
    with pytest.raises(InputError, match=r"must hold the plan of a study, and is damaged"):
        StudyRecord.read(study)
    with pytest.warns(LeftOutWarning, match="left out a damaged study: "):
        assert find_records([study.parent / "none"], study.parent) == []
    plan = json.loads(before)
    del plan["checksum"]  # as an earlier version wrote it
    write_json(study / STUDY_FILE, plan)
    assert StudyRecord.read(study).finished == 4


def test_an_older_run_without_a_seal_and_a_copied_one_are_read(study):
    shutil.copytree(study.parent, study.parent.with_name("copied"))
    assert StudyRecord.read(study.parent.with_name("copied") / "tried-smoke").finished == 4
    for path in study.parent.rglob(SEAL):
        path.unlink()
    assert StudyRecord.read(study).finished == 4


def test_a_record_with_a_changed_number_is_refused(study):
    record = StudyRecord.read(study)
    stored = json.loads(record.to_text())
    assert StudyRecord.from_dict(stored) == record
    stored["cells"][0]["shared"]["summary"]["valid_loss"]["_each"][0] = 1.0
    with pytest.raises(InputError, match="the record is damaged: it does not have the content that was written"):
        StudyRecord.from_dict(stored)


@pytest.mark.parametrize("content", [{}, {"a": [1, 2.5, "é", None]}, {"checksum": "x"}])
def test_a_seal_holds_until_anything_changes(content):
    whole = sealed({name: value for name, value in content.items() if name != "checksum"})
    assert seal_holds(whole)
    assert seal_holds(json.loads(json.dumps(whole)))
    assert not seal_holds(whole | {"b": 1})
    assert not seal_holds({name: value for name, value in whole.items() if name != "checksum"})
