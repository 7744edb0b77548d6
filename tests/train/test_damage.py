"""A resumed run sets damaged files aside, keeps the intact ones, and continues to the end of an undamaged run."""

import shutil

import pytest

from attractor.errors import InputError
from attractor.runs.run_folder import RunFolder
from attractor.train.checkpoint import list_checkpoints
from attractor.train.config import Runtime
from attractor.train.loop import train
from same_runs import Listening

RUNTIME = Runtime(device="cpu", threads=1, save_every=2, keep=3, telemetry_every=None)


@pytest.fixture(scope="module")
def config(config):
    return config.replace(n_steps=6, warmup_steps=1, eval_every=2)


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory):
    """Return the folder of a finished run, which no test changes."""
    path = tmp_path_factory.mktemp("whole") / "run"
    train(config, path, RUNTIME)
    return path


@pytest.fixture
def run(whole, tmp_path):
    """Return a copy of the finished run."""
    return shutil.copytree(whole, tmp_path / "run")


def flip(path):
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def resumed(config, path):
    """Resume a run, and return what it says about damage."""
    listening = Listening()
    train(config, path, RUNTIME, listening)
    return [note for note in listening.notes if note.startswith("damaged")]


def test_a_damaged_run_ends_as_an_undamaged_one(config, whole, run):
    folder, newest = run, list_checkpoints(run / "checkpoints")[-1]
    flip(newest / "model.safetensors")
    (folder / "summary.json").write_text("")
    (folder / "checkpoints" / "best.json").write_text("{")
    lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_bytes(b"".join([*lines[:1], b"damaged\n", *lines[1:], b"torn"]))

    said = "\n".join(resumed(config, folder))
    assert f"metrics.jsonl: 1 of {len(lines) + 1} lines are damaged; the file is kept as metrics.jsonl.damaged" in said
    assert f"{newest / 'model.safetensors'}' does not have the content that was written" in said
    assert f"it is kept as {newest.name}.damaged; using step-" in said
    assert "summary.json: the file must hold one JSON object; it is kept as summary.json.damaged; the run is" in said
    assert "best.json: the file must hold one JSON object; it is kept as best.json.damaged" in said
    assert (folder / "metrics.jsonl.damaged").read_bytes().endswith(b"torn")
    assert (folder / "checkpoints" / f"{newest.name}.damaged").is_dir()
    assert resumed(config, folder) == []

    again = RunFolder.open(folder).summary()
    assert again["valid_loss"] == RunFolder.open(whole).summary()["valid_loss"]
    ends = [list_checkpoints(place / "checkpoints")[-1] / "model.safetensors" for place in (folder, whole)]
    assert ends[0].read_bytes() == ends[1].read_bytes()
    steps = [record["step"] for record in RunFolder.open(folder).metrics() if "valid_loss" in record]
    assert steps == sorted(set(steps))


def test_a_run_without_its_configuration_or_in_use_is_refused(config, run):
    (run / "summary.json").write_text("{")
    with RunFolder.open(run).hold(), pytest.raises(InputError, match="must be free"):
        resumed(config, run)
    assert (run / "summary.json").read_text() == "{"
    (run / "config.json").write_text("{")
    with pytest.raises(InputError, match="damaged"):
        resumed(config, run)


def test_files_set_aside_never_replace_those_set_aside_before(config, run):
    for number in range(3):
        (run / "summary.json").write_text(f"damaged {number}")
        resumed(config, run)
    kept = sorted(run.glob("summary.json.damaged*"))
    assert [path.read_text() for path in kept] == ["damaged 0", "damaged 1", "damaged 2"]


def test_a_different_result_is_named_although_no_part_of_it_looks_damaged(config, run):
    path = run / "metrics.jsonl"
    path.write_text(path.read_text().replace('"step": 2', '"step": 1', 1))
    (line,) = resumed(config, run)
    assert line.startswith("damaged: reports leave the run out: ")
    assert f"metrics.jsonl of '{run}' changed since the run was sealed" in line


@pytest.mark.parametrize(
    ("name", "consequence"),
    [("seal.json", []), ("checkpoints/best.json", ["best.json: written again from step-00000006"])],
)
def test_a_small_file_of_a_finished_run_is_set_aside_and_the_results_stay(config, run, name, consequence):
    summary, best = ((run / kept).read_bytes() for kept in ("summary.json", "checkpoints/best.json"))
    (run / name).write_text("{")
    file = name.rpartition("/")[2]
    lines = [f"{file}: the file must hold one JSON object; it is kept as {file}.damaged", *consequence]
    assert resumed(config, run) == [f"damaged: {line}" for line in lines]
    assert (run / "summary.json").read_bytes() == summary
    assert (run / "checkpoints/best.json").read_bytes() == best
    assert resumed(config, run) == []
