"""The index of runs agrees with the run folders after any change to them, and can be rebuilt at any time."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys

import pytest

from attractor.attention.presets import presets_as_data
from attractor.errors import InputError
from attractor.files import write_json
from attractor.files.seals import LARGEST_OBJECT
from attractor.report.live_list import WatchedFolder
from attractor.runs import run_folder
from attractor.runs.filters import conditions
from attractor.runs.index import index_of, indexed_runs
from attractor.runs.run_folder import RunFolder, find_runs

PRESETS = presets_as_data()


def add_run(folder, name, finished=True, **config):
    run = RunFolder.create(folder / name, {"label": name, "seed": 0, "lr": 1e-3, **config})
    run.append({"step": 5, "tokens": 50, "valid_loss": 3.0})
    run.append({"step": 10, "tokens": 100, "loss": 2.0})
    if finished:
        run.write_summary({"steps": 10, "tokens": 100, "valid_loss": 2.5, "metric": {"name": "accuracy", "value": 0.5}})
    return run


def listed(folder):
    return {run.key: run for run in indexed_runs(folder, PRESETS)}


def test_the_index_follows_the_folders(tmp_path):
    add_run(tmp_path, "a")
    add_run(tmp_path, "deep/b", finished=False)
    first = listed(tmp_path)
    assert set(first) == {"a", "deep/b"}
    assert first["a"].fields | {"begun": 0} == {
        "label": "a", "seed": 0, "lr": 1e-3, "state": "finished", "steps": 10, "tokens": 100, "loss": 2.5, "begun": 0,
        "metric": "accuracy", "value": 0.5, "metric.name": "accuracy", "metric.value": 0.5, "valid_loss": 2.5,
    }  # fmt: skip
    assert first["deep/b"].state == "interrupted"
    assert first["deep/b"].fields["steps"] == 10
    assert first["deep/b"].fields["loss"] == 3.0  # the loss of the latest evaluation
    assert listed(tmp_path) == first

    RunFolder.open(tmp_path / "deep/b").write_summary({"steps": 20, "valid_loss": 1.0})
    add_run(tmp_path, "c")
    shutil.rmtree(tmp_path / "a")
    second = listed(tmp_path)
    assert set(second) == {"c", "deep/b"}
    assert (second["deep/b"].state, second["deep/b"].fields["loss"]) == ("finished", 1.0)


def test_a_nested_value_is_indexed_by_the_name_of_its_preset(tmp_path):
    add_run(tmp_path, "a", model={"attention": PRESETS["gated"], "d_model": 8})
    fields = listed(tmp_path)["a"].fields
    assert fields["model.attention"] == "gated"
    assert fields["model.d_model"] == 8


def test_a_run_that_was_killed_while_it_finished_is_interrupted(tmp_path, monkeypatch):
    """Criterion: the list and watch show it so, and whoever needs its results is told how to get them."""
    run = add_run(tmp_path, "a", finished=False)
    with run.hold():
        assert listed(tmp_path)["a"].state == "running"
    write = run_folder.write_text

    def killed_at_the_summary(path, text):
        if path.name == "summary.json":
            raise KeyboardInterrupt
        write(path, text)

    monkeypatch.setattr(run_folder, "write_text", killed_at_the_summary)
    with pytest.raises(KeyboardInterrupt):
        run.write_summary({"steps": 10})
    assert indexed_runs(tmp_path, PRESETS)[0].state == "interrupted"
    assert WatchedFolder(tmp_path).look()[0].state == "interrupted"
    with pytest.raises(InputError, match=r"has a seal but no summary\.json: .* --resume \S+' writes the file anew"):
        run.refuse_altered()


@pytest.mark.parametrize(
    "change",
    [
        b"",
        b"no database",
        bytes(range(256)) * 40,
        "DROP TABLE runs",
        "DROP TABLE runs; PRAGMA user_version = 999",
        "DROP TABLE runs; CREATE TABLE runs (name TEXT)",
        "UPDATE runs SET fields = 'no JSON'",
        "UPDATE runs SET fields = '[]'",
        "UPDATE runs SET fields = '{}'",
        "UPDATE runs SET fields = NULL",
    ],
)
def test_a_damaged_index_hides_no_run_and_is_built_again(tmp_path, change):
    """Criterion: the list is as before, and after at most one more list the index holds JSON of each run again."""
    add_run(tmp_path, "a")
    good = listed(tmp_path)
    if isinstance(change, bytes):
        index_of(tmp_path).write_bytes(change)
    else:
        with sqlite3.connect(index_of(tmp_path)) as index:
            index.executescript(change)
    assert listed(tmp_path) == listed(tmp_path) == good
    with sqlite3.connect(index_of(tmp_path)) as index:
        ((key, fields),) = index.execute("SELECT key, fields FROM runs")
    assert (key, json.loads(fields)) == ("a", good["a"].fields)


def test_a_database_in_a_folder_of_runs_is_not_read(tmp_path):
    """Criterion: not even one that is named as earlier versions named the index, and whose table never ends."""
    add_run(tmp_path, "a")
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS key, 2, 3, 4 FROM n"
    with sqlite3.connect(tmp_path / ".attractor-index.sqlite3") as index:
        index.execute(f"CREATE VIEW runs AS {endless}")
    assert set(listed(tmp_path)) == {"a"}
    assert index_of(tmp_path).is_file()
    assert not index_of(tmp_path).is_relative_to(tmp_path)


def test_an_object_that_is_too_large_is_refused(tmp_path):
    path = add_run(tmp_path, "a").path
    os.truncate(path / "config.json", LARGEST_OBJECT + 1)
    with pytest.raises(InputError, match=r"config.json' must be a file of at most 64 MiB, and is larger"):
        read_all(path)
    assert listed(tmp_path)["a"].state == "damaged"


def read_all(path):
    run = RunFolder.open(path)
    return run.metrics(), run.summary(), run.environment


@pytest.mark.parametrize("name", ["config.json", "summary.json", "metrics.jsonl", "seal.json", "environment.json"])
@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_files_that_never_end_are_named_at_once(tmp_path, name, kind):
    """Criterion: the list, the live view and the reader of one run name the file, and other runs are listed."""
    add_run(tmp_path, "good")
    path = add_run(tmp_path, "endless", finished=False).path / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    assert listed(tmp_path)["good"].state == "finished"
    assert {line.key: line.state for line in WatchedFolder(tmp_path).look()}["good"] == "finished"
    if name != "environment.json":  # the list does not read it
        assert listed(tmp_path)["endless"].state == "damaged"
    with pytest.raises(InputError, match=f"endless/{name}' must be a regular file"):
        read_all(tmp_path / "endless")


def test_an_index_that_is_locked_or_cannot_be_written_or_stored_hides_no_run(tmp_path, monkeypatch):
    add_run(tmp_path, "a")
    listed(tmp_path)
    add_run(tmp_path, "b")
    connect = sqlite3.connect
    read_only = f"file:{index_of(tmp_path)}?mode=ro"  # root may write into any file, so SQLite is told not to
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", lambda path, **options: connect(read_only, uri=True, **options))
        assert set(listed(tmp_path)) == {"a", "b"}
        patch.setattr(sqlite3, "connect", lambda path, **options: connect(path, **{**options, "timeout": 0.01}))
        with connect(index_of(tmp_path), isolation_level=None) as other:
            other.execute("BEGIN EXCLUSIVE")
            assert set(listed(tmp_path)) == {"a", "b"}
            other.execute("ROLLBACK")
        assert set(listed(tmp_path)) == {"a", "b"}
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ATTRACTOR_CACHE", str(tmp_path / "file"))
    assert set(listed(tmp_path)) == {"a", "b"}


def test_two_processes_use_an_index_at_once(tmp_path):
    """Criterion: whichever of them creates or changes the index, each lists every run."""
    for number in range(20):
        add_run(tmp_path, str(number))
    program = (
        "import sys\n"
        "from attractor.runs.index import indexed_runs\n"
        "for _ in range(5): assert len(indexed_runs(sys.argv[1], {})) == 20\n"
    )
    together = [subprocess.Popen([sys.executable, "-W", "error", "-c", program, str(tmp_path)]) for _ in range(3)]
    assert [process.wait(timeout=120) for process in together] == [0, 0, 0]


def test_a_tokenizer_that_changes_and_is_restored_is_noticed(tmp_path):
    run = add_run(tmp_path, "run", finished=False)
    tokenizer = run.path / "tokenizer.json"
    tokenizer.write_text("{}")
    run.write_summary({"steps": 10})
    states = []
    for content in ("{}", "{ }", "{}"):
        tokenizer.write_text(content)
        states.append((listed(tmp_path)["run"].state, bool(RunFolder.open(tmp_path / "run").altered())))
    assert states == [("finished", False), ("damaged", True), ("finished", False)]


def test_links_between_folders_of_runs_are_not_followed(tmp_path):
    add_run(tmp_path / "group", "run")
    (tmp_path / "group" / "up").symlink_to(tmp_path)
    assert [run.path for run in find_runs(tmp_path)] == [tmp_path / "group" / "run"]
    assert set(listed(tmp_path)) == {"group/run"}


@pytest.mark.parametrize("name", ["config.json", "summary.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"a": "\xff"}'])
def test_a_damaged_run_hides_no_other(tmp_path, name, content):
    add_run(tmp_path, "good")
    add_run(tmp_path, "hurt")
    (tmp_path / "hurt" / name).write_bytes(content)
    runs = listed(tmp_path)
    assert runs["good"].state == "finished"
    assert runs["hurt"].state == "damaged"
    assert runs["hurt"].problem
    add_run(tmp_path, "torn", finished=False)
    (tmp_path / "torn" / "metrics.jsonl").write_bytes(b'\xff\n{\n[1]\n{"step": 3, "tokens": 30, "valid_loss": 1.5}\n')
    assert listed(tmp_path)["torn"].fields["loss"] == 1.5


def test_conditions_select_runs(tmp_path):
    for number in range(6):
        kind = "gated" if number % 2 else "standard"
        write_json(tmp_path / "x.json", {})
        add_run(tmp_path, str(number), lr=10.0**-number, model={"attention": PRESETS[kind]}, compile=number == 3)

    def keys(*where):
        runs = listed(tmp_path)
        asked = conditions(where, {name for run in runs.values() for name in run.fields})
        return [key for key, run in runs.items() if all(condition.holds(run.fields) for condition in asked)]

    assert keys() == list("012345")
    assert keys("attention=gated lr>1e-3") == ["1"]
    assert keys("attention=gated", "lr>=1e-3") == ["1", "3"]
    assert keys("model.attention!=gated lr<1") == ["2", "4"]
    assert keys("label=3") == ["3"]
    assert keys("attention~GAT seed=0 state=finished loss<=2.5") == ["1", "3", "5"]
    assert keys("compile=true") == ["3"]
    assert keys("loss>2.5") == []
    add_run(tmp_path, "7", label="ItrSA spectral 1e-4", lr=1.0)
    assert keys("label=ItrSA spectral 1e-4 lr>0.5") == ["7"]


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("lrr>1", "unknown field 'lrr'; did you mean 'lr'?"),
        ("lr", "where must hold conditions as lr>1e-3"),
        ("lr>", "where must hold conditions as lr>1e-3"),
        ("lr>big", "where must compare 'lr' with a number, got 'big'; write lr>0.5, or use = or ~ for a text"),
        ("label=gated lr > 1", "where must have no space beside a sign, and one sign in each condition, got 'label"),
        ("label!=a lr > 1", "one sign in each condition, got 'label!=a lr > 1'; write it as lr>1e-3"),
        ("seed==0", "one sign in each condition, got 'seed==0'"),
        ("label!= gated", "where must have no space beside a sign"),
        ("width=1", "where must name one field, and 'width' is several: a.width, b.width; write one of them"),
    ],
)
def test_a_meaningless_condition_is_refused(where, said):
    with pytest.raises(InputError) as refused:
        conditions([where], ["lr", "a.width", "b.width"])
    assert said in str(refused.value)
