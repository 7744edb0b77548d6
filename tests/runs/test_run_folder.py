"""The run folder survives kills, copies, other configurations and damaged neighbours."""

import json
import math
import platform
import shutil
from pathlib import Path

import pytest
import torch

from attractor.attention.presets import presets_as_data
from attractor.errors import InputError
from attractor.files import plain, write_json
from attractor.runs.configuration import config_differences, config_hash, named
from attractor.runs.machine import environment
from attractor.runs.run_folder import RunFolder, find_runs

CONFIG = {"label": "caf\udce9", "seed": 0, "model": {"d_model": 64, "betas": (0.9, 0.95)}}  # a name of other bytes


def test_a_run_can_be_copied_anywhere_and_read(tmp_path):
    run = RunFolder.create(tmp_path / "a", CONFIG)
    run.append({"step": 1, "tokens": 10, "loss": 2.5})
    assert not run.finished
    run.write_summary({"valid_loss": 2.0})
    shutil.copytree(run.path, tmp_path / "elsewhere" / "b")
    copy = RunFolder.open(tmp_path / "elsewhere" / "b")
    assert copy.config == run.config
    assert copy.metrics() == [{"step": 1, "tokens": 10, "loss": 2.5}]
    assert copy.summary() == {"valid_loss": 2.0}
    assert copy.environment["python"]
    assert copy.finished
    assert copy.checkpoints.is_dir()


def test_an_equal_config_continues_the_run(tmp_path):
    RunFolder.create(tmp_path, CONFIG).append({"step": 1, "tokens": 10})
    reordered = dict(reversed(CONFIG.items()))
    assert len(RunFolder.create(tmp_path, reordered).metrics()) == 1


def test_another_config_is_refused_by_naming_the_fields(tmp_path):
    RunFolder.create(tmp_path, {"a": 1, "model": {"b": 2, "c": 3}, "d": 4, "e": 5})
    with pytest.raises(InputError, match=r"model\.b is 2 there, 7 here") as caught:
        RunFolder.create(tmp_path, {"a": 1, "model": {"b": 7, "c": None}, "d": 9, "f": 5})
    message = str(caught.value)
    assert "model.c is 3 there, null here" in message
    assert "and 2 more" in message
    assert "choose another folder" in message
    assert "\n" not in message


def test_foreign_files_are_never_mixed_with_a_run(tmp_path):
    """Criterion: a start that was interrupted before its config can be repeated."""
    (tmp_path / "file").write_text("mine")
    for name, inside in (("folder", "thesis.txt"), ("begun", ".config.json.123.tmp")):
        (tmp_path / name).mkdir()
        (tmp_path / name / inside).write_text('{"label"')
    for name in ("file", "folder"):
        with pytest.raises(InputError, match="choose"):
            RunFolder.create(tmp_path / name, CONFIG)
    assert RunFolder.create(tmp_path / "begun", CONFIG).config["label"] == CONFIG["label"]


def test_a_torn_last_line_is_ignored_and_then_replaced(tmp_path):
    run = RunFolder.create(tmp_path, CONFIG)
    run.append({"step": 1, "tokens": 10})
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 2, "tok')
    assert [record["step"] for record in run.metrics()] == [1]
    RunFolder.open(tmp_path).append({"step": 2, "tokens": 20})
    assert [record["step"] for record in run.metrics()] == [1, 2]


def test_damage_anywhere_else_is_an_error_and_a_record_without_step_or_tokens_a_bug(tmp_path):
    run = RunFolder.create(tmp_path, CONFIG)
    for damaged in (b'{"step": 1, "tok\n', b'{"loss": 1.0}\n', b"\n"):
        (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1, "tokens": 1}\n' + damaged)
        with pytest.raises(InputError, match="line 2"):
            run.metrics()
    with pytest.raises(AssertionError):
        run.append({"step": 1})


