"""Checkpoints: damage is named and skipped, a failing write loses nothing, and nothing is ever unpickled freely."""

import ast
import errno
import json
import os
import random
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import attractor
from attractor.errors import InputError, RunInterrupted
from attractor.files.seals import checksum_of, sealed, without_checksum, write_sealed
from attractor.runs.configuration import config_hash
from attractor.runs.run_folder import RunFolder
from attractor.train import checkpoint
from attractor.train.config import Runtime, TrainConfig
from attractor.train.display import Display
from attractor.train.evaluate import Evaluation
from attractor.train.loop import Run, train
from same_runs import Interrupt, Listening, interrupting


class Program:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.abort, ())


FOREIGN: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a pickle": ("optimizer.pt", lambda path: torch.save({"x": Program()}, path)),
    "other tensors": ("optimizer.pt", lambda path: torch.save({"x": torch.zeros(3)}, path)),
    "a list": ("optimizer.pt", lambda path: torch.save([1, 2], path)),
    "bytes for weights": ("model.safetensors", lambda path: path.write_bytes(b"x" * 99)),
    "other weights": ("model.safetensors", lambda path: save_file({"x": torch.zeros(3)}, path)),
    "a text for a step": ("state.json", lambda path: path.write_text('{"step": "x", "tokens": 1}')),
    "a deep state": ("state.json", lambda path: path.write_text("[" * 100_000)),
}
FILES = ("model.safetensors", "optimizer.pt", "state.json", "manifest.json")


