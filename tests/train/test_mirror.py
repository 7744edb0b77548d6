"""A mirror holds complete checkpoints whatever happens, and a run that is fetched from it goes on as the original."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from threading import Event

import fsspec
import pytest
from same_runs import same

from attractor.errors import InputError, RunInterrupted
from attractor.runs.run_folder import RunFolder
from attractor.train import mirror as module
from attractor.train.checkpoint import list_checkpoints, read_checkpoint, verify
from attractor.train.config import Runtime, TrainConfig
from attractor.train.loop import train
from attractor.train.mirror import Mirror, fetch, follow, mirrored, opened, small_files

RUNTIME = Runtime(device="cpu", threads=1, save_every=2, keep=3, telemetry_every=None)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    corpus = tmp_path_factory.mktemp("corpus") / "squares.txt"
    corpus.write_text("".join(f"{n} squared is {n * n}.\n" for n in range(3000)))
    return TrainConfig().replace(
        d_model=16, n_heads=2, n_layers=1, d_ff=16, n_steps=6, warmup_steps=1, batch_size=2, seq_len=16, eval_every=2,
        corpus=str(corpus), eval_batches=2,
    )  # fmt: skip


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(config, folder, RUNTIME)
    return folder


@pytest.fixture
def unfinished(finished, tmp_path):
    """The run as it was after step 4."""
    folder = tmp_path / "here" / "run"
    shutil.copytree(finished, folder)
    for name in ("summary.json", "seal.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "checkpoints" / "step-00000006")
    return folder


@pytest.fixture(params=["folder", "memory"])
def address(request, tmp_path):
    if request.param == "folder":
        yield str(tmp_path / "there")
    else:
        yield "memory://there"
        fsspec.filesystem("memory").store.clear()


def read(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def fetched(address, folder):
    lines = []
    fetch(address, folder, lines.append)
    return lines


def test_a_run_comes_back_as_it_was(finished, address, tmp_path):
    assert Mirror(address).update(finished) == []
    assert fetched(address, tmp_path / "back") == []
    here, back = (
        {k: v for k, v in read(run).items() if not k.startswith(".")} for run in (finished, tmp_path / "back")
    )
    assert here == back
    RunFolder.open(tmp_path / "back").refuse_altered()


def test_a_fetched_run_goes_on_to_the_same_weights(finished, unfinished, config, address, tmp_path):
    Mirror(address).update(unfinished)
    fetched(address, tmp_path / "back")
    train(config, tmp_path / "back", RUNTIME)
    ends = [(run / "checkpoints/step-00000006/model.safetensors").read_bytes() for run in (finished, tmp_path / "back")]
    assert ends[0] == ends[1]


def test_a_sharded_run_comes_back_and_goes_on_to_the_same_weights(
    finished, config, address, tmp_path, interrupt_during
):
    """Criterion: the mirror of an interrupted run holds its shards, and the fetched run ends as the plain one does."""
    runtime = replace(RUNTIME, checkpoint_format="sharded")
    interrupt_during([3])
    with pytest.raises(RunInterrupted):
        train(config, tmp_path / "here", runtime)
    assert Mirror(address).update(tmp_path / "here") == []
    assert fetched(address, tmp_path / "back") == []
    train(config, tmp_path / "back", runtime)
    ends = [read_checkpoint(list_checkpoints(run / "checkpoints")[-1])[:2] for run in (finished, tmp_path / "back")]
    assert same(list(ends[0]), list(ends[1]))


def test_a_pool_is_copied_listed_and_fetched(finished, unfinished, address, tmp_path):
    shutil.copytree(finished, unfinished.parent / "deep/other")
    (unfinished.parent / "deep/other/export").mkdir()
    (unfinished.parent / "deep/other/export/config.json").write_text("{}")
    assert Mirror(address).update(unfinished.parent) == []
    with small_files(address) as folder:
        from attractor.runs.index import indexed_runs

        runs = {run.key: run for run in indexed_runs(folder, {})}
    assert {key: run.state for key, run in runs.items()} == {"run": "interrupted", "deep/other": "finished"}
    assert runs["deep/other"].fields["loss"] == RunFolder.open(finished).summary()["valid_loss"]
    assert fetch(address, tmp_path / "back", print) == [tmp_path / "back/deep/other", tmp_path / "back/run"]


@pytest.mark.parametrize("n_written", range(12))
def test_a_copy_that_ends_anywhere_holds_complete_checkpoints(finished, unfinished, tmp_path, n_written):
    """Criterion: after any number of writes, each checkpoint with a manifest is complete, and none is lost that the
    mirror had and the run has not replaced by a newer one."""
    address = str(tmp_path / "there")
    Mirror(address).update(unfinished)
    before = {path.name for path in list_checkpoints(Path(address, "checkpoints"))}
    shutil.rmtree(unfinished / "checkpoints")
    shutil.copytree(finished / "checkpoints", unfinished / "checkpoints")
    shutil.rmtree(unfinished / "checkpoints" / "step-00000002")
    os.utime(unfinished / "checkpoints/step-00000004/manifest.json")
    manifest = unfinished / "checkpoints/step-00000004/manifest.json"
    manifest.write_text(manifest.read_text().replace("{", "{ ", 1))  # as if the step had been repeated
    mirror, n_left = Mirror(address), [n_written]

    def cut(name):
        def call(*arguments, **options):
            if not n_left[0]:
                raise OSError("the network is gone")
            n_left[0] -= 1
            return getattr(type(mirror.files), name)(mirror.files, *arguments, **options)

        return call

    for name in ("open", "pipe_file", "rm_file", "rm"):
        setattr(mirror.files, name, cut(name))
    try:
        with pytest.raises(OSError, match="the network is gone"):
            mirror.update(unfinished)
    finally:
        for name in ("open", "pipe_file", "rm_file", "rm"):
            delattr(mirror.files, name)
    complete = [path for path in list_checkpoints(Path(address, "checkpoints")) if (path / "manifest.json").exists()]
    assert complete
    assert {"step-00000002"} <= {path.name for path in complete} or "step-00000006" in {path.name for path in complete}
    assert before
    for path in complete:
        stored = json.loads((path / "manifest.json").read_text())["sha256"]
        assert all(module.hashlib.sha256((path / name).read_bytes()).hexdigest() == stored[name] for name in stored)


def test_only_what_is_new_is_copied_and_old_checkpoints_go(finished, unfinished, address):
    mirror = Mirror(address)
    mirror.update(unfinished)
    files, root = opened(address)
    written = []
    put = mirror._put
    mirror._put = lambda path, place: written.append(path.name) or put(path, place)
    mirror.update(unfinished)
    assert written == []
    shutil.copytree(finished / "checkpoints/step-00000006", unfinished / "checkpoints/step-00000006")
    shutil.rmtree(unfinished / "checkpoints/step-00000002")
    mirror.update(unfinished)
    assert sorted(written) == ["model.safetensors", "optimizer.pt", "state.json"]
    assert {path.rpartition("/")[2] for path in files.ls(f"{root}/checkpoints", detail=False)} == {
        "best.json", "step-00000004", "step-00000006",
    }  # fmt: skip


def test_an_older_run_never_replaces_a_newer_copy(finished, unfinished, config, address, tmp_path):
    Mirror(address).update(unfinished)
    shutil.rmtree(unfinished / "checkpoints/step-00000004")
    (unfinished / "metrics.jsonl").write_text("")
    (problem,) = Mirror(address).update(unfinished)
    assert "has step-00000002 where" in problem
    assert "has step-00000004; fetch that" in problem
    other = RunFolder.create(tmp_path / "other", {"seed": 1})
    (problem,) = Mirror(address).update(other.path)
    assert "holds another run; give another address" in problem
    assert fetched(address, tmp_path / "back") == []
    assert RunFolder.open(tmp_path / "back").metrics()
    with pytest.raises(InputError, match="holds a run with another configuration"):
        fetched(address, other.path)


def test_a_checkpoint_that_is_damaged_here_is_not_copied(unfinished, address, tmp_path):
    weights = unfinished / "checkpoints/step-00000004/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    (problem,) = Mirror(address).update(unfinished)
    assert "step-00000004' is left out, since its checksums do not hold: model.safetensors" in problem
    fetched(address, tmp_path / "back")
    assert [path.name for path in list_checkpoints(tmp_path / "back/checkpoints")] == ["step-00000002"]


def test_a_checkpoint_that_is_damaged_there_is_left_out(unfinished, tmp_path):
    address = tmp_path / "there"
    Mirror(str(address)).update(unfinished)
    weights = address / "checkpoints/step-00000004/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    (line,) = fetched(str(address), tmp_path / "back")
    assert line.startswith("damaged checkpoint in the copy, left out: ")
    (checkpoint,) = list_checkpoints(tmp_path / "back/checkpoints")
    assert checkpoint.name == "step-00000002"
    verify(checkpoint)
    (address / "checkpoints/step-00000002/manifest.json").write_text("{}")
    with pytest.raises(InputError, match="all 2 are damaged"):
        fetched(str(address), tmp_path / "nothing")


@pytest.mark.parametrize(
    "name", ["../outside", "checkpoints/step-00000009/../../../outside", ".hidden", "a/config.json"]
)
def test_a_hostile_mirror_writes_nothing_else(unfinished, tmp_path, name):
    Mirror("memory://there/run").update(unfinished)
    store = fsspec.filesystem("memory").store
    store[f"/there/run/{name}"] = store["/there/run/config.json"]
    fetched("memory://there/run", tmp_path / "deep/back")
    store.clear()
    assert {path.name for path in tmp_path.iterdir()} == {"here", "deep"}
    assert not {".hidden", "a"} & {path.name for path in (tmp_path / "deep/back").iterdir()}


def test_a_network_that_fails_is_said_once_and_tried_again(unfinished, address, monkeypatch):
    monkeypatch.setattr(module, "SECONDS_BETWEEN_COPIES", 0.01)
    mirror, ended, lines = Mirror(address), Event(), []
    update, n_failures = mirror.update, [5]

    def failing(folder):
        if n_failures[0]:
            n_failures[0] -= 1
            raise ConnectionError("no route")
        ended.set()
        return update(folder)

    mirror.update = failing
    follow(mirror, unfinished, ended, lines.append)
    assert lines == [f"mirror: could not copy to '{address}': ConnectionError: no route; it is tried again"]
    assert mirror.files.exists(f"{mirror.root}/checkpoints/step-00000004/manifest.json")


def test_a_network_that_hangs_does_not_hold_the_run(unfinished, monkeypatch):
    monkeypatch.setattr(module, "SECONDS_AT_THE_END", 0.1)
    released = Event()
    monkeypatch.setattr(Mirror, "update", lambda self, folder: [] if released.wait() else ["released too early"])
    lines = []
    with mirrored(unfinished, "memory://there", lines.append):
        pass  # without an end to the copy, this block ends
    assert not released.is_set()
    released.set()
    assert lines[0].startswith(
        "the copy at 'memory://there' is behind; this command completes it: attractor runs mirror "
    )


def test_an_address_that_nothing_can_open_is_refused():
    with pytest.raises(InputError, match=r"pip install -e '\.\[remote\]'"):
        Mirror("carrier-pigeon://coop")


@pytest.mark.slow
def test_a_run_is_resumed_from_a_server_of_s3(finished, unfinished, config, tmp_path, monkeypatch):
    """A local server that speaks S3's protocol, on the loopback device."""
    missing = "needs the extra 'remote-tests': pip install -e '.[remote-tests]'"
    pytest.importorskip("s3fs", reason=missing)
    server_of = pytest.importorskip("moto.server", reason=missing).ThreadedMotoServer
    server = server_of(ip_address="127.0.0.1", port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in (
            ("ACCESS_KEY_ID", "nobody"),
            ("SECRET_ACCESS_KEY", "nothing"),
            ("ENDPOINT_URL", f"http://{host}:{port}"),
        ):
            monkeypatch.setenv(f"AWS_{name}", value)
        fsspec.filesystem("s3").mkdir("pool")
        mirror = Mirror("s3://pool/runs")
        assert mirror.update(unfinished.parent) == []
        assert mirror.update(unfinished.parent) == []
        fetch("s3://pool/runs/run", tmp_path / "back", print)
        train(config, tmp_path / "back", RUNTIME)
        ends = [
            (run / "checkpoints/step-00000006/model.safetensors").read_bytes() for run in (finished, tmp_path / "back")
        ]
        assert ends[0] == ends[1]
        with small_files("s3://pool/runs") as folder:
            assert [path.name for path in folder.iterdir()] == ["run"]
    finally:
        server.stop()


class EndOfCopyError(Exception):
    """Ends a copy where no code expects it."""


class EndingChecksum:
    """The checksum of a file whose copy ends between its opening and its first byte."""

    def update(self, block):
        raise EndOfCopyError


def test_a_copy_that_ends_in_the_middle_of_a_file_can_be_fetched_and_completed(unfinished, tmp_path, monkeypatch):
    """Copy twice, and end each copy at every one of its files: the second one writes over files that are there."""
    address, sha256 = tmp_path / "there", hashlib.sha256
    n_ended = 0
    for number, intact in enumerate(2 * [*range(12)]):
        checksums = chain(repeat(sha256, intact), [EndingChecksum], repeat(sha256))
        monkeypatch.setattr(module.hashlib, "sha256", lambda checksums=checksums: next(checksums)())
        try:
            Mirror(str(address)).update(unfinished)
        except EndOfCopyError:
            n_ended += 1
        monkeypatch.undo()
        if any(address.rglob("manifest.json")):
            back = tmp_path / f"back-{number}"
            assert fetched(str(address), back) == []
            for path in list_checkpoints(back / "checkpoints"):
                verify(path)
    assert n_ended > 12
    assert Mirror(str(address)).update(unfinished) == []
    assert fetched(str(address), tmp_path / "back") == []
    assert len(list_checkpoints(tmp_path / "back/checkpoints")) == 2


@pytest.mark.slow
def test_a_copy_that_is_killed_can_be_fetched(unfinished, tmp_path):
    """Kill the program that copies at 12 moments: what is there is complete, and the next copy completes the rest."""
    address = tmp_path / "there"
    program = (
        "import sys; from pathlib import Path; from attractor.train.mirror import Mirror; print(flush=True); "
        "Mirror(sys.argv[1]).update(Path(sys.argv[2]))"
    )
    for number in range(12):
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(address), str(unfinished)], stdout=subprocess.PIPE
        )
        process.stdout.readline()
        time.sleep(number / 1000)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if any(address.rglob("manifest.json")):
            fetched(str(address), tmp_path / f"back-{number}")
            for path in list_checkpoints(tmp_path / f"back-{number}/checkpoints"):
                verify(path)
    assert Mirror(str(address)).update(unfinished) == []
    assert fetched(str(address), tmp_path / "back") == []
    assert len(list_checkpoints(tmp_path / "back/checkpoints")) == 2