def test_resuming_drops_the_records_of_steps_that_are_repeated(tmp_path):
    run = RunFolder.create(tmp_path, CONFIG)
    run.keep_until(0)
    for step in range(5):
        run.append({"step": step, "tokens": 10 * step, "loss": math.nan})
    run.keep_until(2)
    run.append({"step": 3, "tokens": 30, "loss": 1.0})
    assert [record["step"] for record in run.metrics()] == [0, 1, 2, 3]
    assert run.metrics()[0]["loss"] is None


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    write_json(path, {"loss": 1})

    def power_cut(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", power_cut)
    with pytest.raises(KeyboardInterrupt):
        write_json(path, {"loss": 2})
    assert json.loads(path.read_text()) == {"loss": 1}
    assert [child.name for child in tmp_path.iterdir()] == ["summary.json"]


def test_numbers_that_json_lacks_become_null(tmp_path):
    write_json(tmp_path / "a.json", {"x": [math.nan, (math.inf, 1.5)], "y": {"z": -math.inf}})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": [None, [None, 1.5]], "y": {"z": None}}


def test_open_refuses_a_folder_that_is_damaged_or_not_a_run(tmp_path):
    with pytest.raises(InputError, match=r"config\.json"):
        RunFolder.open(tmp_path)
    for damaged in ('{"label": ', "[1]"):
        (tmp_path / "config.json").write_text(damaged)
        with pytest.raises(InputError, match="damaged"):
            RunFolder.open(tmp_path)


def test_find_runs_in_order_without_looking_inside_them(tmp_path):
    """Criterion: a damaged run is skipped with a warning, and no run at all is an error."""
    for folder, said in (("missing", "none"), ("", "no readable runs")):
        with pytest.raises(InputError, match=said):
            find_runs(tmp_path / folder)
    for name in ("b/seed-1", "b/seed-0", "a", "bad"):
        RunFolder.create(tmp_path / name, CONFIG)
    exported = tmp_path / "a" / "checkpoints" / "exported"
    exported.mkdir()
    (exported / "config.json").write_text("{}")
    (tmp_path / "bad" / "config.json").write_text("{")
    with pytest.warns(UserWarning, match="skipped a damaged run"):
        assert [run.path for run in find_runs(tmp_path)] == [tmp_path / n for n in ("a", "b/seed-0", "b/seed-1")]
    assert [run.path for run in find_runs(tmp_path / "a")] == [tmp_path / "a"]


def test_the_hash_depends_on_values_and_not_on_order():
    assert config_hash({"a": 1, "b": {"c": (2,)}}) == config_hash({"b": {"c": [2]}, "a": 1})
    assert config_hash({"a": 1}) != config_hash({"a": 2})


def test_differences_distinguish_absent_from_null():
    configs = {"x": {"m": {"a": 1, "b": 2}}, "y": {"m": {"a": 1, "b": None}}, "z": {"m": {"a": 1}}}
    assert config_differences(configs) == {"m.b": {"x": 2, "y": None}}
    assert config_differences({"x": {"a": {}}, "y": {"a": {"b": 1}}}) == {"a": {"x": {}}, "a.b": {"y": 1}}


@pytest.mark.parametrize("name", ["standard", "coupled-euler", "decay", "psiqrh"])
def test_a_mechanism_is_named_by_its_preset_even_without_newer_fields(name):
    """Criterion: this holds for a config, its JSON, JSON without a later field, and a config with one change."""
    presets = presets_as_data()
    whole = json.loads(json.dumps(plain(presets[name])))
    config = {"model": {"attention": whole, "d_model": 64}, "lr": 0.1}
    assert named(config, presets) == {"model": {"attention": name, "d_model": 64}, "lr": 0.1}
    assert named(config, {}) == config
    older = whole | {"output": {"kind": whole["output"]["kind"]}}
    assert named(older, presets) == name
    changed = whole | {"dropout": 0.25}
    assert named(changed, presets) == f"{name}, dropout=0.25"


def test_the_environment_names_gpus_that_are_used(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"a GPU, number {device}")
    for is_used, names in ((False, []), (True, ["a GPU, number 0", "a GPU, number 1"])):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda is_used=is_used: is_used)
        assert environment()["gpus"] == names


def test_processors_of_one_name_and_several_generations_have_their_own_names(monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda path: True)
    names = []
    for generation in ("cpu family\t: 25\nmodel\t\t: 1\n", "cpu family\t: 26\nmodel\t\t: 2\n", ""):
        told = f"processor\t: 0\n{generation}model name\t: EPYC\nstepping\t: 1\n\nprocessor\t: 1\n"
        monkeypatch.setattr(Path, "read_text", lambda path, told=told, **_: told)
        names.append(environment()["processor"])
    assert names == ["EPYC (family 25, model 1)", "EPYC (family 26, model 2)", "EPYC"]


def test_the_environment_names_neither_host_nor_folder():
    seen = environment()
    assert seen["versions"]["numpy"]
    assert seen["time"].endswith("+00:00")
    assert platform.node() not in json.dumps(seen).split('"')
    assert str(Path(__file__).parents[2]) not in json.dumps(seen)