@pytest.fixture(scope="module")
def interrupted_run(config: TrainConfig, runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        interrupting(patch)([10])
        with pytest.raises(RunInterrupted):
            train(config, path, replace(runtime, keep=3))
    return path


@pytest.fixture
def stopped(interrupted_run: Path, tmp_path: Path) -> Path:
    """Return a copy of a run that stopped after step 11 of 12, with checkpoints of steps 5, 10 (the best) and 11."""
    return shutil.copytree(interrupted_run, tmp_path / "run")


def steps(folder: Path) -> list[int]:
    return [int(path.name.removeprefix("step-")) for path in checkpoint.list_checkpoints(folder)]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": flip,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "emptied": lambda path: path.write_bytes(b""),
    "removed": Path.unlink,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_used(stopped: Path, name: str, damage: str) -> None:
    folder, notes = stopped / "checkpoints", []
    newest = folder / "step-00000011"
    DAMAGES[damage](newest / name)
    assert checkpoint.newest_intact(folder, notes.append) == folder / "step-00000010"
    (note,) = notes
    assert str(newest / name) in note
    assert "using step-00000010" in note


@pytest.mark.parametrize("content", FOREIGN)
def test_a_checkpoint_of_somebody_else_is_refused_in_a_line(stopped: Path, content: str, interrupted_run: Path) -> None:
    """Criterion: whoever can compute checksums brings no program, and no error of a library, into the command."""
    path, (name, write) = stopped / "checkpoints/step-00000011", FOREIGN[content]
    write(path / name)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["sha256"][name] = checksum_of(path / name)
    write_sealed(path / "manifest.json", without_checksum(manifest))
    checkpoint.verify(path)
    with pytest.raises(InputError, match="must hold the state of its run, and cannot be loaded"):
        train(TrainConfig.from_dict(RunFolder.open(stopped).config), stopped, Runtime(device="cpu"))


OBSTACLES: dict[str, Callable[[Path], None]] = {
    "file": Path.touch,
    "folder": Path.mkdir,
    "link": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
@pytest.mark.parametrize("name", [".writing-x", ".replaced-x", "step-00000012", "step-00000003"])
def test_no_leftover_blocks_a_run(
    config: TrainConfig, runtime: Runtime, stopped: Path, name: str, obstacle: str
) -> None:
    """Criterion: a checkpoint that is a file, an empty folder or a link to nothing counts as damaged, and the run
    ends."""
    OBSTACLES[obstacle](stopped / "checkpoints" / name)
    assert train(config, stopped, runtime)["steps"] == 12
    assert steps(stopped / "checkpoints")[-1] == 12


def test_a_manifest_of_another_shape_is_damage(stopped: Path) -> None:
    for content in ("[]", "{}", '{"format": 1}', '{"format": null, "sha256": {}}', '{"sha256": 3}'):
        (stopped / "checkpoints/step-00000011/manifest.json").write_text(content)
        assert checkpoint.newest_intact(stopped / "checkpoints", [].append) == stopped / "checkpoints/step-00000010"


def test_a_run_continues_from_the_previous_checkpoint_to_the_same_end(
    config: TrainConfig, runtime: Runtime, stopped: Path, tmp_path: Path
) -> None:
    """Criterion: with the two newest checkpoints damaged, the final weights have the checksum of an undisturbed run."""
    for step in (10, 11):
        flip(stopped / f"checkpoints/step-{step:08d}/optimizer.pt")
    listening = Listening()
    train(config, stopped, runtime, listening)
    assert [note.split(": ")[0] for note in listening.notes] == ["damaged checkpoint"] * 2
    train(config, tmp_path / "whole", runtime)
    weights = [path / "checkpoints/step-00000012/model.safetensors" for path in (stopped, tmp_path / "whole")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    kinds = [(record["step"], "loss" in record, "valid_loss" in record) for record in RunFolder.open(stopped).metrics()]
    assert len(kinds) == len(set(kinds))


def test_damaged_checkpoints_never_displace_those_of_the_resumed_run(
    config: TrainConfig, runtime: Runtime, stopped: Path, interrupt_during: Interrupt
) -> None:
    """Criterion: a run resumes before two damaged checkpoints and is interrupted before it reaches their steps. If it
    keeps one or two newest, it has kept the one just saved."""
    for step in (10, 11):
        flip(stopped / f"checkpoints/step-{step:08d}/model.safetensors")
    for keep, step in ((2, 7), (1, 8)):
        interrupt_during([step - 1])
        with pytest.raises(RunInterrupted):
            train(config, stopped, replace(runtime, keep=keep))
        assert checkpoint.newest_intact(stopped / "checkpoints", [].append) == stopped / f"checkpoints/step-{step:08d}"


def test_where_all_are_damaged_nothing_is_overwritten(
    config: TrainConfig, runtime: Runtime, stopped: Path, files: Callable
) -> None:
    """Criterion: one line names the folder, the damage and both remedies; every file stays unchanged."""
    for path in checkpoint.list_checkpoints(stopped / "checkpoints"):
        flip(path / "state.json")
    before = files(stopped)
    with pytest.raises(InputError) as caught:
        train(config, stopped, runtime)
    message = str(caught.value)
    assert message.startswith(f"'{stopped}/checkpoints' must hold an intact checkpoint, and all 3 are damaged")
    assert str(stopped / "checkpoints/step-00000011/state.json") in message
    assert f"restore one from a copy, or remove '{stopped}' to start anew" in message
    assert files(stopped) == before


def test_another_format_is_refused_rather_than_passed_over(stopped: Path) -> None:
    path = stopped / "checkpoints/step-00000011/manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["checksum"]
    write_sealed(path, manifest | {"format": 3})  # as another version of this program would write it
    expected = "format must be 2, got 3 in '.*step-00000011'; use the version of attractor that wrote it"
    with pytest.raises(InputError, match=expected):
        checkpoint.newest_intact(stopped / "checkpoints", [].append)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_anywhere_is_damage(stopped: Path, name: str) -> None:
    """Criterion: this holds for each bit of the manifest, blanks and brackets included, and for 60 random bits of every
    other file. With the bit restored, the checkpoint is intact."""
    path = stopped / "checkpoints/step-00000011"
    content = bytearray((path / name).read_bytes())
    everywhere = range(8 * len(content))
    for bit in everywhere if name == "manifest.json" else random.Random(name).sample(everywhere, 60):
        content[bit // 8] ^= 1 << bit % 8
        (path / name).write_bytes(content)
        with pytest.raises(checkpoint.DamagedCheckpointError, match=name):
            checkpoint.verify(path)
        content[bit // 8] ^= 1 << bit % 8
    (path / name).write_bytes(content)
    checkpoint.verify(path)


def test_a_checkpoint_of_another_configuration_is_refused(
    config: TrainConfig, runtime: Runtime, stopped: Path, tmp_path: Path, interrupt_during: Interrupt
) -> None:
    """Criterion: the checkpoint is refused in the folder of a run with another seed, whose weights have the same
    shapes. The error is one line that names both, by `train` and when weights are loaded."""
    other = config.replace(seed=1)
    interrupt_during([1])
    with pytest.raises(RunInterrupted):
        train(other, tmp_path / "other", runtime)
    moved = tmp_path / "other/checkpoints/step-00000011"
    shutil.copytree(stopped / "checkpoints/step-00000011", moved)
    hashes = [config_hash(RunFolder.open(path).config) for path in (tmp_path / "other", stopped)]
    expected = f"'{moved}' must be a checkpoint of this run's configuration {hashes[0]}, and it is one of {hashes[1]}; "
    for use in (
        lambda: train(other, tmp_path / "other", runtime),
        lambda: checkpoint.load_weights(moved, config.model.build(0)),
    ):
        with pytest.raises(InputError) as caught:
            use()
        assert str(caught.value) == expected + "move it back to the run it came from"


@contextmanager
def files_no_larger_than(n_bytes: int) -> Iterator[None]:
    """Make the operating system refuse every write beyond this size, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def assert_refused_and_nothing_lost(
    write: Callable[[], object], folder: Path, files: Callable, why: str, cure: str = "make room"
) -> None:
    before = files(folder)
    with pytest.raises(InputError) as caught:
        write()
    message = str(caught.value)
    assert message.startswith(f"could not save the checkpoint of step 99 in '{folder}': ")
    assert why in message
    assert message.endswith(f"{cure}, then resume. Earlier checkpoints are intact")
    assert "\n" not in message
    assert files(folder) == before
    assert not list(folder.glob(".*")), "a temporary folder was left"
    for path in checkpoint.list_checkpoints(folder):
        checkpoint.verify(path)


@pytest.fixture
def save(config: TrainConfig, runtime: Runtime, stopped: Path) -> Callable[[], None]:
    run = Run(config, RunFolder.open(stopped), None, runtime, Display())  # type: ignore[arg-type]
    run.checkpoints.restore()
    run.state.step = 99
    return run.checkpoints.save


@pytest.mark.parametrize("place", ["in the weights", "early in the optimizer", "late in the optimizer"])
def test_a_disk_that_fills_while_writing_costs_no_earlier_checkpoint(
    stopped: Path, save: Callable[[], None], files: Callable, place: str
) -> None:
    """Criterion: a real write fails in each file, and in two places of files where torch may hide the reason. With
    enough space, the same save succeeds."""
    folder = stopped / "checkpoints"
    weights, optimizer = ((folder / "step-00000011" / name).stat().st_size for name in FILES[:2])
    limits = {"weights": weights - 100, "early": weights + 1000, "late": optimizer - 100}
    (limit,) = [limits[word] for word in place.split() if word in limits]
    with files_no_larger_than(limit):
        assert_refused_and_nothing_lost(save, folder, files, "File too large")
    save()
    assert steps(folder)[-1] == 99


@pytest.mark.parametrize(
    ("number", "cure"),
    [
        (errno.ENOSPC, "make room"),
        (errno.EDQUOT, "make room"),
        (errno.EROFS, "make it writable"),
        (errno.EACCES, "make it writable"),
    ],
)
def test_a_disk_that_refuses_late_costs_no_earlier_checkpoint(
    stopped: Path, save: Callable[[], None], files: Callable, monkeypatch: pytest.MonkeyPatch, number: int, cure: str
) -> None:
    """Some file systems report an error only when written data are flushed."""

    def refuse(descriptor: int) -> None:
        raise OSError(number, "the reason of the system")

    monkeypatch.setattr("os.fsync", refuse)
    assert_refused_and_nothing_lost(save, stopped / "checkpoints", files, "the reason of the system", cure)


def test_a_kill_while_an_old_checkpoint_is_removed_leaves_no_incomplete_one(
    stopped: Path, monkeypatch: pytest.MonkeyPatch, save: Callable[[], None]
) -> None:
    """Criterion: after a kill at the first file of each removal, every checkpoint with its final name is complete, and
    the next save removes the rest."""
    folder = stopped / "checkpoints"

    def killed(path: Path) -> None:
        next(path.iterdir()).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.drop_old(folder, 1, checkpoint.TrainState(step=11))
    assert steps(folder) == [10, 11]
    for path in checkpoint.list_checkpoints(folder):
        checkpoint.verify(path)
    save()
    assert not list(folder.glob(".*"))


def test_the_newest_and_the_best_checkpoints_are_kept(
    config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Criterion: with validation losses 3, 1, 2, nan, 4, 1 after steps 2, 4, .. 12, the best is step 4. A later equal
    loss is no better, and one that is not finite never is. The best outlives the two newest, and the summary names
    it."""
    losses = iter([3.0, 1.0, 2.0, float("nan"), 4.0, 1.0])
    monkeypatch.setattr(Run, "evaluation", lambda run, part: Evaluation(next(losses), 0.0, None))
    summary = train(config.replace(eval_every=2), tmp_path, Runtime(device="cpu", save_every=2, keep=2))
    folder = tmp_path / "checkpoints"
    assert steps(folder) == [4, 10, 12]
    assert checkpoint.best_checkpoint(folder) == folder / "step-00000004"
    assert json.loads((folder / "best.json").read_text()) == sealed({"step": 4, "loss": 1.0})
    assert (summary["best_step"], summary["best_loss"]) == (4, 1.0)


def test_the_best_holds_the_weights_that_were_evaluated(
    config: TrainConfig, runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Criterion: the best checkpoint, loaded and evaluated again, gives the loss that it is marked with."""
    train(config.replace(lr=0.5), tmp_path, runtime)  # a high rate, so that the last is not the best
    folder = RunFolder.open(tmp_path)
    run = Run(config, folder, config.build_task(), runtime, Display())
    best = checkpoint.best_checkpoint(folder.checkpoints)
    assert best is not None
    checkpoint.load_weights(best, run.model)
    marked = json.loads((folder.checkpoints / "best.json").read_text())
    assert run.evaluation("valid").loss == marked["loss"]
    losses = [record["valid_loss"] for record in folder.metrics() if "valid_loss" in record]
    assert marked["loss"] == min(losses)


def test_a_damaged_best_checkpoint_is_not_loaded_and_loses_its_mark(
    config: TrainConfig, runtime: Runtime, stopped: Path
) -> None:
    """A run that resumes before its best checkpoint, which is damaged, must not call that one the best."""
    for step in (10, 11):
        flip(stopped / f"checkpoints/step-{step:08d}/model.safetensors")
    with pytest.raises(InputError, match=r"damaged checkpoint: '.*model.safetensors' does not have the content"):
        checkpoint.load_weights(stopped / "checkpoints/step-00000010", config.model.build(0))
    run = Run(config, RunFolder.open(stopped), None, runtime, Display())  # type: ignore[arg-type]
    run.checkpoints.restore()
    assert checkpoint.best_checkpoint(stopped / "checkpoints") == stopped / "checkpoints/step-00000005"


UNPICKLING = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}


def unsafe_reads(source: str) -> list[int]:
    """Return the lines that import an unpickler, load with torch without weights_only=True, or allow numpy's
    pickles."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        bad = any(name.split(".")[0] in UNPICKLING for name in names)
        if isinstance(node, ast.Call):
            keywords = [keyword for keyword in node.keywords if keyword.arg in ("weights_only", "allow_pickle")]
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in keywords}
            function = ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ""
            bad |= function in ("torch.load", "load") and given.get("weights_only") != "True"
            bad |= given.get("allow_pickle", "False") != "False"
        if bad:
            lines.append(node.lineno)
    return lines


def test_no_source_file_unpickles() -> None:
    assert attractor.__file__
    files = list(Path(attractor.__file__).parent.rglob("*.py"))
    assert len(files) > 50
    assert {str(file): lines for file in files if (lines := unsafe_reads(file.read_text()))} == {}


def test_the_search_for_unpickling_finds_every_form_of_it() -> None:
    bad = ["import pickle", "from pickle import loads", "torch.load(path)", "torch.load(path, weights_only=False)"]
    bad += [f"np.load(path, allow_pickle={value})" for value in ("True", "trusted")]
    assert [unsafe_reads(line) for line in bad] == [[1]] * len(bad)
    assert unsafe_reads("torch.load(path, map_location=device, weights_only=True)") == []
    assert unsafe_reads("np.load(path, allow_pickle=False)") == []


@pytest.mark.parametrize("place", [(shutil, "rmtree"), (checkpoint, "flush_to_disk"), (Path, "rename")])
def test_an_interrupted_replacement_of_a_checkpoint_loses_nothing(
    stopped: Path, monkeypatch: pytest.MonkeyPatch, place: tuple[object, str]
) -> None:
    """Criterion: an interrupt of a removal, of a flush or of the second renaming leaves an intact checkpoint."""
    folder, calls = stopped / "checkpoints", []
    target, temporary = folder / "step-00000011", folder / ".writing-step-00000011"
    shutil.copytree(target, temporary)
    usual, allowed = getattr(*place), 1 if place[1] == "rename" else 0

    def interrupted(*arguments: object, **keywords: object) -> object:
        calls.append(arguments)
        if len(calls) == allowed + 1:
            raise KeyboardInterrupt
        return usual(*arguments, **keywords)

    monkeypatch.setattr(*place, interrupted)
    with pytest.raises(KeyboardInterrupt), checkpoint.writing_errors(folder, 11, temporary):
        checkpoint.replace_checkpoint(temporary, target)
    assert steps(folder)[-1] == 11
    checkpoint.verify(target)


def test_a_checkpoint_that_a_killed_process_set_aside_comes_back(stopped: Path) -> None:
    folder = stopped / "checkpoints"
    (folder / "step-00000011").rename(folder / ".replaced-step-00000011")
    checkpoint.save_checkpoint(RunFolder.open(stopped), {}, {}, checkpoint.TrainState(step=1))
    assert steps(folder)[-1] == 11
